// A test's view of the fake CUDA driver: a libcuda.so.1 with host memory for device memory. It counts the calls, keeps
// the launches, and refuses what the real driver refuses. HEDDLE_CUDA_DRIVER points the library to it.
//
// Settings, read from the environment when it is loaded (all optional):
//   FAKE_CUDA_VERSION  what cuDriverGetVersion says (13000)
//   FAKE_CUDA_INIT     what cuInit returns (0)
//   FAKE_CUDA_DEVICES  how many devices there are (2)
//   FAKE_CUDA_BYTES    the memory of each (1 GiB)
#pragma once

#include <dlfcn.h>

#include <atomic>
#include <cstdint>

#include "backend/cuda/driver/cuda_abi.h"
#include "families/forward_sm90/shared/forward_sm90_params.h"
#include "shared/copied_rows.h"
#include "shared/sequences.h"
#include "shared/stored_mask.h"

namespace heddle::cuda {

/// The arguments of cuTensorMapEncodeTiled: the fake's maps hold nothing else. All is 0 where no map was made.
struct FakeTensorMap {
  std::uint64_t address = 0, extents[5]{}, strides[4]{};
  std::uint16_t box[5]{};
  std::uint8_t element_strides[5]{};
  std::uint8_t rank = 0, type = 0, interleave = 0, swizzle = 0, promotion = 0, fill = 0;
};
static_assert(sizeof(FakeTensorMap) <= sizeof(CUtensorMap));

/// One launch of forward_sm90.
struct FakeLaunch {
  int device;  // of the context that was current
  CUlaunchConfig config;
  FakeTensorMap maps[4];  // q, k, v, o
  shared::ForwardSm90Params params;
  FakeTensorMap streamed;  // a capture's panels
};
inline constexpr int kFakeLaunchesKept = 512;
inline constexpr int kFakeNamesKept = 64, kFakeNameBytes = 32;

/// One launch of place_sequences, list_tiles or, as both, place_and_list.
struct FakeSequencesLaunch {
  CUlaunchConfig config;
  int forwards;  // launches of forward_sm90 before it
  shared::SequencesParams params;
};

/// One launch of store_mask.
struct FakeStoredLaunch {
  CUlaunchConfig config;
  shared::StoredMaskParams params;
};

/// One launch of copy_rows.
struct FakeCopiesLaunch {
  CUlaunchConfig config;
  int forwards, placings;  // launches of forward_sm90 and of place_sequences before it
  shared::CopiedRowsParams params;
};

/// One step of a stream: a launch, an event to record, or one to wait for.
struct FakeStep {
  enum Kind : int { launch, record, wait } kind;
  int device;
  CUstream stream;
  CUevent event;              // of launches null
  char name[kFakeNameBytes];  // of the kernel
};
inline constexpr int kFakeStepsKept = 1024;

struct FakeDriver {
  std::atomic<int> inits, retains, pushes, pops;
  std::atomic<int> allocations, frees;         // that went well
  std::atomic<int> wrong_frees;                // of memory that is not there, or in another device's context
  std::atomic<int> modules, unloads;           // loaded, and unloaded in their device's context
  std::atomic<int> copies, synchronizes;       // and waits for a stream, an event or a context
  std::atomic<int> launches;                   // of any kernel; none of them does anything
  char names[kFakeNamesKept][kFakeNameBytes];  // of the latest: number n at n % kFakeNamesKept
  std::atomic<int> steps;                      // launches, and events recorded and waited for
  FakeStep stepped[kFakeStepsKept];            // number n at n % kFakeStepsKept
  std::atomic<int> last_shared_bytes;          // what max_dynamic_shared_size_bytes was set to
  std::atomic<int> after_the_end;              // calls that came after the driver had gone
  std::atomic<int> forwards;                   // launches of forward_sm90
  FakeLaunch launched[kFakeLaunchesKept];      // number n of them, from 0 on, at n % kFakeLaunchesKept
  std::atomic<int> placings, listings;         // launches of place_sequences and list_tiles; place_and_list: of both
  FakeSequencesLaunch placed, listed;          // the latest
  std::atomic<int> storings;                   // launches of store_mask
  FakeStoredLaunch stored;                     // the latest
  std::atomic<int> copyings;                   // launches of copy_rows
  FakeCopiesLaunch copied;                     // the latest
};

/// The fake that this process has loaded; null when it has not. From C: int fake_cuda_launches(void).
inline const FakeDriver* fake_driver(const char* path) {
  void* handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  auto get = reinterpret_cast<const FakeDriver* (*)()>(dlsym(handle, "fake_cuda_driver"));
  return get == nullptr ? nullptr : get();
}

}  // namespace heddle::cuda
