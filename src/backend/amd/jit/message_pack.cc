#include "backend/amd/jit/message_pack.h"

namespace heddle::amd {
namespace {

constexpr int kDeepest = 16;  // values in values: metadata has four levels

}  // namespace

std::uint64_t MessagePackReader::take(std::size_t count) {
  if (bytes_.size() - at_ < count) {
    fail();
    return 0;
  }
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < count; ++i) value = value << 8 | static_cast<unsigned char>(bytes_[at_ + i]);
  at_ += count;
  return value;
}

/// `short_first` to `short_first | short_mask`: the count is in the byte; `wide_first` and the next: in 2 or 4 bytes.
std::optional<std::size_t> MessagePackReader::head(unsigned short_first, unsigned short_mask, unsigned wide_first) {
  const unsigned byte = peek();
  if ((byte & ~short_mask) == short_first) {
    ++at_;
    return byte & short_mask;
  }
  if (byte != wide_first && byte != wide_first + 1) return std::nullopt;
  ++at_;
  const std::size_t count = take(byte == wide_first ? 2 : 4);
  return failed_ ? std::nullopt : std::optional(count);
}

std::optional<std::size_t> MessagePackReader::map() { return head(0x80, 0x0f, 0xde); }
std::optional<std::size_t> MessagePackReader::list() { return head(0x90, 0x0f, 0xdc); }

std::optional<std::string_view> MessagePackReader::text() {
  std::size_t size = 0;
  if (peek() == 0xd9) {
    ++at_;
    size = take(1);
  } else if (const auto found = head(0xa0, 0x1f, 0xda)) {
    size = *found;
  } else {
    return std::nullopt;
  }
  if (bytes_.size() - at_ < size) fail();
  if (failed_) return std::nullopt;
  const std::string_view text(bytes_.data() + at_, size);
  at_ += size;
  return text;
}

std::optional<std::uint64_t> MessagePackReader::number() {
  const unsigned byte = peek();
  const bool wide = byte >= 0xcc && byte <= 0xcf;
  if (byte > 0x7f && !wide && byte != 0xc2 && byte != 0xc3) return std::nullopt;
  ++at_;
  if (byte == 0xc2 || byte == 0xc3) return byte - 0xc2;
  if (!wide) return byte;
  const std::uint64_t value = take(std::size_t{1} << (byte - 0xcc));
  return failed_ ? std::nullopt : std::optional(value);
}

void MessagePackReader::skip() { skip(0); }

void MessagePackReader::skip(int depth) {
  if (depth > kDeepest) return fail();
  if (number() || text() || failed_) return;
  if (const auto pairs = map()) {
    for (std::size_t i = 0; i < 2 * *pairs && !failed_; ++i) skip(depth + 1);
  } else if (const auto values = list()) {
    for (std::size_t i = 0; i < *values && !failed_; ++i) skip(depth + 1);
  } else {
    const unsigned byte = peek();
    ++at_;
    if (byte == 0xc0 || byte >= 0xe0) return;  // nil, small negative numbers
    if (byte == 0xca || byte == 0xd2) return static_cast<void>(take(4));
    if (byte == 0xcb || byte == 0xd3) return static_cast<void>(take(8));
    if (byte == 0xd0 || byte == 0xd1) return static_cast<void>(take(byte - 0xcf));
    fail();
  }
}

}  // namespace heddle::amd
