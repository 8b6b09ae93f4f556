#include "base/profiler_range.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "scoped_environment.h"

namespace heddle::base {
namespace {

/// Ranges in a process of its own, since a profiler is looked for once. Prints what the fake one has seen, and exits.
[[noreturn]] void ranges_under(const char* library) {
  const ScopedVariable variable("NVTX_INJECTION64_PATH", library);
  {
    const ProfilerRange outer("outer");
    const ProfilerRange inner("inner");
  }
  const ProfilerRange last("last");
  void* fake = ::dlopen(FAKE_PROFILER, RTLD_LAZY);
  const auto seen = reinterpret_cast<const char* (*)()>(::dlsym(fake, "fake_profiler_seen"));
  std::fprintf(stderr, "<%s>", seen());
  std::_Exit(profiler == Profiler::listens ? 1 : 0);
}

class ProfilerRanges : public testing::Test {
 protected:
  ProfilerRanges() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(ProfilerRanges, AreToldToTheProfiler) {
  EXPECT_EXIT(ranges_under(FAKE_PROFILER), testing::ExitedWithCode(1), "<\\(outer\\(inner\\)\\)\\(last>");
}

TEST_F(ProfilerRanges, AreNothingWithoutOne) {
  for (const char* library : {"", "/no/such/library.so", "libm.so.6"}) {
    EXPECT_EXIT(ranges_under(library), testing::ExitedWithCode(0), "<>");
  }
}

}  // namespace
}  // namespace heddle::base
