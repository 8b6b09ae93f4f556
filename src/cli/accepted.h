// Which texts an option accepts. A refused text is an error that names the option, the text and what is accepted.
#pragma once

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace heddle::cli {

/// The whole text as a number of type T; nothing if a character is left over or it does not fit.
template <class T>
std::optional<T> number_in(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return std::nullopt;
  return value;
}

/// One of these texts.
CLI::Validator one_of(std::initializer_list<std::string_view> texts);
/// A whole number from `least` to `most`.
CLI::Validator whole_from(std::int64_t least, std::int64_t most);
/// A number from `least` to `most`, with a point or without.
CLI::Validator number_from(double least, double most);

}  // namespace heddle::cli
