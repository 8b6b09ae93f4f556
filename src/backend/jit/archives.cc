#include "backend/jit/archives.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "base/environment.h"
#include "heddle/archive.h"

namespace heddle::jit {
namespace {

std::vector<std::string> paths_in(const std::string& list) {
  std::vector<std::string> paths;
  for (std::size_t begin = 0; begin < list.size();) {
    const std::size_t end = std::min(list.find(':', begin), list.size());
    if (end > begin) paths.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return paths;
}

/// "a.heddle (12 kernels for sm_80, sm_90a)"
std::string summary_of(const ArchiveFile& file) {
  std::set<std::string> architectures;
  for (const ArchiveHead::Entry& entry : file.head().entries) architectures.insert(entry.architecture);
  return fmt::format("{} ({} kernels for {})", file.path(), file.head().entries.size(),
                     architectures.empty() ? "nothing" : fmt::format("{}", fmt::join(architectures, ", ")));
}

}  // namespace

Archives& Archives::of_process() {
  static Archives& once = *new Archives;
  return once;
}

Archives::Files Archives::files() {
  const std::scoped_lock lock(mutex_);
  if (!environment_was_read_) {
    Files named;
    for (const std::string& path : paths_in(base::value_of(base::Option::archive))) {
      named.push_back(std::make_shared<const ArchiveFile>(path));
    }
    files_.insert(files_.begin(), named.begin(), named.end());
    environment_was_read_ = true;
  }
  return files_;
}

void Archives::use(const std::filesystem::path& path) {
  auto file = std::make_shared<const ArchiveFile>(path);
  const std::scoped_lock lock(mutex_);
  const auto same = std::ranges::find(files_, file->path(), [](const auto& each) { return each->path(); });
  if (same != files_.end()) {
    *same = std::move(file);
  } else {
    files_.push_back(std::move(file));
  }
}

std::optional<Record> Archives::find(const std::string& key) {
  for (const auto& file : files()) {
    if (const ArchiveHead::Entry* entry = file->find(key)) return file->load(*entry);
  }
  return std::nullopt;
}

std::string Archives::lack_of(const Source& source) {
  std::vector<std::string> summaries;
  bool any_of_architecture = false, any_of_name = false;
  for (const auto& file : files()) {
    summaries.push_back(summary_of(*file));
    for (const ArchiveHead::Entry& entry : file->head().entries) {
      const bool fits = entry.architecture == source.architecture;
      any_of_architecture |= fits;
      any_of_name |= fits && entry.name == source.name;
    }
  }
  if (summaries.empty()) return {};
  std::string what = "add this call to the list of `heddle aot` (HEDDLE_LOG records it)";
  if (!any_of_architecture) what = fmt::format("name a GPU of {} to `heddle aot`", source.architecture);
  if (any_of_name) {
    what =
        "write the archive again with `heddle aot` of this build of heddle, with this call in its list (the kernels of "
        "this "
        "name are for other mods or options, or from another build)";
  }
  return fmt::format("no archive has the kernel '{}' for {}; there are {}. To have it there: {}", source.name,
                     source.architecture, fmt::join(summaries, " and "), what);
}

std::string Archives::notes() {
  std::string text;
  for (const auto& file : files()) text += fmt::format("kernel archive: {}\n", summary_of(*file));
  return text;
}

void Archives::forget() {
  const std::scoped_lock lock(mutex_);
  files_.clear();
  environment_was_read_ = false;
}

}  // namespace heddle::jit

namespace heddle {

void use_archive(const std::string& path) { jit::Archives::of_process().use(path); }

ArchiveContents read_archive(const std::string& path) {
  const jit::ArchiveFile file(path, true);
  ArchiveContents contents{.version = file.head().version, .kernels = {}};
  for (const jit::ArchiveHead::Entry& entry : file.head().entries) {
    contents.kernels.push_back({.name = entry.name,
                                .architecture = entry.architecture,
                                .compiler = entry.compiler,
                                .rejected = !file.load(entry).verdict.empty(),
                                .bytes = static_cast<std::int64_t>(entry.size)});
  }
  return contents;
}

}  // namespace heddle
