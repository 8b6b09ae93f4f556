#include "fake_nccl.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/nccl/nccl.h"

namespace heddle::cuda {
namespace {

constexpr ncclResult_t kInvalidArgument = 4, kInvalidUsage = 5;

FakeNccl state;
std::mutex mutex;

int setting(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoi(text);
}

/// A communicator as all of its ranks see it, with the bytes that one rank gave for another one, in order.
struct World {
  int size = 0, joined = 0;
  std::map<std::pair<int, int>, std::deque<std::string>> sent;  // by (from, to)
};

}  // namespace

struct Awaited {
  void* to;
  std::size_t bytes;
  int from;
};

struct FakeComm {
  std::shared_ptr<World> world;
  int rank = 0;
  std::vector<Awaited> awaited;
};

namespace {

std::map<std::string, std::shared_ptr<World>> worlds;
thread_local int open_groups = 0;
thread_local std::vector<FakeComm*> in_group;

FakeComm* of(ncclComm_t comm) { return reinterpret_cast<FakeComm*>(comm); }

/// Copies what has come. The mutex is held.
void progress(FakeComm& comm) {
  std::erase_if(comm.awaited, [&](const Awaited& one) {
    std::deque<std::string>& pieces = comm.world->sent[{one.from, comm.rank}];
    if (pieces.empty()) return false;
    // NCCL would hang, or write past the end; here the bytes are the shorter ones'.
    std::memcpy(one.to, pieces.front().data(), std::min(one.bytes, pieces.front().size()));
    state.bytes += static_cast<long long>(pieces.front().size());
    pieces.pop_front();
    return true;
  });
}

}  // namespace

extern "C" {

const FakeNccl* fake_nccl() { return &state; }
#ifdef FAKE_LACKS_A_FUNCTION
#define ncclRecv ncclRecvUnderAnotherName
#endif
#define HEDDLE_NCCL_FUNCTION(member, parameters) ncclResult_t nccl##member parameters;
#include "backend/cuda/nccl/nccl_functions.def"
#undef HEDDLE_NCCL_FUNCTION

ncclResult_t ncclGetVersion(int* version) {
  *version = setting("FAKE_NCCL_VERSION", 22809);
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == kInvalidUsage ? "invalid usage" : result == 6 ? "remote process exited" : "an error";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> ids{0};
  const std::string text = "id " + std::to_string(++ids);
  std::memset(id, 0, sizeof *id);
  std::memcpy(id->internal, text.data(), text.size());
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  if (config->magic != 0xcafebeef || config->size < 20 || config->blocking != 0) return kInvalidArgument;
  const std::scoped_lock lock(mutex);
  std::shared_ptr<World>& world = worlds[std::string(id.internal, sizeof id.internal)];
  if (world == nullptr) world = std::make_shared<World>(World{ranks, 0, {}});
  ++world->joined;
  ++state.joined;
  auto* made = new FakeComm{world, rank, {}};
  *comm = reinterpret_cast<ncclComm_t>(made);
  return ncclInProgress;
}
ncclResult_t ncclCommFinalize(ncclComm_t) {
  ++state.finalized;
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  ++state.destroyed;
  delete of(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  ++state.aborted;
  delete of(comm);
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const std::scoped_lock lock(mutex);
  FakeComm& one = *of(comm);
  progress(one);
  *error = one.world->joined < one.world->size || !one.awaited.empty() ? ncclInProgress
                                                                       : setting("FAKE_NCCL_ERROR", ncclSuccess);
  return ncclSuccess;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = of(comm)->world->size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = of(comm)->rank;
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = of(comm)->rank % 2;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++open_groups;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  if (open_groups == 0) return kInvalidUsage;
  --open_groups;
  ++state.groups;
  const std::scoped_lock lock(mutex);
  bool waits = false;
  for (FakeComm* comm : in_group) {
    progress(*comm);
    waits = waits || !comm->awaited.empty();
  }
  in_group.clear();
  return waits ? ncclInProgress : ncclSuccess;
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      CUstream stream) {
  if (stream == nullptr) ++state.on_the_default_stream;
  if (open_groups == 0) ++state.outside_of_groups;
  const std::scoped_lock lock(mutex);
  FakeComm& one = *of(comm);
  if (type != ncclInt8 || count == 0 || peer < 0 || peer >= one.world->size) return kInvalidArgument;
  ++state.sends;
  one.world->sent[{one.rank, peer}].emplace_back(static_cast<const char*>(from), count);
  in_group.push_back(&one);
  return ncclSuccess;
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm, CUstream stream) {
  if (stream == nullptr) ++state.on_the_default_stream;
  if (open_groups == 0) ++state.outside_of_groups;
  const std::scoped_lock lock(mutex);
  FakeComm& one = *of(comm);
  if (type != ncclInt8 || count == 0 || peer < 0 || peer >= one.world->size) return kInvalidArgument;
  ++state.receives;
  one.awaited.push_back({to, count, peer});
  in_group.push_back(&one);
  return ncclSuccess;
}
}

}  // namespace heddle::cuda
