#include "backend/jit/includes.h"

#include <fmt/format.h>

#include <algorithm>

namespace heddle::jit {
namespace {

std::string_view without_blanks(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  return first == std::string_view::npos ? std::string_view() : text.substr(first);
}

/// The name in an `#include "name"` or `#include <name>` line; empty for every other line.
std::string_view included_by(std::string_view line) {
  line = without_blanks(line);
  if (!line.starts_with('#')) return {};
  line = without_blanks(line.substr(1));
  constexpr std::string_view kDirective = "include";
  if (!line.starts_with(kDirective)) return {};
  line = without_blanks(line.substr(kDirective.size()));
  if (line.empty() || (line[0] != '"' && line[0] != '<')) return {};
  const std::size_t end = line.find(line[0] == '"' ? '"' : '>', 1);
  return end == std::string_view::npos ? std::string_view() : line.substr(1, end - 1);
}

/// Takes the first line off `text`, its newline included.
std::string_view take_line(std::string_view& text) {
  const std::size_t newline = text.find('\n');
  const std::size_t size = newline == std::string_view::npos ? text.size() : newline + 1;
  const std::string_view line = text.substr(0, size);
  text.remove_prefix(size);
  return line;
}

/// Walks a text and, in the place of their first mention, the headers it includes; in each place, lists of rows
/// (.def), which are read once for each meaning of a row.
class Walk {
 public:
  explicit Walk(const std::vector<Header>& headers) : headers_(headers) {}

  void visit(std::string_view text) {
    while (!text.empty()) {
      const std::string_view line = take_line(text);
      const Header* header = find(included_by(line));
      if (header == nullptr) {
        whole += line;
        continue;
      }
      const bool first = std::find(seen.begin(), seen.end(), header) == seen.end();
      if (first) seen.push_back(header);
      if (first || header->name.ends_with(".def")) {
        whole += fmt::format("// ---- {}\n", header->name);
        visit(header->text);
        whole += fmt::format("\n// ---- end of {}\n", header->name);
      }
    }
  }

  std::vector<const Header*> seen;
  std::string whole;

 private:
  const Header* find(std::string_view name) const {
    if (name.empty()) return nullptr;
    const auto found = std::find_if(headers_.begin(), headers_.end(), [&](const Header& h) { return h.name == name; });
    return found == headers_.end() ? nullptr : &*found;
  }

  const std::vector<Header>& headers_;
};

Walk walk(const Source& source) {
  Walk walk(source.headers);
  walk.visit(source.text);
  return walk;
}

}  // namespace

std::vector<const Header*> headers_in_use(const Source& source) { return walk(source).seen; }

std::string in_one_file(const Source& source) { return walk(source).whole; }

}  // namespace heddle::jit
