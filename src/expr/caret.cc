#include "expr/caret.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "heddle/error.h"

namespace heddle::expr {
namespace {

constexpr std::size_t kWindow = 100;  // columns
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// Bytes of the UTF-8 character at the front of a text that is not empty; 0 when there is none.
std::size_t character_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xC2 ? 0
                             : first < 0xE0 ? 2
                             : first < 0xF0 ? 3
                             : first < 0xF5 ? 4
                                            : 0;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const bool overlong = (first == 0xE0 && byte(1) < 0xA0) || (first == 0xF0 && byte(1) < 0x90);
  const bool beyond = (first == 0xED && byte(1) > 0x9F) || (first == 0xF4 && byte(1) > 0x8F);
  return length > 1 && (overlong || beyond) ? 0 : length;
}

struct Columns {
  std::vector<std::string_view> shown;  // one for each character
  std::size_t caret;
};

Columns columns_of(std::string_view text, std::size_t offset) {
  Columns columns{{}, 0};
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = character_length(text.substr(at));
    const auto c = static_cast<unsigned char>(text[at]);
    const bool blank = c == '\t' || c == '\n' || c == '\r' || c == '\v' || c == '\f';
    const bool control = c < 0x20 || c == 0x7F;
    columns.shown.push_back(blank ? " " : control || length == 0 ? kReplacement : text.substr(at, length));
    at += std::max<std::size_t>(length, 1);
    if (at <= offset) ++columns.caret;
  }
  return columns;
}

}  // namespace

void fail_at(std::string_view text, std::size_t offset, const std::string& sentence) {
  const Columns columns = columns_of(text, offset);
  const std::size_t count = columns.shown.size();
  std::size_t begin = 0;
  if (count > kWindow) begin = std::min(columns.caret - std::min(columns.caret, kWindow / 2), count - kWindow);
  const std::size_t end = std::min(count, begin + kWindow);
  std::string line;
  for (std::size_t i = begin; i < end; ++i) {
    const bool cut = (begin > 0 && i < begin + 3) || (end < count && i + 3 >= end);
    line += cut ? "." : columns.shown[i];
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}\n  {}\n  {:>{}}", sentence, line, "^", columns.caret - begin + 1));
}

}  // namespace heddle::expr
