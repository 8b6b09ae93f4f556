#include "tune/tuning_record.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>

#include "base/folder.h"
#include "base/hash.h"

namespace heddle::tune {
namespace {

using Json = nlohmann::ordered_json;

std::string file_of(const std::string& problem_class) {
  return fmt::format("tuned-{:016x}.json", base::hash_bytes(problem_class.data(), problem_class.size()));
}

Json to_json(const std::string& problem_class, const Record& record) {
  Json times = Json::array();
  for (const Time& time : record.times) times.push_back({{"kernel", time.kernel}, {"seconds", time.seconds}});
  return {{"problem", problem_class}, {"planned", record.planned}, {"kernels", times}};
}

/// Throws what reading JSON throws where it is no such record.
Record from_json(const Json& json) {
  Record record;
  record.planned = json.at("planned").get<std::string>();
  for (const Json& time : json.at("kernels")) {
    record.times.push_back({time.at("kernel").get<std::string>(), time.at("seconds").get<double>()});
  }
  return record;
}

bool is_sound(const Record& record) {
  double last = 0;
  for (const Time& time : record.times) {
    if (!std::isfinite(time.seconds) || time.seconds < last) return false;
    last = time.seconds;
  }
  return !record.times.empty();
}

std::optional<Record> decode(const std::string& problem_class, std::span<const char> bytes, std::string& why) {
  try {
    const Json json = Json::parse(bytes.begin(), bytes.end());
    if (json.at("problem").get<std::string>() != problem_class) {
      why = "is of another problem";
      return std::nullopt;
    }
    Record record = from_json(json);
    if (is_sound(record)) return record;
    why = "has times that are none, or not in order";
  } catch (const Json::exception& error) {
    why = fmt::format("is damaged: {}", error.what());
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
    const std::string text = to_json(problem_class, record).dump(1) + "\n";
    if (folder && folder->write(file_of(problem_class), text, why)) return folder->remove_left_behind();
  }
  trouble = fmt::format("{} {}; what was measured is not kept", (path / file_of(problem_class)).string(), why);
}

}  // namespace heddle::tune
