// Kernels of the portable forward family, compiled by clang for an AMD chip and executed by the simulator.
#pragma once

#include <string>

#include "backend/amd/simulator/simulator.h"
#include "kernels/portable/host_kernel.h"

namespace heddle::test {

/// Compiles the kernel for the chip, runs it, and expects that nothing is wrong with it.
/// \throws std::runtime_error if it does not compile, or if the simulator lacks one of its instructions
amd::simulator::Report run_on_chip(const std::string& chip, const KernelLaunch& launch);

}  // namespace heddle::test
