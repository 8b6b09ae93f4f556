// A JSON value as a tree. Its destructor allocates nothing, as that of nlohmann's objects and arrays does, which ends
// the process where memory is out.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace heddle::base {

class JsonTree {
 public:
  using Array = std::vector<JsonTree>;
  using Object = std::vector<std::pair<std::string, JsonTree>>;  // in the order in which members were added

  JsonTree() = default;  // null
  JsonTree(std::nullptr_t) {}
  JsonTree(std::same_as<bool> auto is) : value_(is) {}
  JsonTree(std::signed_integral auto number) : value_(static_cast<std::int64_t>(number)) {}
  template <std::unsigned_integral Integer>
  requires(!std::same_as<Integer, bool>) JsonTree(Integer number) : value_(static_cast<std::uint64_t>(number)) {}
  JsonTree(std::floating_point auto number) : value_(static_cast<double>(number)) {}
  JsonTree(std::string text) : value_(std::move(text)) {}
  JsonTree(std::string_view text) : value_(std::string(text)) {}
  JsonTree(const char* text) : value_(std::string(text)) {}
  JsonTree(const std::vector<std::string>& texts) : value_(Array(texts.begin(), texts.end())) {}
  // Written by hand: in GCC 12 a std::variant that throws while it is copied destroys a member that it does not hold.
  JsonTree(const JsonTree& other);
  JsonTree(JsonTree&&) noexcept = default;
  JsonTree& operator=(const JsonTree& other) { return *this = JsonTree(other); }
  JsonTree& operator=(JsonTree&&) noexcept = default;
  ~JsonTree() = default;
  static JsonTree object();
  static JsonTree array();
  template <class... Elements>
  static JsonTree array_of(Elements&&... elements) {
    JsonTree made = array();
    (made.push_back(std::forward<Elements>(elements)), ...);
    return made;
  }

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool contains(std::string_view name) const { return find(name) != nullptr; }

  // These throw Error(internal) if the value is of another type, or the member is not there.
  const std::string& text() const { return as<std::string>("a text"); }
  bool is_true() const { return as<bool>("true or false"); }
  double number() const;
  const Array& elements() const { return as<Array>("an array"); }
  const Object& members() const { return as<Object>("an object"); }
  const JsonTree& at(std::string_view name) const;
  const JsonTree& at(std::size_t index) const;

  /// The member, added as null if it is not there; null becomes an object.
  JsonTree& operator[](std::string_view name);
  /// Adds a member behind the others.
  JsonTree& add(std::string_view name, JsonTree value) &;
  JsonTree&& add(std::string_view name, JsonTree value) && { return std::move(add(name, std::move(value))); }
  void push_back(JsonTree element);

  /// Bytes that are no UTF-8 become U+FFFD, numbers that are not finite null. indent < 0: in one line.
  std::string dump(int indent = -1) const;

  bool operator==(const JsonTree&) const = default;

 private:
  template <class T>
  const T& as(const char* what) const {
    if (const T* found = std::get_if<T>(&value_)) return *found;
    throw_other(what);
  }
  [[noreturn]] void throw_other(const char* what) const;
  const JsonTree* find(std::string_view name) const;
  void write(std::string& to, int indent, int depth) const;

  std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object> value_;
};

}  // namespace heddle::base
