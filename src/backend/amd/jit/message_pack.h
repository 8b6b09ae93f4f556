// A reader of MessagePack, the form of code objects' metadata: maps, lists, texts and numbers, one after another.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace heddle::amd {

/// Reads from the first byte on. What is damaged, or of a kind that metadata does not have, makes the reader fail: it
/// then gives nothing more. Reads nothing outside its bytes.
class MessagePackReader {
 public:
  explicit MessagePackReader(std::span<const char> bytes) : bytes_(bytes) {}

  bool failed() const { return failed_; }
  /// Reads the head of a map (the number of its pairs) or of a list (of its values). Returns nothing, and does not
  /// move, at any other value.
  std::optional<std::size_t> map();
  std::optional<std::size_t> list();
  std::optional<std::string_view> text();
  /// A number that is not negative, or a bool as 0 or 1.
  std::optional<std::uint64_t> number();
  /// Steps over one value, whatever it is.
  void skip();

 private:
  unsigned peek() const { return at_ < bytes_.size() ? static_cast<unsigned char>(bytes_[at_]) : 0xc1; }
  /// Big-endian, after `before` bytes.
  std::uint64_t take(std::size_t count);
  std::optional<std::size_t> head(unsigned short_first, unsigned short_mask, unsigned wide_first);
  void fail() { failed_ = true, at_ = bytes_.size(); }
  void skip(int depth);

  std::span<const char> bytes_;
  std::size_t at_ = 0;
  bool failed_ = false;
};

}  // namespace heddle::amd
