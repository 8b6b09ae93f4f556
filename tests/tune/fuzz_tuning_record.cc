// The entry of the fuzzer for records of tuning on disk (tools/fuzz.py): HEDDLE_CACHE_DIR names a folder of its own.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "tune/tuning_record.h"

namespace {

const std::string kClass = "a class of problems";

/// A folder that no other process has. A process that ends without a finding removes it.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
    name += "/heddle_fuzz_tuning_XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) std::abort();
    path_ = name;
    ::setenv("HEDDLE_CACHE_DIR", name.c_str(), 1);
    std::string trouble;
    heddle::tune::store(kClass, {.times = {{"a kernel", 1e-3}}, .planned = "a kernel"}, trouble);
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      if (entry.path().extension() == ".json") record_ = entry.path();
    }
    if (record_.empty()) std::abort();
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  /// The one file of the folder, whose name is that of the class.
  const std::filesystem::path& record() const { return record_; }

 private:
  std::filesystem::path path_, record_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Folder folder;
  std::ofstream(folder.record(), std::ios::binary)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  std::string trouble;
  const auto record = heddle::tune::load(kClass, trouble);
  if (!record) {
    if (trouble.empty()) std::abort();
    return 0;
  }
  // A record that is taken comes back as it was.
  heddle::tune::store(kClass, *record, trouble);
  const auto again = heddle::tune::load(kClass, trouble);
  if (!again || !(*again == *record)) std::abort();
  return 0;
}
