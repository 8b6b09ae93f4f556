#include "base/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string_view>
#include <utility>

#include "base/environment.h"
#include "base/uninterrupted.h"

namespace heddle::base {
namespace {

constexpr std::int64_t kLargestFile = std::int64_t{1} << 30;
constexpr const char* kTemporaryPrefix = ".writing-";
constexpr std::int64_t kHourNs = std::int64_t{3600} * 1'000'000'000;
constexpr std::int64_t kUnknownAge = std::numeric_limits<std::int64_t>::max();

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string words(int error) { return std::strerror(error); }

/// An open file, closed with this object.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) ::close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return value_; }
  int release() { return std::exchange(value_, -1); }
  bool close() { return ::close(release()) == 0; }

 private:
  int value_;
};

/// mkdir -p; 0, or the error.
int make_folders(const std::filesystem::path& path, mode_t mode) {
  std::filesystem::path so_far;
  int error = 0;
  for (const std::filesystem::path& part : path) {
    so_far /= part;
    error = ::mkdir(so_far.c_str(), mode) == 0 ? 0 : errno;
  }
  return error == EEXIST ? 0 : error;
}

bool laid_by_another(const std::filesystem::path& path) {
  struct stat status {};
  return ::lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode) && status.st_uid != ::geteuid() &&
         status.st_uid != 0;
}

/// openat, with the mode of a file that it makes; -1 and errno.
int opened(int folder, const char* name, int flags, mode_t mode = 0) {
  return uninterrupted([&] { return ::openat(folder, name, flags | O_CLOEXEC, mode); });
}

int open_folder(const std::filesystem::path& path) { return opened(AT_FDCWD, path.c_str(), O_RDONLY | O_DIRECTORY); }

/// Why an open file or folder cannot be trusted; empty if it can.
std::string not_mine(const struct stat& status) {
  if (status.st_uid != ::geteuid()) {
    return fmt::format("belongs to user {}, not to user {}", status.st_uid, ::geteuid());
  }
  if ((status.st_mode & 022) != 0) return fmt::format("others may write to it (mode {:o})", status.st_mode & 07777);
  return "";
}

/// An absolute folder; empty when the variable is not set. The XDG specification has relative ones ignored.
std::filesystem::path absolute_variable(const char* name) {
  const char* value = std::getenv(name);
  const std::filesystem::path path = value == nullptr ? "" : value;
  return path.is_absolute() ? path : std::filesystem::path();
}

bool write_all(int descriptor, std::span<const char> bytes) {
  while (!bytes.empty()) {
    const ssize_t written = uninterrupted([&] { return ::write(descriptor, bytes.data(), bytes.size()); });
    if (written < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
  return true;
}

bool read_all(int descriptor, std::span<char> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = uninterrupted([&] { return ::read(descriptor, bytes.data(), bytes.size()); });
    if (got == 0) errno = EIO;  // it was longer a moment ago
    if (got <= 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return true;
}

/// A name that no other process, thread or call has.
std::string temporary_name() {
  static std::atomic<std::uint64_t> calls{0};
  return fmt::format("{}{}-{}-{:08x}", kTemporaryPrefix, ::getpid(), calls++, std::random_device()());
}

}  // namespace

std::filesystem::path cache_folder() {
  if (const std::string chosen = value_of(Option::cache_dir); !chosen.empty()) {
    std::error_code error;
    const std::filesystem::path path = std::filesystem::absolute(chosen, error);
    return error ? std::filesystem::path() : path;
  }
  if (const auto xdg = absolute_variable("XDG_CACHE_HOME"); !xdg.empty()) return xdg / "heddle";
  if (const auto home = absolute_variable("HOME"); !home.empty()) return home / ".cache" / "heddle";
  return {};
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::opendir(folder.c_str()), ::closedir);
  std::vector<std::string> names;
  if (listing == nullptr) return names;
  while (const dirent* entry = ::readdir(listing.get())) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  return names;
}

std::optional<Folder> Folder::open(const std::filesystem::path& path, Whose whose, std::string& why) {
  const bool mine = whose == Whose::mine;
  if (mine && laid_by_another(path)) {
    why = "is a symbolic link of another user";
    return std::nullopt;
  }
  int descriptor = open_folder(path);
  if (descriptor < 0 && errno == ENOENT) {
    const int error = make_folders(path, mine ? 0700 : 0777);
    if (error == 0) descriptor = open_folder(path);
    if (error != 0) errno = error;
  }
  if (descriptor < 0) {
    why = "cannot be used: " + words(errno);
    return std::nullopt;
  }
  Folder folder(descriptor, whose);
  struct stat status {};
  if (mine && ::fstat(descriptor, &status) != 0) why = "cannot be used: " + words(errno);
  if (mine && why.empty()) why = not_mine(status);
  if (!why.empty()) return std::nullopt;
  return folder;
}

Folder::~Folder() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

Folder::Folder(Folder&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)), whose_(other.whose_) {}

