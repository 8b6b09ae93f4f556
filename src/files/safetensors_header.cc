#include "files/safetensors_header.h"

#include <fmt/format.h>

#include <limits>
#include <nlohmann/json.hpp>

namespace heddle::files {
namespace {

using Json = nlohmann::json;

/// The position in the header, which decides what may come next.
enum class State {
  root,
  top,
  metadata_object,
  metadata_key,
  metadata_value,
  entry_object,
  entry_key,
  dtype,
  shape_array,
  shape_value,
  offsets_array,
  offsets_value,
};

class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(const ByteSource& source) : source_(source) {}

  SafetensorsHeader take() { return std::move(header_); }

  bool null() override { misplaced(); }
  bool boolean(bool) override { misplaced(); }
  bool number_integer(number_integer_t) override { misplaced(); }
  bool number_float(number_float_t, const string_t&) override { misplaced(); }
  bool binary(binary_t&) override { misplaced(); }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ == State::shape_value && value <= std::numeric_limits<std::int64_t>::max()) {
      if (entry_->axes++ < kMaxRank) entry_->shape.push_back(static_cast<std::int64_t>(value));
    } else if (state_ == State::offsets_value) {
      (offsets_seen_++ == 0 ? entry_->begin : entry_->end) = value;
    } else {
      misplaced();
    }
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::dtype) {
      entry_->dtype = std::move(value);
      state_ = State::entry_key;
    } else if (state_ == State::metadata_value) {
      header_.metadata[name_] = std::move(value);
      state_ = State::metadata_key;
    } else {
      misplaced();
    }
    return true;
  }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::root:
        state_ = State::top;
        return true;
      case State::metadata_object:
        state_ = State::metadata_key;
        return true;
      case State::entry_object:
        state_ = State::entry_key;
        return true;
      default:
        misplaced();
    }
  }

  bool key(string_t& value) override {
    if (state_ == State::top) {
      begin_top(value);
    } else if (state_ == State::metadata_key) {
      name_ = value;
      if (!header_.metadata.emplace(value, "").second) throw twice("__metadata__", value);
      state_ = State::metadata_value;
    } else {
      begin_field(value);
    }
    return true;
  }

  bool end_object() override {
    if (state_ == State::entry_key) {
      for (const auto& [seen, field] :
           {std::pair{has_dtype_, "dtype"}, std::pair{has_shape_, "shape"}, std::pair{has_offsets_, "data_offsets"}}) {
        if (!seen) throw source_.error(fmt::format("tensor '{}' has no {}", name_, field));
      }
    }
    state_ = State::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == State::shape_array) {
      state_ = State::shape_value;
    } else if (state_ == State::offsets_array) {
      state_ = State::offsets_value;
      offsets_seen_ = 0;
    } else {
      misplaced();
    }
    return true;
  }

  bool end_array() override {
    if (state_ == State::offsets_value && offsets_seen_ != 2) misplaced();
    state_ = State::entry_key;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    throw source_.error(fmt::format("its header is not JSON at byte {} of it", position));
  }

 private:
  void begin_top(const std::string& key) {
    if (key == "__metadata__") {
      if (has_metadata_) throw source_.error("its header has '__metadata__' twice");
      has_metadata_ = true;
      state_ = State::metadata_object;
      return;
    }
    const auto [found, added] = header_.tensors.emplace(key, SafetensorsEntry{});
    if (!added) throw source_.error(fmt::format("its header has tensor '{}' twice", key));
    name_ = key;
    entry_ = &found->second;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    state_ = State::entry_object;
  }

  void begin_field(const std::string& key) {
    const auto begin = [&](bool& seen, State state) {
      if (seen) throw twice(fmt::format("tensor '{}'", name_), key);
      seen = true;
      state_ = state;
    };
    if (key == "dtype") {
      begin(has_dtype_, State::dtype);
    } else if (key == "shape") {
      begin(has_shape_, State::shape_array);
    } else if (key == "data_offsets") {
      begin(has_offsets_, State::offsets_array);
    } else {
      throw source_.error(fmt::format("tensor '{}' has an unknown entry '{}'", name_, key));
    }
  }

  Error twice(const std::string& where, const std::string& key) const {
    return source_.error(fmt::format("{} has '{}' twice", where, key));
  }

  [[noreturn]] void misplaced() const {
    switch (state_) {
      case State::metadata_object:
        throw source_.error("'__metadata__' is not an object");
      case State::metadata_value:
        throw source_.error(fmt::format("entry '{}' of '__metadata__' is not a string", name_));
      case State::entry_object:
        throw source_.error(fmt::format("tensor '{}' is not an object", name_));
      case State::dtype:
        throw source_.error(fmt::format("dtype of tensor '{}' is not a string", name_));
      case State::shape_array:
      case State::shape_value:
        throw source_.error(
            fmt::format("shape of tensor '{}' is not an array of whole numbers from 0 to 2^63 - 1", name_));
      case State::offsets_array:
      case State::offsets_value:
        throw source_.error(fmt::format("data_offsets of tensor '{}' is not an array of two byte positions", name_));
      case State::root:
      case State::top:
      case State::metadata_key:
      case State::entry_key:
        break;
    }
    throw source_.error("its header is not a JSON object");
  }

  const ByteSource& source_;
  SafetensorsHeader header_;
  State state_ = State::root;
  std::string name_;  // of the tensor, or of the metadata entry
  SafetensorsEntry* entry_ = nullptr;
  bool has_metadata_ = false;
  bool has_dtype_ = false;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  int offsets_seen_ = 0;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view json, const ByteSource& source) {
  // The JSON library takes a zero byte for the end of its input.
  if (json.find('\0') != std::string_view::npos) throw source.error("its header has a zero byte");
  HeaderReader reader(source);
  Json::sax_parse(json.begin(), json.end(), &reader);
  return reader.take();
}

}  // namespace heddle::files
