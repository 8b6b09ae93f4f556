#include "backend/jit/disk_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string_view>

#include "base/environment.h"
#include "heddle/error.h"

namespace heddle::jit {
namespace {

constexpr std::int64_t kDefaultBound = std::int64_t{1} << 30;
constexpr std::string_view kSuffix = ".kernel";
constexpr std::size_t kKeySize = 32, kMostNotes = 16;

std::string file_of(const std::string& key) { return key + std::string(kSuffix); }

/// Only such files are counted and removed: the folder may hold others.
bool is_kernel(std::string_view name) {
  return name.size() == kKeySize + kSuffix.size() && name.ends_with(kSuffix) &&
         name.find_first_not_of("0123456789abcdef") == kKeySize;
}

}  // namespace

DiskCache::DiskCache() : path_(base::cache_folder()), bound_(kDefaultBound) {
  try {
    bound_ = base::bytes_of(base::Option::cache_bytes, kDefaultBound);
  } catch (const Error& error) {
    note(fmt::format("{}; taken as {}", error.what(), kDefaultBound));
  }
}

std::optional<base::Folder> DiskCache::open() {
  if (path_.empty()) return std::nullopt;
  std::string why;
  std::optional<base::Folder> folder = base::Folder::open(path_, base::Folder::Whose::mine, why);
  if (!folder) note(fmt::format("{} {}; kernels are not kept", path_.string(), why));
  return folder;
}

std::optional<Record> DiskCache::load(const std::string& key) {
  const std::optional<base::Folder> folder = open();
  if (!folder) return std::nullopt;
  std::string why;
  const std::optional<std::vector<char>> bytes = folder->read(file_of(key), why);
  std::optional<Record> record;
  if (bytes) record = decode(key, *bytes, why);
  if (!why.empty()) note(fmt::format("{} {}; compiled again", (path_ / file_of(key)).string(), why));
  return record;
}

void DiskCache::store(const std::string& key, const Record& record) {
  const std::vector<char> bytes = encode(key, record);
  const std::string file = (path_ / file_of(key)).string();
  if (static_cast<std::int64_t>(bytes.size()) > bound_) {
    if (!path_.empty())
      note(fmt::format("{} would be {} bytes long, more than the cache's {}", file, bytes.size(), bound_));
    return;
  }
  const std::optional<base::Folder> folder = open();
  if (!folder) return;
  std::string why;
  if (folder->write(file_of(key), bytes, why)) {
    make_room(*folder);
  } else {
    note(fmt::format("{} {}", file, why));
  }
}

void DiskCache::make_room(const base::Folder& folder) {
  using base::Folder;
  folder.remove_left_behind();
  std::vector<Folder::Entry> kernels;
  std::int64_t total = 0;
  for (Folder::Entry& entry : folder.entries()) {
    if (!is_kernel(entry.name)) continue;
    total += entry.bytes;
    kernels.push_back(std::move(entry));
  }
  if (total <= bound_) return;
  std::ranges::sort(kernels, std::ranges::greater(), &Folder::Entry::age_ns);
  for (const Folder::Entry& kernel : kernels) {
    if (total <= bound_) return;
    folder.remove(kernel.name);
    total -= kernel.bytes;
  }
}

void DiskCache::note(const std::string& line) {
  const std::scoped_lock lock(mutex_);
  if (std::find(notes_.begin(), notes_.end(), line) != notes_.end()) return;
  if (notes_.size() < kMostNotes) {
    notes_.push_back(line);
  } else {
    ++notes_left_out_;
  }
}

std::string DiskCache::notes() const {
  const std::scoped_lock lock(mutex_);
  std::string text = path_.empty()
                         ? "kernel cache: none on disk; HEDDLE_CACHE_DIR, XDG_CACHE_HOME and HOME name no folder\n"
                         : fmt::format("kernel cache: {}, at most {} MiB\n", path_.string(), bound_ >> 20);
  for (const std::string& line : notes_) text += fmt::format("kernel cache: {}\n", line);
  if (notes_left_out_ > 0) text += fmt::format("kernel cache: and {} more\n", notes_left_out_);
  return text;
}

}  // namespace heddle::jit
