#include "backend/cuda/jit/nvrtc_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

namespace heddle::cuda::jit {
namespace {

Source source() {
  return {.name = "k",
          .text = "#include \"a.cuh\"\nkernel",
          .headers = {{"a.cuh", "int a;"}, {"b.cuh", "int b;"}},
          .architecture = "sm_90a",
          .options = {"-DX=1"}};
}

TEST(Key, HasThirtyTwoDigits) { EXPECT_THAT(key_of(source(), "NVRTC 13.0"), testing::MatchesRegex("[0-9a-f]{32}")); }

TEST(Key, OfEqualSourcesIsEqual) { EXPECT_EQ(key_of(source(), "NVRTC 13.0"), key_of(source(), "NVRTC 13.0")); }

TEST(Key, ChangesWithAllThatCounts) {
  const std::vector<std::function<void(Source&)>> changes{
      [](Source&) {},
      [](Source& s) { s.name = "l"; },
      [](Source& s) { s.text += " "; },
      [](Source& s) { s.headers[0].text = "int A;"; },
      [](Source& s) { s.architecture = "sm_90"; },
      [](Source& s) { s.options = {"-DX=2"}; },
      [](Source& s) {
        s.options = {"-DX=1", "-DY"};
      },
      [](Source& s) {
        s.options = {"-DX=", "1"};
      },
      [](Source& s) { s.options.clear(); },
      [](Source& s) { s.has_alternative = false; },
      [](Source& s) { s.bearable_spill_bytes = 8; },
  };
  std::set<std::string> keys{key_of(source(), "NVRTC 13.1")};
  for (const auto& change : changes) {
    Source changed = source();
    change(changed);
    EXPECT_TRUE(keys.insert(key_of(changed, "NVRTC 13.0")).second);
  }
}

TEST(Key, DoesNotChangeWithHeadersThatAreNotRead) {
  Source changed = source();
  changed.headers[1].text = "int B;";
  changed.headers.push_back({"c.cuh", "int c;"});
  EXPECT_EQ(key_of(changed, "NVRTC 13.0"), key_of(source(), "NVRTC 13.0"));
}

TEST(Options, HoldTheArchitectureAndEndWithTheSources) {
  const std::vector<std::string> options = options_of(source());
  EXPECT_EQ(options.front(), "--gpu-architecture=sm_90a");
  EXPECT_EQ(options.back(), "-DX=1");
}

}  // namespace
}  // namespace heddle::cuda::jit
