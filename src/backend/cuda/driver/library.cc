#include "backend/cuda/driver/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <optional>

#include "heddle/error.h"

namespace heddle::cuda {
namespace {

namespace fs = std::filesystem;

/// The file behind what was opened: a path is that; of a name, the loader knows where it found it.
std::string path_of(void* handle, const std::string& file) {
  const link_map* map = nullptr;
  if (file.find('/') != std::string::npos || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return file;
  return map->l_name[0] == '\0' ? file : map->l_name;
}

/// One search under way: what it took, or what it has tried.
class Attempts {
 public:
  explicit Attempts(const LibraryCheck& check) : check_(check) {}

  /// True when `file` (a path, or a name for the loader's own path) opens and passes the check.
  bool open(const std::string& file) {
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) {
      error_ = dlerror();
      return false;
    }
    Library library(handle, path_of(handle, file));
    const std::string complaint = check_(library);
    if (complaint.empty()) {
      found_ = library;
      return true;
    }
    refused_.push_back(fmt::format("{} {}", library.path(), complaint));
    error_.clear();
    return false;
  }

  bool open_in(const fs::path& folder, std::span<const std::string> names) {
    for (const std::string& name : names) {
      const fs::path file = folder / name;
      std::error_code ignored;
      if (!fs::exists(file, ignored)) continue;
      if (open(file.string())) return true;
      // The file is there: why it does not open is news. What the check refused has been noted already.
      if (!error_.empty()) refused_.push_back(error_);
    }
    return false;
  }

  const Library& found() const { return *found_; }
  const std::vector<std::string>& refused() const { return refused_; }
  /// Why the last file did not open; empty when it did.
  const std::string& error() const { return error_; }

 private:
  const LibraryCheck& check_;
  std::optional<Library> found_;
  std::vector<std::string> refused_;
  std::string error_;
};

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorCode::unsupported, sentence); }

Library open_option(const LibrarySearch& search, const std::string& value, Attempts& attempts) {
  std::error_code ignored;
  const bool folder = fs::is_directory(value, ignored);
  if (folder ? attempts.open_in(value, search.names) : attempts.open(value)) return attempts.found();
  std::string reason = fmt::format("{}", fmt::join(attempts.refused(), "; "));
  if (reason.empty() && folder) reason = fmt::format("the folder holds no {}", fmt::join(search.names, " or "));
  if (reason.empty()) reason = attempts.error();
  refuse(fmt::format("{} cannot be used: {} is '{}'; {}", search.what, name_of(search.option), value, reason));
}

}  // namespace

void* Library::symbol(const char* name) const { return handle_ == nullptr ? nullptr : dlsym(handle_, name); }

Library open_library(const LibrarySearch& search, const LibraryCheck& check) {
  Attempts attempts(check);
  const std::string chosen = value_of(search.option);
  if (!chosen.empty()) return open_option(search, chosen, attempts);
  for (const std::string& name : search.names) {
    if (attempts.open(name)) return attempts.found();
  }
  for (const fs::path& folder : search.folders) {
    if (attempts.open_in(folder, search.names)) return attempts.found();
  }
  std::vector<std::string> places{"the loader's path"};
  for (const fs::path& folder : search.folders) places.push_back(folder.string());
  const std::string but =
      attempts.refused().empty() ? "" : fmt::format("; refused: {}", fmt::join(attempts.refused(), "; "));
  refuse(fmt::format("{} was not found: no usable {} in {}{}; {} may name its file or folder", search.what,
                     fmt::join(search.names, " or "), fmt::join(places, ", "), but, name_of(search.option)));
}

}  // namespace heddle::cuda
