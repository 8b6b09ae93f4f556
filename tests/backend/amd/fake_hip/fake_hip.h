// A libamdhip64 without a GPU: HIP's module API over the simulator (tests/backend/amd/simulator). Kernels run when they
// are launched, all streams in the order of the calls; device memory is the simulator's, so that a host access to it
// crashes as with a GPU. Faults that the simulator finds do not stop a kernel; an access out of bounds makes the device
// unusable (hipErrorIllegalAddress from then on), as with a GPU.
//
// Environment variables:
//   FAKE_HIP_CHIP     the chip, gfx1100 by default
//   FAKE_HIP_DEVICES  how many there are, 2 by default; with 0, hipInit and hipGetDeviceCount answer as HIP without a
//   GPU FAKE_HIP_BYTES    memory of a device, 1 GiB by default FAKE_HIP_CUS      compute units that the HSA library
//   tells, 96 by default FAKE_HIP_FAILS    FUNCTION=CODE: this function does nothing and answers the code
//   FAKE_HIP_VERSION  what hipRuntimeGetVersion answers, 60000000 by default
//   FAKE_HIP_SKIPPED  devices that HSA lists before HIP's first one, 0 by default
//   FAKE_HIP_FILLS    a byte that new memory holds; by default nothing wrote it, and a kernel that reads it is at fault
//   FAKE_HIP_PRINTS   1: findings also go to stderr
#pragma once

#include <cstddef>

extern "C" {

/// Functions for tests, beside HIP's.

/// Faults that the simulator found in all launches since the last call: a line each, empty if none.
/// \returns the bytes of the text and its final zero; at most `size` of them are written
std::size_t fake_hip_take_findings(char* text, std::size_t size);
/// Launches since the process started.
std::size_t fake_hip_launches();
/// Bytes of device memory that were allocated and not freed.
std::size_t fake_hip_allocated();
/// Several threads of a launch may store to the same bytes of this allocation, which else is a finding.
/// \returns hipSuccess, or hipErrorInvalidValue if no allocation begins at `pointer`
int fake_hip_allow_rewrites(void* pointer);
/// From now on launches on the stream are recorded, and not run; null: no longer.
void fake_hip_capture(void* stream);
/// Runs what was recorded last, as a graph does.
void fake_hip_replay();
/// The order of waves between barriers (LaunchOptions::wave_order), for later launches.
void fake_hip_set_wave_order(unsigned long long order);
}
