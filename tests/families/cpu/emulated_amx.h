// For tests of what AMX computes, on machines without it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>

#include "backend/cpu/cpu_caps.h"

namespace heddle {

/// Before the library reads it. A machine with AMX runs the tests with HEDDLE_CPU_AMX=auto, too.
inline const int kEmulated = setenv("HEDDLE_CPU_AMX", "emulated", 0);

class WithBricks : public testing::Test {
 protected:
  void SetUp() override {
    if (cpu::cpu_caps().matrix_unit == device::MatrixUnit::none) GTEST_SKIP() << "the kernel needs AVX-512";
  }
};

}  // namespace heddle
