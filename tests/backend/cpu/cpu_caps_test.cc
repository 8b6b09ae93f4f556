// The size of the cache that cores share, as Linux describes it.
#include "backend/cpu/cpu_caps.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

/// A folder of caches, removed at the end.
class Caches {
 public:
  Caches() : folder_(fs::temp_directory_path() / ("heddle-caches-" + std::to_string(getpid()))) {}
  ~Caches() { fs::remove_all(folder_); }
  Caches(const Caches&) = delete;
  Caches& operator=(const Caches&) = delete;

  void add(const std::string& index, const std::string& level, const std::string& size) {
    fs::create_directories(folder_ / index);
    std::ofstream(folder_ / index / "level") << level << '\n';
    std::ofstream(folder_ / index / "size") << size << '\n';
  }
  std::int64_t l3_bytes() const { return cpu::l3_bytes_in(folder_.string() + "/"); }

 private:
  fs::path folder_;
};

TEST(CpuCaps, TakeTheCacheOfLevel3) {
  Caches caches;
  EXPECT_EQ(caches.l3_bytes(), 0);
  caches.add("index0", "1", "32K");
  caches.add("index2", "2", "1024K");
  EXPECT_EQ(caches.l3_bytes(), 0);
  caches.add("index3", "3", "32768K");
  EXPECT_EQ(caches.l3_bytes(), 32 << 20);
  caches.add("index3", "3", "96M");
  EXPECT_EQ(caches.l3_bytes(), 96 << 20);
  for (const char* odd : {"", "K", "-3K", "12", "7X"}) {
    caches.add("index3", "3", odd);
    EXPECT_EQ(caches.l3_bytes(), 0) << odd;
  }
}

TEST(CpuCaps, HaveCoresAndCaches) {
  const device::Caps& caps = cpu::cpu_caps();
  EXPECT_GE(caps.cores, 1);
  EXPECT_GT(caps.l1_bytes, 0);
  EXPECT_GE(caps.l2_bytes, caps.l1_bytes);
  EXPECT_GE(caps.l3_bytes, 0);
}

}  // namespace
}  // namespace heddle::test
