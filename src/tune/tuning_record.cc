#include "tune/tuning_record.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "base/folder.h"
#include "base/hash.h"
#include "base/json_text.h"

namespace heddle::tune {
namespace {

using Json = nlohmann::json;

std::string file_of(const std::string& problem_class) {
  return fmt::format("tuned-{:016x}.json", base::hash_bytes(problem_class.data(), problem_class.size()));
}

std::string text_of(const std::string& problem_class, const Record& record) {
  std::vector<base::JsonObject> times;
  for (const Time& time : record.times) {
    times.push_back(base::JsonObject().add("kernel", time.kernel).add("seconds", time.seconds));
  }
  return base::JsonObject().add("problem", problem_class).add("planned", record.planned).add("kernels", times).text() +
         "\n";
}

/// Reads a record without making a tree of it (base/json_text.h). A member that is not known is passed over if it is a
/// text or a number.
class RecordReader : public nlohmann::json_sax<Json> {
 public:
  /// Why the text is no record; empty if it is one.
  std::string trouble() const {
    if (!trouble_.empty()) return trouble_;
    if (!has_problem_ || !has_planned_ || !has_kernels_) return "a member is missing";
    return "";
  }
  const std::string& problem() const { return problem_; }
  Record take() { return std::move(record_); }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool binary(binary_t&) override { return refuse("bytes"); }
  bool number_integer(number_integer_t value) override { return number(static_cast<double>(value)); }
  bool number_unsigned(number_unsigned_t value) override { return number(static_cast<double>(value)); }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool string(string_t& value) override {
    if (level_ == Level::top && key_ == "problem") {
      problem_ = std::move(value);
      has_problem_ = true;
    } else if (level_ == Level::top && key_ == "planned") {
      record_.planned = std::move(value);
      has_planned_ = true;
    } else if (level_ == Level::entry && key_ == "kernel") {
      record_.times.back().kernel = std::move(value);
      has_kernel_ = true;
    } else if (level_ != Level::top || key_ == "kernels") {
      return refuse("a text");
    }
    return true;
  }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool start_object(std::size_t) override {
    if (level_ != Level::none && level_ != Level::list) return refuse("an object");
    if (level_ == Level::list) record_.times.emplace_back();
    level_ = level_ == Level::none ? Level::top : Level::entry;
    has_kernel_ = has_seconds_ = false;
    return true;
  }
  bool end_object() override {
    if (level_ == Level::entry && !(has_kernel_ && has_seconds_)) return refuse("an entry that lacks a member");
    level_ = level_ == Level::entry ? Level::list : Level::none;
    return true;
  }
  bool start_array(std::size_t) override {
    if (level_ != Level::top || key_ != "kernels" || has_kernels_) return refuse("an array");
    level_ = Level::list;
    has_kernels_ = true;
    return true;
  }
  bool end_array() override {
    level_ = Level::top;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    trouble_ = error.what();
    return false;
  }

 private:
  enum class Level : std::uint8_t { none, top, list, entry };

  bool refuse(const char* what) {
    trouble_ = fmt::format("{} stands where no record has one", what);
    return false;
  }
  bool number(double value) {
    if (level_ == Level::entry && key_ == "seconds") {
      record_.times.back().seconds = value;
      has_seconds_ = true;
    } else if (level_ != Level::top || key_ == "problem" || key_ == "planned" || key_ == "kernels") {
      return refuse("a number");
    }
    return true;
  }

  Level level_ = Level::none;
  bool has_problem_ = false, has_planned_ = false, has_kernels_ = false, has_kernel_ = false, has_seconds_ = false;
  std::string key_, problem_, trouble_;
  Record record_;
};

bool is_sound(const Record& record) {
  double last = 0;
  for (const Time& time : record.times) {
    if (!std::isfinite(time.seconds) || time.seconds < last) return false;
    last = time.seconds;
  }
  return !record.times.empty();
}

std::optional<Record> decode(const std::string& problem_class, std::span<const char> bytes, std::string& why) {
  RecordReader reader;
  Json::sax_parse(bytes.begin(), bytes.end(), &reader);
  if (const std::string trouble = reader.trouble(); !trouble.empty()) {
    why = fmt::format("is damaged: {}", trouble);
  } else if (reader.problem() != problem_class) {
    why = "is of another problem";
  } else if (Record record = reader.take(); is_sound(record)) {
    return record;
  } else {
    why = "has times that are none, or not in order";
  }
  return std::nullopt;
}

}  // namespace

std::optional<Record> load(const std::string& problem_class, std::string& trouble) {
  const std::filesystem::path path = base::cache_folder();
  std::error_code error;
  if (path.empty() || !std::filesystem::exists(path, error)) return std::nullopt;  // opening would make it
  const std::string file = file_of(problem_class);
  std::string why;
  std::optional<Record> record;
  const std::optional<base::Folder> folder = base::Folder::open(path, base::Folder::Whose::mine, why);
  if (!folder) {
    trouble = fmt::format("{} {}; what was measured is not read", path.string(), why);
    return record;
  }
  const std::optional<std::vector<char>> bytes = folder->read(file, why);
  if (bytes) record = decode(problem_class, *bytes, why);
  if (!why.empty()) trouble = fmt::format("{} {}; it counts as none", (path / file).string(), why);
  return record;
}

void store(const std::string& problem_class, const Record& record, std::string& trouble) {
  const std::filesystem::path path = base::cache_folder();
  std::string why;
  if (path.empty()) {
    why = "has no place: neither HEDDLE_CACHE_DIR, XDG_CACHE_HOME nor HOME is set";
  } else {
    const std::optional<base::Folder> folder = base::Folder::open(path, base::Folder::Whose::mine, why);
    const std::string text = text_of(problem_class, record);
    if (folder && folder->write(file_of(problem_class), text, why)) return folder->remove_left_behind();
  }
  trouble = fmt::format("{} {}; what was measured is not kept", (path / file_of(problem_class)).string(), why);
}

}  // namespace heddle::tune
