// A Communicator over NCCL, for ContextAttention on NVIDIA's GPUs. The library opens libnccl.so.2 at run time (the file
// or folder of HEDDLE_NCCL, else the loader's path, CUDA toolkits and nvidia-nccl wheels; 2.14 or newer) and needs none
// of its headers.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "heddle/context_parallel.h"

namespace heddle {

/// Identifies a group of ranks that join: an ncclUniqueId. One rank makes it, and sends the bytes to the others.
using NcclId = std::array<char, 128>;

/// Throws Error(unsupported) where there is no NCCL, with the reason.
NcclId make_nccl_id();
/// Empty if NCCL was found and is new enough; else the reason, a sentence. Never throws.
std::string nccl_missing();

/// The ranks of an NCCL communicator, each with a GPU of its own: processes, or threads of one process.
///
/// exchange() enqueues: all pieces of all ranks in one group of ncclSend and ncclRecv, the own piece as a copy. agree()
/// waits for the ranks; override it to compare in another way (over MPI, say).
///
/// All waits have a limit. If ranks do not answer within `timeout`, or NCCL reports an error, the call throws
/// Error(device). A communicator that this object made is aborted then, so that kernels which wait for other ranks end,
/// and each later call throws. The caller's communicator is left as it is.
class NcclCommunicator : public Communicator {
 public:
  static constexpr std::chrono::milliseconds kTimeout = std::chrono::minutes(10);

  /// Joins, with the same `id` and `size` on all ranks, on this CUDA device; waits for all of them. Throws
  /// invalid_argument for a rank or a device that is not there, Error(unsupported) where NCCL or the driver is missing.
  NcclCommunicator(const NcclId& id, std::int64_t rank, std::int64_t size, int device,
                   std::chrono::milliseconds timeout = kTimeout);
  /// Takes an ncclComm_t of the caller. The caller destroys it afterwards. If it was made blocking, NCCL's own calls
  /// may wait longer than `timeout`.
  explicit NcclCommunicator(void* comm, std::chrono::milliseconds timeout = kTimeout);
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  std::int64_t rank() const override;
  std::int64_t size() const override;
  Device device() const override;
  void exchange(const void* send, std::span<const std::int64_t> send_bytes, void* receive,
                std::span<const std::int64_t> receive_bytes, void* stream) override;
  bool agree(std::uint64_t number) override;

  /// Waits for the work enqueued on a stream, as cuStreamSynchronize does, up to the timeout. It detects a rank that is
  /// gone.
  void wait(void* stream) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace heddle
