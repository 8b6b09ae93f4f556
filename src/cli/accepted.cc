#include "accepted.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

namespace heddle::cli {
namespace {

/// "a, b and c"
std::string listed(const std::vector<std::string>& texts) {
  if (texts.size() < 2) return fmt::format("{}", fmt::join(texts, ""));
  return fmt::format("{} and {}", fmt::join(texts.begin(), texts.end() - 1, ", "), texts.back());
}

template <class T>
CLI::Validator numbers(std::string_view kind, T least, T most) {
  const auto refusal = [=](const std::string& text) -> std::string {
    const std::optional<T> value = number_in<T>(text);
    if (value && *value >= least && *value <= most) return "";
    return fmt::format("'{}' is given; {} from {} to {} are accepted", text, kind, least, most);
  };
  return {refusal, ""};
}

}  // namespace

CLI::Validator one_of(std::initializer_list<std::string_view> texts) {
  const auto refusal = [accepted = std::vector<std::string>(texts.begin(), texts.end())](const std::string& text) {
    if (std::ranges::find(accepted, text) != accepted.end()) return std::string();
    return fmt::format("'{}' is given; {} {} accepted", text, listed(accepted), accepted.size() == 1 ? "is" : "are");
  };
  return {refusal, ""};
}

CLI::Validator whole_from(std::int64_t least, std::int64_t most) { return numbers("whole numbers", least, most); }
CLI::Validator number_from(double least, double most) { return numbers("numbers", least, most); }

}  // namespace heddle::cli