std::optional<std::vector<char>> Folder::read(const std::string& name, std::string& why) const {
  // Without waiting: what stands there may be a pipe.
  const Descriptor file(opened(descriptor_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno != ENOENT) why = errno == ELOOP ? "is a symbolic link" : "cannot be read: " + words(errno);
    return std::nullopt;
  }
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) {
    why = "cannot be read: " + words(errno);
  } else if (!S_ISREG(status.st_mode)) {
    why = "is no regular file";
  } else if (whose_ == Whose::mine) {
    why = not_mine(status);
  }
  if (why.empty() && status.st_size > kLargestFile) why = fmt::format("is {} bytes long", status.st_size);
  if (!why.empty()) return std::nullopt;
  std::vector<char> bytes(static_cast<std::size_t>(status.st_size));
  if (!read_all(file.get(), bytes)) {
    why = "cannot be read: " + words(errno);
    return std::nullopt;
  }
  ::futimens(file.get(), nullptr);  // where the folder is read-only, files keep their times
  return bytes;
}

bool Folder::write(const std::string& name, std::span<const char> bytes, std::string& why) const {
  const std::string temporary = temporary_name();
  Descriptor file(opened(descriptor_, temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW,
                         whose_ == Whose::mine ? 0600 : 0666));
  if (file.get() < 0) {
    why = "cannot be written: " + words(errno);
    return false;
  }
  // A full disk may show when the file is closed only. Nothing is synced: what a crash leaves behind, readers detect.
  if (write_all(file.get(), bytes) && file.close() &&
      ::renameat(descriptor_, temporary.c_str(), descriptor_, name.c_str()) == 0) {
    return true;
  }
  const int error = errno;
  remove(temporary);
  why = "cannot be written: " + words(error);
  return false;
}

void Folder::remove_left_behind() const {
  for (const Entry& entry : entries()) {
    if (entry.name.starts_with(kTemporaryPrefix) && entry.age_ns > kHourNs) remove(entry.name);
  }
}

void Folder::remove(const std::string& name) const { ::unlinkat(descriptor_, name.c_str(), 0); }

std::vector<Folder::Entry> Folder::entries() const {
  std::vector<Entry> entries;
  Descriptor again(opened(descriptor_, ".", O_RDONLY | O_DIRECTORY));
  if (again.get() < 0) return entries;
  const std::unique_ptr<DIR, int (*)(DIR*)> listing(::fdopendir(again.get()), ::closedir);
  if (listing == nullptr) return entries;
  again.release();
  const std::int64_t now = now_ns();
  while (const dirent* entry = ::readdir(listing.get())) {
    struct stat status {};
    if (::fstatat(descriptor_, entry->d_name, &status, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(status.st_mode)) continue;
    const std::int64_t age = now - (std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec);
    entries.push_back({entry->d_name, status.st_size, age < -kHourNs ? kUnknownAge : age});
  }
  return entries;
}

}  // namespace heddle::base
