// A test's view of the fake NCCL: a libnccl.so.2 whose ranks are threads of one process and whose device memory is the
// host's, as the fake driver's is. It copies what is sent once both sides have asked, counts the calls, and refuses
// what NCCL refuses. HEDDLE_NCCL points the library to it.
//
// Settings, read at each call (all optional):
//   FAKE_NCCL_VERSION  what ncclGetVersion says (22809)
//   FAKE_NCCL_ERROR    what CommGetAsyncError says once a communicator stands (0)
#pragma once

#include <dlfcn.h>

#include <atomic>

namespace heddle::cuda {

struct FakeNccl {
  std::atomic<int> joined, finalized, destroyed, aborted;  // communicators
  std::atomic<int> groups, sends, receives;
  std::atomic<int> outside_of_groups;      // sends and receives that could wait for each other
  std::atomic<int> on_the_default_stream;  // sends and receives
  std::atomic<long long> bytes;            // that were copied
};

/// The fake that this process has loaded; null when it has not.
inline const FakeNccl* fake_nccl(const char* path) {
  void* handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return nullptr;
  auto get = reinterpret_cast<const FakeNccl* (*)()>(dlsym(handle, "fake_nccl"));
  return get == nullptr ? nullptr : get();
}

}  // namespace heddle::cuda
