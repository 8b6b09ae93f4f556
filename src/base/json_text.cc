#include "base/json_text.h"

#include <nlohmann/json.hpp>

namespace heddle::base {
namespace {

using Json = nlohmann::json;  // of single texts and numbers alone

template <class Values, class Write>
std::string listed(const Values& values, Write&& write) {
  std::string text = "[";
  for (const auto& value : values) {
    if (text.size() > 1) text += ',';
    text += write(value);
  }
  return text += ']';
}

}  // namespace

bool is_utf8(std::string_view text) {
  try {
    return !Json(text).dump().empty();
  } catch (const Json::exception&) {
    return false;
  }
}

std::string json_text(std::string_view text) { return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace); }

std::string json_text(double number) { return Json(number).dump(); }

JsonObject& JsonObject::add(std::string_view name, std::string_view text) { return add_raw(name, json_text(text)); }

JsonObject& JsonObject::add(std::string_view name, double number) { return add_raw(name, json_text(number)); }

JsonObject& JsonObject::add(std::string_view name, std::span<const std::int64_t> numbers) {
  return add_raw(name, listed(numbers, [](std::int64_t number) { return std::to_string(number); }));
}

JsonObject& JsonObject::add(std::string_view name, std::span<const std::string> texts) {
  return add_raw(name, listed(texts, [](const std::string& text) { return json_text(text); }));
}

JsonObject& JsonObject::add(std::string_view name, std::span<const JsonObject> objects) {
  return add_raw(name, listed(objects, [](const JsonObject& object) { return object.text(); }));
}

JsonObject& JsonObject::add_members(const JsonObject& other) {
  if (!members_.empty() && !other.members_.empty()) members_ += ',';
  members_ += other.members_;
  return *this;
}

std::string JsonObject::text() const { return "{" + members_ + "}"; }

JsonObject& JsonObject::add_raw(std::string_view name, std::string_view value) {
  std::string member = json_text(name);
  member += ':';
  member += value;
  if (!members_.empty()) members_ += ',';
  members_ += member;
  return *this;
}

}  // namespace heddle::base
