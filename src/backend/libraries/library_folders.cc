// Where drivers and compilers of GPUs stand when they are not on the loader's path.
#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>

#include "backend/libraries/library.h"
#include "base/folder.h"

namespace heddle::libraries {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

void add_once(std::vector<fs::path>& paths, const fs::path& path) {
  if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
}

/// PREFIX/lib/python3.*/{site,dist}-packages, and Debian's PREFIX/lib/python3/dist-packages.
void add_packages_of(std::vector<fs::path>& packages, const fs::path& prefix) {
  std::vector<fs::path> versions;
  for (const std::string& name : base::names_in(prefix / "lib")) {
    if (name.starts_with("python3")) versions.push_back(prefix / "lib" / name);
  }
  std::sort(versions.begin(), versions.end());
  for (const fs::path& version : versions) {
    for (const char* name : {"site-packages", "dist-packages"}) {
      if (is_folder(version / name)) add_once(packages, version / name);
    }
  }
}

/// The folder of Python packages that this very library was installed into, if any.
fs::path own_packages() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&own_packages), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code ignored;
  for (fs::path folder = fs::absolute(info.dli_fname, ignored).parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    const std::string name = folder.filename().string();
    if (name == "site-packages" || name == "dist-packages") return folder;
  }
  return {};
}

/// The prefixes of the python3 that a shell would start: PREFIX/bin/python3, as it stands in PATH (a virtual
/// environment's is a link) and where its links lead.
void add_prefixes_of_path(std::vector<fs::path>& prefixes) {
  const std::string path = variable("PATH");
  for (std::size_t begin = 0; begin <= path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    const fs::path program = fs::path(path.substr(begin, end - begin)) / "python3";
    begin = end + 1;
    std::error_code error;
    if (!program.is_absolute() || !fs::exists(program, error)) continue;
    add_once(prefixes, program.parent_path().parent_path());
    const fs::path real = fs::canonical(program, error);
    if (!error) add_once(prefixes, real.parent_path().parent_path());
    return;
  }
}

}  // namespace

std::vector<fs::path> loader_folders() {
  void* program = dlopen(nullptr, RTLD_NOW);
  Dl_serinfo header{};
  if (program == nullptr || dlinfo(program, RTLD_DI_SERINFOSIZE, &header) != 0) return {};
  // The list grows past the struct's end, into bytes of ours.
  std::vector<std::max_align_t> memory(header.dls_size / sizeof(std::max_align_t) + 1);
  Dl_serinfo& list = *new (memory.data()) Dl_serinfo(header);
  std::vector<fs::path> folders;
  if (dlinfo(program, RTLD_DI_SERINFO, &list) != 0) return {};
  const Dl_serpath* paths = list.dls_serpath;
  for (unsigned i = 0; i < list.dls_cnt; ++i) add_once(folders, paths[i].dls_name);
  return folders;
}

std::vector<fs::path> toolkit_folders() {
  std::vector<fs::path> folders;
  for (const fs::path root : {variable("CUDA_HOME"), variable("CUDA_PATH"), std::string("/usr/local/cuda")}) {
    if (root.empty()) continue;
    for (const char* name : {"lib64", "lib"}) add_once(folders, root / name);
  }
  return folders;
}

std::vector<fs::path> wheel_folders(std::span<const std::string_view> packages) {
  std::vector<std::string> folders;
  for (const std::string_view package : packages) folders.push_back("nvidia/" + std::string(package) + "/lib");
  const std::vector<std::string_view> views(folders.begin(), folders.end());
  return folders_of_packages(views);
}

std::vector<fs::path> folders_of_packages(std::span<const std::string_view> wanted) {
  std::vector<fs::path> prefixes;
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    if (const std::string prefix = variable(name); !prefix.empty()) add_once(prefixes, prefix);
  }
  add_prefixes_of_path(prefixes);
  add_once(prefixes, "/usr/local");  // where pip of Debian's /usr/bin/python3 installs
  if (const std::string home = variable("HOME"); !home.empty()) add_once(prefixes, fs::path(home) / ".local");

  std::vector<fs::path> sites;
  if (const fs::path own = own_packages(); !own.empty()) sites.push_back(own);
  for (const fs::path& prefix : prefixes) add_packages_of(sites, prefix);

  std::vector<fs::path> folders;
  for (const fs::path& site : sites) {
    for (const std::string_view name : wanted) {
      const fs::path folder = site / name;
      if (is_folder(folder)) add_once(folders, folder);
    }
  }
  return folders;
}

}  // namespace heddle::libraries
