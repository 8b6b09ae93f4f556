// A CUDA driver that is the machine's own but for its allocations: each has a mapping of its own between addresses that
// are not mapped, and is filled with 0xff. In turns an allocation begins and ends where its mapping does. A kernel that
// leaves its memory, or that a list of freed memory leads astray, then stops with an illegal access.
//
//   HEDDLE_CUDA_DRIVER=.../libguarding_cuda.so gpu_test ...
//
// All other functions are those of libcuda.so.1, which this library is linked against: a search for a symbol in it goes
// on there.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <map>
#include <mutex>

namespace {

using CUdeviceptr = unsigned long long;
using CUresult = int;

// The types are those of cuda.h.
struct CUmemLocation {
  int type = 1;  // a device
  int id = 0;
};
struct CUmemAllocationProp {
  int type = 1;  // pinned
  int requestedHandleTypes = 0;
  CUmemLocation location;
  void* win32HandleMetaData = nullptr;
  unsigned char allocFlags[8] = {};
};
struct CUmemAccessDesc {
  CUmemLocation location;
  int flags = 3;  // read and write
};

struct Guarded {
  CUdeviceptr reserved, mapped;
  std::size_t granule, bytes;  // of the mapping
  unsigned long long handle;
};

std::mutex mutex;
std::map<CUdeviceptr, Guarded> guarded;
std::atomic<unsigned> allocations = 0;

constexpr std::size_t round_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

extern "C" {

CUresult cuCtxGetDevice(int* device);
CUresult cuCtxSynchronize();
CUresult cuMemGetAllocationGranularity(std::size_t* granularity, const CUmemAllocationProp* prop, int option);
CUresult cuMemAddressReserve(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr wanted,
                             unsigned long long flags);
CUresult cuMemAddressFree(CUdeviceptr address, std::size_t bytes);
CUresult cuMemCreate(unsigned long long* handle, std::size_t bytes, const CUmemAllocationProp* prop,
                     unsigned long long flags);
CUresult cuMemRelease(unsigned long long handle);
CUresult cuMemMap(CUdeviceptr address, std::size_t bytes, std::size_t offset, unsigned long long handle,
                  unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr address, std::size_t bytes);
CUresult cuMemSetAccess(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count);
CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, std::size_t bytes);

CUresult cuMemAlloc_v2(CUdeviceptr* memory, std::size_t bytes) {
  if (bytes == 0) return 1;
  CUmemAllocationProp prop;
  CUmemAccessDesc access;
  Guarded made{};
  CUresult result = cuCtxGetDevice(&prop.location.id);
  access.location = prop.location;
  if (result == 0) result = cuMemGetAllocationGranularity(&made.granule, &prop, 0);
  if (result != 0) return result;
  made.bytes = round_up(bytes, made.granule);
  result = cuMemAddressReserve(&made.reserved, made.bytes + 2 * made.granule, made.granule, 0, 0);
  if (result != 0) return result;
  made.mapped = made.reserved + made.granule;
  result = cuMemCreate(&made.handle, made.bytes, &prop, 0);
  if (result == 0) result = cuMemMap(made.mapped, made.bytes, 0, made.handle, 0);
  if (result == 0) result = cuMemSetAccess(made.mapped, made.bytes, &access, 1);
  if (result == 0) result = cuMemsetD8_v2(made.mapped, 0xff, made.bytes);
  if (result == 0) result = cuCtxSynchronize();
  if (result != 0) return result;  // what is left over goes with the test
  constexpr std::size_t kAlignment = 256;
  const bool at_end = allocations++ % 2 == 0;
  *memory = made.mapped + (at_end ? made.bytes - round_up(bytes, kAlignment) : 0);
  const std::scoped_lock lock(mutex);
  guarded[*memory] = made;
  return 0;
}

CUresult cuMemFree_v2(CUdeviceptr memory) {
  Guarded made{};
  {
    const std::scoped_lock lock(mutex);
    const auto found = guarded.find(memory);
    if (found == guarded.end()) {
      using Free = CUresult (*)(CUdeviceptr);
      return reinterpret_cast<Free>(dlsym(RTLD_NEXT, "cuMemFree_v2"))(memory);
    }
    made = found->second;
    guarded.erase(found);
  }
  CUresult result = cuCtxSynchronize();  // as the driver's own does
  if (result == 0) result = cuMemUnmap(made.mapped, made.bytes);
  if (result == 0) result = cuMemRelease(made.handle);
  if (result == 0) result = cuMemAddressFree(made.reserved, made.bytes + 2 * made.granule);
  return result;
}

}  // extern "C"
