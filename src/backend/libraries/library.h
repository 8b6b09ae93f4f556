// Shared libraries opened at run time: one search for drivers and compilers, which remembers the places that it tried.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/environment.h"

namespace heddle::libraries {

/// An open library. Copies mean the same one. It is never closed: drivers and compilers leave threads and exit handlers
/// behind that must not lose their code.
class Library {
 public:
  Library() = default;
  Library(void* handle, std::string path) : handle_(handle), path_(std::move(path)) {}

  /// Null when the library has no such symbol.
  void* symbol(const char* name) const;
  /// Sets `function` to the symbol; false, and null, when there is none.
  template <class Function>
  bool find(Function*& function, const char* name) const {
    function = reinterpret_cast<Function*>(symbol(name));
    return function != nullptr;
  }
  bool is_open() const { return handle_ != nullptr; }
  /// The file that the loader took.
  const std::string& path() const { return path_; }

 private:
  void* handle_ = nullptr;
  std::string path_;
};

struct LibrarySearch {
  std::string what;                            // "NVRTC": how the sentences call it
  base::Option option;                         // where it is set, nothing else is tried
  std::vector<std::string> names;              // file names, the best first: "libnvrtc.so.13", "libnvrtc.so.12"
  std::vector<std::filesystem::path> folders;  // looked into after the loader's own path, in order
  std::vector<std::string> second_names{};     // tried in every place once no place had one of `names`
  std::vector<std::string> old_names{};        // never taken; looked for where nothing serves, to tell of them
};

/// Empty when the library will do; else why not: "is version 11.8; 12.0 is the oldest accepted".
using LibraryCheck = std::function<std::string(const Library&)>;

/// The first library that opens and passes `check`: the option's (a file, or a folder with one of the names), else each
/// name on the loader's path, else each name in each folder. Throws Error(unsupported) with a sentence that lists the
/// places and, for each library found there, the check's words, or the loader's if it does not open.
Library open_library(const LibrarySearch& search, const LibraryCheck& check);

/// Opens a library that belongs to `of`: beside that file, else on the loader's path. Returns a library without symbols
/// if there is none.
Library open_companion(const Library& of, const std::string& name);

/// The folders that the loader looks into by itself, but those of its cache.
std::vector<std::filesystem::path> loader_folders();

/// Where CUDA toolkits keep libraries: under CUDA_HOME, CUDA_PATH and /usr/local/cuda, whether they are there or not.
std::vector<std::filesystem::path> toolkit_folders();

/// Library folders of nvidia-* wheels in the Python installs that this process can see: the one that holds this
/// library, VIRTUAL_ENV, CONDA_PREFIX, that of the python3 of PATH, and the user's. Python is not run. `packages` are
/// folders below site-packages/nvidia, the best first ("cu13", "cuda_nvrtc"); only those that exist are listed.
std::vector<std::filesystem::path> wheel_folders(std::span<const std::string_view> packages);
/// Folders of other packages below site-packages ("torch/lib").
std::vector<std::filesystem::path> folders_of_packages(std::span<const std::string_view> folders);

}  // namespace heddle::libraries
