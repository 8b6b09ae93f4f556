#include <fmt/format.h>

#include <charconv>

#include "files/npy.h"

namespace heddle::files {
namespace {

/// A reader of exactly the Python literals that NumPy writes.
class LiteralReader {
 public:
  LiteralReader(std::string_view text, const ByteSource& source) : text_(text), source_(source) {}

  NpyHeader header() {
    NpyHeader header;
    bool has_descr = false;
    bool has_order = false;
    bool has_shape = false;
    expect('{');
    while (!accept('}')) {
      const std::size_t begin = at_;
      const std::string key = string();
      expect(':');
      if (key == "descr" && !has_descr) {
        has_descr = true;
        header.descr = descr();
      } else if (key == "fortran_order" && !has_order) {
        has_order = true;
        header.fortran_order = boolean();
      } else if (key == "shape" && !has_shape) {
        has_shape = true;
        header.shape = shape();
      } else {
        at_ = begin;
        fail("'descr', 'fortran_order' and 'shape', each once");
      }
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    if (!has_descr || !has_order || !has_shape) fail("'descr', 'fortran_order' and 'shape', each once");
    end();
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& accepted) const {
    throw source_.error(fmt::format("its header is damaged at byte {} of it; accepted is {}", at_, accepted));
  }

  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  bool accept(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void expect(char c) {
    if (!accept(c)) fail(fmt::format("'{}'", c));
  }

  std::string string() {
    const char quote = accept('"') ? '"' : '\'';
    if (quote == '\'') expect('\'');
    const std::size_t close = text_.find(quote, at_);
    const std::string_view content = text_.substr(at_, close - at_);
    if (close == std::string_view::npos || content.find_first_of("\\\n") != std::string_view::npos) {
      fail("a plain string");
    }
    at_ = close + 1;
    return std::string(content);
  }

  std::string descr() {
    if (accept('['))
      throw source_.error("its elements are structures, which heddle does not have", ErrorCode::unsupported);
    return string();
  }

  bool boolean() {
    skip_spaces();
    for (const auto& [word, value] :
         {std::pair{std::string_view("True"), true}, std::pair{std::string_view("False"), false}}) {
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return value;
      }
    }
    fail("True or False");
  }

  std::int64_t extent() {
    skip_spaces();
    std::int64_t value = 0;
    const char* begin = text_.data() + at_;
    const auto [stop, error] = std::from_chars(begin, text_.data() + text_.size(), value);
    const bool leading_zero = stop - begin > 1 && *begin == '0';
    if (error != std::errc() || *begin == '-' || leading_zero) fail("a whole number from 0 to 2^63 - 1");
    at_ += static_cast<std::size_t>(stop - begin);
    return value;
  }

  Dims shape() {
    Dims shape;
    expect('(');
    while (!accept(')')) {
      if (shape.size() == kMaxRank) {
        throw source_.error(fmt::format("it has more than {} axes", kMaxRank), ErrorCode::unsupported);
      }
      shape.push_back(extent());
      const bool comma = accept(',');
      // (3) is a number in Python, (3,) a tuple.
      if (!comma && shape.size() == 1) fail("','");
      if (!comma) {
        expect(')');
        break;
      }
    }
    return shape;
  }

  void end() {
    skip_spaces();
    if (at_ + 1 != text_.size() || text_[at_] != '\n') fail("spaces and one newline at the end");
  }

  std::string_view text_;
  const ByteSource& source_;
  std::size_t at_ = 0;
};

}  // namespace

NpyHeader parse_npy_header(std::string_view text, const ByteSource& source) {
  return LiteralReader(text, source).header();
}

}  // namespace heddle::files
