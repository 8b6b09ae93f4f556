// The entry of the fuzzer for records of tuning on disk (tools/fuzz.py): HEDDLE_CACHE_DIR names a folder of its own.
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "tune/tuning_record.h"

namespace {

const std::string kClass = "a class of problems";

/// The one file of the folder, whose name is that of the class.
std::filesystem::path record_file() {
  static const std::filesystem::path file = [] {
    const std::string memory = std::filesystem::exists("/dev/shm") ? "/dev/shm" : "/tmp";
    const std::string folder = memory + "/heddle_fuzz_tuning_" + std::to_string(::getpid());
    ::setenv("HEDDLE_CACHE_DIR", folder.c_str(), 1);
    std::string trouble;
    heddle::tune::store(kClass, {.times = {{"a kernel", 1e-3}}, .planned = "a kernel"}, trouble);
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      if (entry.path().extension() == ".json") return entry.path();
    }
    std::abort();
  }();
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::ofstream(record_file(), std::ios::binary)
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
