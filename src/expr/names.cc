#include "expr/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "expr/grammar.h"
#include "heddle/error.h"

namespace heddle::expr {
namespace {

constexpr std::size_t kLongestCompared = 64;
constexpr std::size_t kMostListed = 40;

/// Insertions, deletions and replacements that turn one into the other.
std::size_t edit_distance(std::string_view x, std::string_view y) {
  std::vector<std::size_t> row(y.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < y.size(); ++j) {
      const std::size_t replaced = diagonal + (x[i] == y[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

std::string shown(std::string_view name) {
  if (name.size() <= kLongestCompared) return std::string(name);
  return fmt::format("{}...", name.substr(0, kLongestCompared));
}

std::string sentence(std::string_view what, std::string_view given, const std::vector<std::string_view>& known) {
  std::string_view closest;
  std::size_t distance = given.size() / 3 + 2;
  for (const std::string_view name : known) {
    if (given.size() > kLongestCompared || name.size() > kLongestCompared) continue;
    const std::size_t edits = edit_distance(given, name);
    if (edits >= distance || edits >= name.size() || edits >= given.size()) continue;
    distance = edits;
    closest = name;
  }
  const std::string unknown = fmt::format("unknown {} '{}'", what, shown(given));
  if (!closest.empty()) return fmt::format("{}; did you mean '{}'?", unknown, closest);
  std::vector<std::string> listed;
  for (std::size_t i = 0; i < std::min(known.size(), kMostListed); ++i) listed.push_back(shown(known[i]));
  if (known.size() > kMostListed) listed.emplace_back("...");
  return fmt::format("{}; known are {}", unknown, fmt::join(listed, ", "));
}

}  // namespace

std::string unknown_name(std::string_view given, const Symbols& symbols) {
  std::vector<std::string_view> known;
  for (int i = 0; i < kLeafCount; ++i) known.push_back(name(static_cast<Leaf>(i)));
  for (const auto& [capture, decl] : symbols.captures) {
    if (is_identifier(capture) && !is_reserved(capture)) known.push_back(capture);
  }
  for (const auto& [param, type] : symbols.params) {
    if (is_identifier(param) && !is_reserved(param) && !symbols.captures.contains(param)) known.push_back(param);
  }
  return sentence("name", given, known);
}

std::string unknown_function(std::string_view given) {
  // Python's names whose function has another name here: the closest by letters would be a different function.
  for (const auto& [python, own] : {std::pair("float", "f32"), std::pair("int", "i32")}) {
    if (given == python) return fmt::format("unknown function '{}'; did you mean '{}'?", given, own);
  }
  std::vector<std::string_view> known;
  for (const Composite& composite : composites()) known.push_back(composite.name);
  for (int i = 0; i < kOpCount; ++i) {
    const OpInfo& row = info(static_cast<Op>(i));
    if (row.form == Form::call && !row.text.empty()) known.push_back(row.text);
  }
  return sentence("function", given, known);
}

void require_names(const Bindings& bindings) {
  for (const auto& [capture, view] : bindings.captures) require_name("capture", capture);
  for (const auto& [param, value] : bindings.params) require_name("param", param);
}

}  // namespace heddle::expr

namespace heddle {

void require_name(std::string_view what, std::string_view given) {
  if (!expr::is_identifier(given)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a {}'s name is letters, digits and _, not starting with a digit; '{}' is not", what,
                            expr::shown(given)));
  }
  if (expr::is_reserved(given)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a {} cannot be named '{}': the name has a meaning of its own", what, given));
  }
}

}  // namespace heddle
