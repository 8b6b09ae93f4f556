#include "files/byte_source.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "base/file_path.h"
#include "base/uninterrupted.h"

namespace heddle::files {
namespace {

Error cannot_read(const std::filesystem::path& path, const std::string& what) {
  return {ErrorCode::io, "cannot read " + path.string() + ": " + what};
}

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

FileSource::Opened FileSource::open(const std::filesystem::path& path) {
  base::refuse_cut_path(path);
  // Not blocking, because opening a named pipe would wait for its writer.
  const int descriptor = base::uninterrupted([&] { return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  if (descriptor < 0) throw cannot_read(path, reason(errno));
  struct stat status {};
  const bool known = ::fstat(descriptor, &status) == 0;
  if (!known || !S_ISREG(status.st_mode)) {
    const std::string what = known ? "it is not a regular file" : reason(errno);
    ::close(descriptor);
    throw cannot_read(path, what);
  }
  return {descriptor, static_cast<std::uint64_t>(status.st_size)};
}

FileSource::FileSource(const std::filesystem::path& path) : FileSource(path, open(path)) {}

FileSource::FileSource(const std::filesystem::path& path, Opened opened)
    : ByteSource(path.string(), opened.size), descriptor_(opened.descriptor) {}

FileSource::~FileSource() { ::close(descriptor_); }

void FileSource::read(std::uint64_t offset, std::span<std::byte> to) const {
  while (!to.empty()) {
    const ssize_t got =
        base::uninterrupted([&] { return ::pread(descriptor_, to.data(), to.size(), static_cast<off_t>(offset)); });
    if (got < 0) throw error(reason(errno));
    if (got == 0) throw error("it became shorter while it was read");
    offset += static_cast<std::uint64_t>(got);
    to = to.subspan(static_cast<std::size_t>(got));
  }
}

void MemorySource::read(std::uint64_t offset, std::span<std::byte> to) const {
  std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), to.size(), to.begin());
}

}  // namespace heddle::files
