#include "backend/libraries/library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <link.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <system_error>

#include "heddle/error.h"

namespace heddle::libraries {
namespace {

namespace fs = std::filesystem;

/// The file of an open library: `file` if it is a path, else where the loader found it.
std::string path_of(void* handle, const std::string& file) {
  const link_map* map = nullptr;
  if (file.find('/') != std::string::npos || dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0 || map == nullptr) return file;
  return map->l_name[0] == '\0' ? file : map->l_name;
}

/// Whether the loader's words say that the file does not exist, or that it is no library for this machine.
bool says_absent(const std::string& words, const std::string& file) {
  return words.find(file + ": ") != std::string::npos && words.ends_with(std::generic_category().message(ENOENT));
}

/// The loader's words on a file that is there. It passes over libraries of other machines as if there were none.
std::string explained(const std::string& words, const std::string& file) {
  if (!says_absent(words, file)) return words;
  std::error_code ignored;
  const bool leads_nowhere = !fs::exists(file, ignored);
  return fmt::format(
      "{} ({})", words,
      leads_nowhere ? "a link to a file that is not there" : "the file is there, made for another kind of machine");
}

/// Links that lead nowhere count: they were put there for a reason.
bool is_there(const fs::path& file) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(file, ignored));
}

using Names = std::vector<std::string>;

/// A search under way: the library taken, or the libraries found and why each does not serve.
class Attempts {
 public:
  explicit Attempts(const LibraryCheck& check) : check_(check) {}

  /// Empty when `file` (a path, or a name for the loader's own path) is taken; else why it is not.
  std::string open(const std::string& file) {
    errno = 0;
    void* handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    // Out of memory is no reason to remember: a later search may find the library.
    if (handle == nullptr && errno == ENOMEM) throw std::bad_alloc();
    if (handle == nullptr) return dlerror();
    Library library(handle, path_of(handle, file));
    std::string complaint = check_(library);
    if (complaint.empty() && !takes_) complaint = "is too old, by its name";
    if (complaint.empty()) {
      found_ = library;
      return {};
    }
    return fmt::format("{} {}", library.path(), complaint);
  }

  bool open_by_name(const Names& names) {
    for (const std::string& name : names) {
      const std::string reason = open(name);
      if (reason.empty()) return true;
      if (!says_absent(reason, name)) note(reason);
    }
    return false;
  }

  bool open_in(const fs::path& folder, const Names& names) {
    for (const std::string& name : names) {
      const std::string file = (folder / name).string();
      if (!is_there(file)) continue;
      const std::string reason = open(file);
      if (reason.empty()) return true;
      note(explained(reason, file));
    }
    return false;
  }

  bool open_anywhere(const std::vector<fs::path>& folders, const Names& names) {
    return open_by_name(names) ||
           std::ranges::any_of(folders, [&](const fs::path& folder) { return open_in(folder, names); });
  }

  /// From here on no library is taken: those under names of old versions are only reported.
  void take_no_more() { takes_ = false; }

  const Library& found() const { return *found_; }
  const std::vector<std::string>& refused() const { return refused_; }

 private:
  // One file may be met twice, by its name and in a folder.
  void note(const std::string& reason) {
    if (std::ranges::find(refused_, reason) == refused_.end()) refused_.push_back(reason);
  }

  const LibraryCheck& check_;
  bool takes_ = true;
  std::optional<Library> found_;
  std::vector<std::string> refused_;
};

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorCode::unsupported, sentence); }

Names all_names(const LibrarySearch& search) {
  Names names = search.names;
  names.insert(names.end(), search.second_names.begin(), search.second_names.end());
  return names;
}

/// Why the option's folder does not serve; empty when it does.
std::string open_folder(const LibrarySearch& search, const fs::path& folder, Attempts& attempts) {
  const Names names = all_names(search);
  if (attempts.open_in(folder, names)) return {};
  attempts.take_no_more();
  attempts.open_in(folder, search.old_names);
  if (attempts.refused().empty()) return fmt::format("the folder holds no {}", fmt::join(names, " or "));
  return fmt::format("{}", fmt::join(attempts.refused(), "; "));
}

Library open_option(const LibrarySearch& search, const std::string& value, Attempts& attempts) {
  std::error_code ignored;
  const std::string reason =
      fs::is_directory(value, ignored) ? open_folder(search, value, attempts) : attempts.open(value);
  if (reason.empty()) return attempts.found();
  refuse(fmt::format("{} cannot be used: {} is '{}'; {}", search.what, name_of(search.option), value,
                     is_there(value) ? explained(reason, value) : reason));
}

[[noreturn]] void refuse_all(const LibrarySearch& search, const Attempts& attempts) {
  std::vector<std::string> locations{"the loader's path"};
  for (const fs::path& folder : search.folders) locations.push_back(folder.string());
  const std::string found = attempts.refused().empty() ? "was not found: "
                                                       : fmt::format("was found but cannot be used: {}; ",
                                                                     fmt::join(attempts.refused(), "; "));
  refuse(fmt::format("{} {}no usable {} in {}; {} may name its file or folder", search.what, found,
                     fmt::join(all_names(search), " or "), fmt::join(locations, ", "), name_of(search.option)));
}

}  // namespace

void* Library::symbol(const char* name) const { return handle_ == nullptr ? nullptr : dlsym(handle_, name); }

Library open_library(const LibrarySearch& search, const LibraryCheck& check) {
  Attempts attempts(check);
  const std::string chosen = value_of(search.option);
  if (!chosen.empty()) return open_option(search, chosen, attempts);
  for (const Names* names : {&search.names, &search.second_names}) {
    if (attempts.open_anywhere(search.folders, *names)) return attempts.found();
  }
  // A library that the loader passed over by name may say more by its path.
  for (const fs::path& folder : loader_folders()) {
    if (attempts.open_in(folder, all_names(search))) return attempts.found();
  }
  attempts.take_no_more();
  attempts.open_anywhere(search.folders, search.old_names);
  refuse_all(search, attempts);
}

Library open_companion(const Library& of, const std::string& name) {
  for (const std::string& file : {(fs::path(of.path()).parent_path() / name).string(), name}) {
    void* const handle = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) return {handle, path_of(handle, file)};
  }
  return {};
}

}  // namespace heddle::libraries
