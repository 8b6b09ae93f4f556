// The text of a JSON object, written member by member. It holds no tree: the destructor of nlohmann's objects and
// arrays allocates, which ends the process where memory is out. What a call may need then is written with this.
#pragma once

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace heddle::base {

/// Whether JSON can hold the text as it is.
bool is_utf8(std::string_view text);

/// A text in quotes; bytes that are no UTF-8 become U+FFFD.
std::string json_text(std::string_view text);
/// A number; one that is not finite becomes null.
std::string json_text(double number);

class JsonObject {
 public:
  /// Bytes that are no UTF-8 become U+FFFD.
  JsonObject& add(std::string_view name, std::string_view text);
  JsonObject& add(std::string_view name, const char* text) { return add(name, std::string_view(text)); }
  /// A number that is not finite becomes null.
  JsonObject& add(std::string_view name, double number);
  JsonObject& add(std::string_view name, bool is) { return add_raw(name, is ? "true" : "false"); }
  template <std::integral Integer>
  JsonObject& add(std::string_view name, Integer number) {
    return add_raw(name, std::to_string(number));
  }
  JsonObject& add(std::string_view name, const JsonObject& object) { return add_raw(name, object.text()); }
  JsonObject& add(std::string_view name, std::span<const std::int64_t> numbers);
  JsonObject& add(std::string_view name, std::span<const std::string> texts);
  JsonObject& add(std::string_view name, std::span<const JsonObject> objects);
  /// All members of another object.
  JsonObject& add_members(const JsonObject& other);

  std::string text() const;
  bool empty() const { return members_.empty(); }

 private:
  JsonObject& add_raw(std::string_view name, std::string_view value);

  std::string members_;
};

}  // namespace heddle::base
