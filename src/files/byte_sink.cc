#include "files/byte_sink.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <system_error>

#include "base/file_path.h"
#include "base/uninterrupted.h"
#include "heddle/error.h"

namespace heddle::files {
namespace {

Error cannot_write(const std::filesystem::path& path, const std::string& what) {
  return {ErrorCode::io, fmt::format("cannot write {}: {}", path.string(), what)};
}

/// Short, so that it fits wherever the target's own name does.
std::filesystem::path temporary_beside(const std::filesystem::path& target) {
  static std::atomic<unsigned> counter{0};
  return target.parent_path() / fmt::format(".heddle-{}-{}.tmp", ::getpid(), counter++);
}

/// Opens a file without a name in the folder of `target`; it vanishes with the process, however that ends. -1 if the
/// file system has no such files, or could not name one later.
int unnamed_beside(const std::filesystem::path& target) {
  if (::access("/proc/self/fd", X_OK) != 0) return -1;
  const std::filesystem::path folder = target.has_parent_path() ? target.parent_path() : ".";
  return base::uninterrupted([&] { return ::open(folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0666); });
}

/// The end of a chain of symbolic links, whether it exists or not: the rename would replace a link that dangles.
std::filesystem::path behind_links(const std::filesystem::path& path) {
  base::refuse_cut_path(path);
  constexpr int kMost = 40;  // Linux follows as many
  std::filesystem::path target = path;
  for (int i = 0; i < kMost; ++i) {
    std::error_code error;
    if (!std::filesystem::is_symlink(target, error)) return target;
    target = target.parent_path() / std::filesystem::read_symlink(target, error);
    if (error) throw cannot_write(path, error.message());
  }
  throw cannot_write(path, std::generic_category().message(ELOOP));
}

}  // namespace

template <class F>
void ReplacingFile::name_by(F&& make) {
  do {
    temporary_ = temporary_beside(target_);
    if (make() >= 0) return;
  } while (errno == EEXIST);
  const int error = errno;
  temporary_.clear();
  fail(error);
}

ReplacingFile::ReplacingFile(const std::filesystem::path& path) : path_(path), target_(behind_links(path)) {
  // This looks at the path itself, not at target_: /dev/stdout leads to a pipe through a link that names no place.
  struct stat old {};
  const bool exists = ::stat(path_.c_str(), &old) == 0;
  if (exists && S_ISDIR(old.st_mode)) throw cannot_write(path_, "it is a directory");
  if (exists && (S_ISCHR(old.st_mode) || S_ISFIFO(old.st_mode))) {
    descriptor_ = base::uninterrupted([this] { return ::open(path_.c_str(), O_WRONLY | O_CLOEXEC); });
    if (descriptor_ < 0) fail(errno);
    return;
  }
  if (exists && !S_ISREG(old.st_mode)) throw cannot_write(path_, "it is not a regular file");
  std::error_code ignored;
  // An open file that was removed, through its link below /proc: the link's text names no place either.
  if (exists && !std::filesystem::exists(target_, ignored)) throw cannot_write(path_, "its file was removed");
  // The rename would replace a file that its owner has protected.
  if (exists && ::faccessat(AT_FDCWD, target_.c_str(), W_OK, AT_EACCESS) != 0) fail(errno);
  if (!target_.has_filename()) throw cannot_write(path_, "it names no file");
  replaces_ = true;
  descriptor_ = unnamed_beside(target_);
  if (descriptor_ < 0) {
    const auto make = [this] { return ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666); };
    name_by([&] { return descriptor_ = base::uninterrupted(make); });
  }
  if (exists) ::fchmod(descriptor_, old.st_mode & 0777);
}

ReplacingFile::~ReplacingFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void ReplacingFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = base::uninterrupted([&] { return ::write(descriptor_, bytes.data(), bytes.size()); });
    if (written < 0) fail(errno);
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

void ReplacingFile::commit() {
  if (replaces_ && base::uninterrupted([this] { return ::fsync(descriptor_); }) != 0) fail(errno);
  if (replaces_ && temporary_.empty()) {
    const std::string descriptor = fmt::format("/proc/self/fd/{}", descriptor_);
    name_by([&] { return ::linkat(AT_FDCWD, descriptor.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW); });
  }
  const int closed = ::close(descriptor_);
  descriptor_ = -1;
  if (closed != 0 && errno != EINTR) fail(errno);  // interrupted, it is closed, and the disk has its bytes
  if (!replaces_) return;
  if (::rename(temporary_.c_str(), target_.c_str()) != 0) fail(errno);
  temporary_.clear();
}

void ReplacingFile::fail(int error) const { throw cannot_write(path_, std::generic_category().message(error)); }

}  // namespace heddle::files
