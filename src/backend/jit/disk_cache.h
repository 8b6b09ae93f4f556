// Kernels on disk: one file each, in a folder that several processes share without a lock. Files appear whole, are
// never changed, and are trusted only when every bit of them is right.
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "backend/jit/kernel_record.h"
#include "base/folder.h"

namespace heddle::jit {

class DiskCache {
 public:
  /// Where the environment says: HEDDLE_CACHE_DIR, else heddle in XDG_CACHE_HOME, else in ~/.cache; at most
  /// HEDDLE_CACHE_BYTES in all.
  DiskCache();

  /// Nothing when there is none, or none that can be trusted.
  std::optional<Record> load(const std::string& key);
  /// Does what it can. The files that were not used for longest go when the folder grows past its bound.
  void store(const std::string& key, const Record& record);

  /// Where it is, then a line for each kind of trouble so far.
  std::string notes() const;

 private:
  std::optional<base::Folder> open();
  void make_room(const base::Folder& folder);
  void note(const std::string& line);

  std::filesystem::path path_;  // empty: there is no place for it
  std::int64_t bound_;
  mutable std::mutex mutex_;  // of the notes
  std::vector<std::string> notes_;
  std::int64_t notes_left_out_ = 0;
};

}  // namespace heddle::jit
