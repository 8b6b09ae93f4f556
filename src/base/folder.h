// A folder of files that come and go whole: what kernels on disk, records of tuning and dumps are written with.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace heddle::base {

/// An open folder. Functions that fail say why in a sentence's end: "cannot be written: No space left on device".
class Folder {
 public:
  enum class Whose : std::uint8_t {
    mine,  // this user's, and writable for no one else, its files too; new folders have mode 0700, new files 0600
    any,
  };
  /// Opens the folder, and makes it and its parents if they are missing. A symbolic link that another user laid is
  /// refused.
  static std::optional<Folder> open(const std::filesystem::path& path, Whose whose, std::string& why);
  ~Folder();
  Folder(Folder&& other) noexcept;
  Folder& operator=(Folder&&) = delete;

  /// A file's bytes, and marks it as used now; links are not followed. Nothing and an empty `why`: there is none.
  std::optional<std::vector<char>> read(const std::string& name, std::string& why) const;
  /// The file appears, or replaces the old one, when it is whole.
  bool write(const std::string& name, std::span<const char> bytes, std::string& why) const;
  void remove(const std::string& name) const;

  struct Entry {
    std::string name;
    std::int64_t bytes;
    // Since it was used. A time that is more than an hour ahead tells nothing, since the clock was set back: such a
    // file counts as older than all others.
    std::int64_t age_ns;
  };
  /// The folder's regular files.
  std::vector<Entry> entries() const;
  /// Removes what processes left behind that died in write(), once it is an hour old.
  void remove_left_behind() const;

 private:
  Folder(int descriptor, Whose whose) : descriptor_(descriptor), whose_(whose) {}
  int descriptor_;
  Whose whose_;
};

/// The names in a folder but for "." and ".."; none if it cannot be read. The iterators of std::filesystem end the
/// process where memory is out.
std::vector<std::string> names_in(const std::filesystem::path& folder);

/// Where what is worth keeping between processes stands: HEDDLE_CACHE_DIR, else heddle in XDG_CACHE_HOME, else in
/// ~/.cache; empty: nowhere. It need not be there.
std::filesystem::path cache_folder();

}  // namespace heddle::base
