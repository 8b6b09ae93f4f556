#include "backend/jit/archive_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/file_path.h"
#include "heddle/error.h"

namespace heddle::jit {
namespace {

/// Closes a descriptor where opening an archive fails behind it.
class Open {
 public:
  explicit Open(int descriptor) : descriptor_(descriptor) {}
  ~Open() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Open(const Open&) = delete;
  Open& operator=(const Open&) = delete;
  void keep() { descriptor_ = -1; }

 private:
  int descriptor_;
};

/// Does not wait: a pipe may stand there.
int opened(const std::filesystem::path& path) {
  base::refuse_cut_path(path);
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

}  // namespace

std::string_view archive_version() { return HEDDLE_VERSION; }

ArchiveFile::ArchiveFile(const std::filesystem::path& path, bool any_version)
    : path_(path.string()), descriptor_(opened(path)) {
  if (descriptor_ < 0) refuse(fmt::format("cannot be opened: {}", std::strerror(errno)));
  Open open(descriptor_);
  struct stat status {};
  if (::fstat(descriptor_, &status) != 0) refuse(fmt::format("cannot be read: {}", std::strerror(errno)));
  if (!S_ISREG(status.st_mode)) refuse("is no regular file");
  const auto size = static_cast<std::uint64_t>(status.st_size);
  std::string why;
  const auto head = head_bytes(read(0, std::min<std::uint64_t>(size, kArchiveStart)), size, why);
  if (!head) refuse(why);
  auto decoded = decode_head(read(0, *head), size, why);
  if (!decoded) refuse(why);
  head_ = std::move(*decoded);
  if (!any_version && head_.version != archive_version()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the archive {} was written by heddle {}; this is heddle {}, whose kernels are others: "
                            "write it again with `heddle aot`",
                            path_, head_.version, archive_version()));
  }
  open.keep();
}

ArchiveFile::~ArchiveFile() { ::close(descriptor_); }

void ArchiveFile::refuse(const std::string& why) const {
  throw Error(ErrorCode::io,
              fmt::format("the archive {} {}; a whole file that `heddle aot` wrote is accepted", path_, why));
}

std::vector<char> ArchiveFile::read(std::uint64_t offset, std::uint64_t size) const {
  std::vector<char> bytes(size);
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t got =
        ::pread(descriptor_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(fmt::format("cannot be read: {}", std::strerror(errno)));
    if (got == 0) refuse("became shorter while it was open");
    done += static_cast<std::size_t>(got);
  }
  return bytes;
}

const ArchiveHead::Entry* ArchiveFile::find(std::string_view key) const {
  const auto found = std::ranges::lower_bound(head_.entries, key, {}, &ArchiveHead::Entry::key);
  return found != head_.entries.end() && found->key == key ? &*found : nullptr;
}

Record ArchiveFile::load(const ArchiveHead::Entry& entry) const {
  std::string why;
  std::optional<Record> record = decode(entry.key, read(entry.offset, entry.size), why);
  if (!record) refuse(fmt::format("is damaged: its kernel '{}' {}", entry.name, why));
  record->code.from = MachineCode::From::archive;
  record->code.compiler = entry.compiler;
  return std::move(*record);
}

}  // namespace heddle::jit
