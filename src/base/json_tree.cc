#include "base/json_tree.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/json_text.h"
#include "heddle/error.h"

namespace heddle::base {

JsonTree::JsonTree(const JsonTree& other) {
  std::visit(
      [this](const auto& value) {
        auto copy = value;
        value_ = std::move(copy);
      },
      other.value_);
}

JsonTree JsonTree::object() {
  JsonTree made;
  made.value_ = Object();
  return made;
}

JsonTree JsonTree::array() {
  JsonTree made;
  made.value_ = Array();
  return made;
}

void JsonTree::throw_other(const char* what) const {
  throw Error(ErrorCode::internal, fmt::format("a value of JSON is {}, not {}", dump(), what));
}

double JsonTree::number() const {
  if (const auto* whole = std::get_if<std::int64_t>(&value_)) return static_cast<double>(*whole);
  if (const auto* whole = std::get_if<std::uint64_t>(&value_)) return static_cast<double>(*whole);
  return as<double>("a number");
}

const JsonTree* JsonTree::find(std::string_view name) const {
  const auto* object = std::get_if<Object>(&value_);
  if (object == nullptr) return nullptr;
  const auto found = std::ranges::find(*object, name, &Object::value_type::first);
  return found == object->end() ? nullptr : &found->second;
}

const JsonTree& JsonTree::at(std::string_view name) const {
  if (const JsonTree* found = find(name)) return *found;
  throw Error(ErrorCode::internal, fmt::format("{} has no member '{}'", dump(), name));
}

const JsonTree& JsonTree::at(std::size_t index) const {
  const Array& all = elements();
  if (index < all.size()) return all[index];
  throw Error(ErrorCode::internal, fmt::format("{} has no element {}", dump(), index));
}

JsonTree& JsonTree::operator[](std::string_view name) {
  if (const JsonTree* found = find(name)) return const_cast<JsonTree&>(*found);
  if (is_null()) value_ = Object();
  add(name, nullptr);
  return std::get<Object>(value_).back().second;
}

JsonTree& JsonTree::add(std::string_view name, JsonTree value) & {
  if (!std::holds_alternative<Object>(value_)) throw_other("an object");
  std::get<Object>(value_).emplace_back(std::string(name), std::move(value));
  return *this;
}

void JsonTree::push_back(JsonTree element) {
  if (!is_array()) throw_other("an array");
  std::get<Array>(value_).push_back(std::move(element));
}

void JsonTree::write(std::string& to, int indent, int depth) const {
  const auto new_line = [&](int steps) {
    if (indent >= 0) to.append(1, '\n').append(static_cast<std::size_t>(indent * steps), ' ');
  };
  const auto write_all = [&](char begin, const auto& all, char end, auto&& write_one) {
    to += begin;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (i > 0) to += ',';
      new_line(depth + 1);
      write_one(all[i]);
    }
    if (!all.empty()) new_line(depth);
    to += end;
  };
  if (const auto* all = std::get_if<Array>(&value_)) {
    write_all('[', *all, ']', [&](const JsonTree& element) { element.write(to, indent, depth + 1); });
  } else if (const auto* object = std::get_if<Object>(&value_)) {
    write_all('{', *object, '}', [&](const auto& member) {
      to += json_text(member.first);
      to += indent >= 0 ? ": " : ":";
      member.second.write(to, indent, depth + 1);
    });
  } else if (const auto* text = std::get_if<std::string>(&value_)) {
    to += json_text(*text);
  } else if (const auto* number = std::get_if<double>(&value_)) {
    to += json_text(*number);
  } else if (const auto* whole = std::get_if<std::int64_t>(&value_)) {
    to += std::to_string(*whole);
  } else if (const auto* natural = std::get_if<std::uint64_t>(&value_)) {
    to += std::to_string(*natural);
  } else if (const auto* is = std::get_if<bool>(&value_)) {
    to += *is ? "true" : "false";
  } else {
    to += "null";
  }
}

std::string JsonTree::dump(int indent) const {
  std::string text;
  write(text, indent, 0);
  return text;
}

}  // namespace heddle::base
