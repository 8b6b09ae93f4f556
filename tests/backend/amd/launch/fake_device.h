// A process whose AMD GPU is the fake one, with the fake hipRTC: the chip that FAKE_HIP_CHIP names.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "backend/amd/fake_hip/fake_library.h"

namespace heddle::amd {

/// Sets what the library reads at the first use of HIP. A variable that is set stays.
inline void use_fake_device() {
  ::setenv("HEDDLE_HIP", FAKE_HIP, 0);
  ::setenv("HEDDLE_HIPRTC", FAKE_HIPRTC, 0);
  ::setenv("HEDDLE_CACHE_DIR", AMD_CACHE, 0);
  ::setenv("HEDDLE_FAMILY", "forward_mma", 0);
  ::setenv("HEDDLE_TEST_BACKEND", "amd", 0);
  ::setenv("FAKE_HIP_CHIP", "gfx1100", 0);
}

inline std::string chip() { return std::getenv("FAKE_HIP_CHIP"); }

/// A test that leaves nothing wrong behind in what ran on the fake device.
class FakeDeviceTest : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(take_findings(), ""); }

 private:
  bool used_ = (use_fake_device(), true);
};

}  // namespace heddle::amd
