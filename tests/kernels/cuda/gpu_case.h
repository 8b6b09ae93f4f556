// Attention cases in the memory of a GPU, of CUDA's or of AMD's, poisoned around and between the elements as on the
// host, and streams to run them.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/driver/cuda_objects.h"
#include "backend/gpu/gpu.h"
#include "engine/attention_case.h"

namespace heddle::test {

inline constexpr Device kGpu = {DeviceKind::cuda, 0};

/// Why the tests of the cuda backend cannot run here: a sentence. Empty when they can, or when HEDDLE_TEST_BACKEND=cpu
/// sends the same cases through the CPU.
std::string gpu_missing();
/// The backend of these tests: cuda unless HEDDLE_TEST_BACKEND names another.
BackendChoice gpu_backend();
/// The first device of that backend: kGpu, or rocm:0. The CPU where the cases run there.
Device device_under_test();

/// The forward's family that HEDDLE_FAMILY names, if it is not forward_sm90, whose tiles the cases ask for; else empty.
std::string other_family();

/// A stream of CUDA's that waits for no other. Null elsewhere: the default one.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cuda::CUstream handle() const { return handle_; }
  void wait() const;

 private:
  cuda::CUstream handle_ = nullptr;
};

/// A device's copy of a guarded tensor: 0xff before and behind what the elements span.
class DeviceTensor {
 public:
  /// `shift`: bytes between a multiple of 256 and the first one spanned.
  DeviceTensor(const GuardedTensor& host, std::int64_t shift);
  TensorView view() const;
  /// Copies the host's memory, elements and gaps, with 0xff around it.
  void upload();
  /// To the host's tensor; expects 0xff around it.
  void download();

 private:
  GuardedTensor host_;
  std::int64_t begin_;  // of the span, in memory_
  gpu::Memory memory_;
};

/// A case and its copy on the first GPU; on the host alone where the cases run on the CPU.
class GpuCase {
 public:
  explicit GpuCase(const CaseSpec& spec);

  AttentionCase& host() { return host_; }
  AttentionOptions& options() { return host_.options(); }
  AttentionTensors tensors() const;
  /// The host's, with the captures, sinks and descale factors where the tensors are; device_lengths: lengths,
  /// cu_seqlens and starts too, with the true maxima of packed ones, and of some others.
  AttentionOptions options_there();
  /// For any plan of the CUDA backend, of arbitrary content. Null where the case runs on the CPU.
  void* workspace() const { return workspace_ ? workspace_->data() : nullptr; }
  /// The workspace, enlarged to at least `bytes` bytes: plans with lengths on the device ask for more.
  void* workspace(std::int64_t bytes);
  void upload();
  void download();

  /// Plans, uploads, runs on a stream of its own, downloads. If HEDDLE_FAMILY names another family of the forward than
  /// forward_sm90, the case's tile is dropped, and what that family refuses is not run: printed, counted, and false.
  bool run();
  /// run(), and expects everything that each run owes.
  void run_and_judge();

 private:
  std::optional<AttentionPlan> planned_here();
  void run_kernel(BlockSize tile);
  void place_lengths(AttentionOptions& there);
  void place_sinks(ConstTensorView& sinks);

  AttentionCase host_;
  std::vector<std::unique_ptr<DeviceTensor>>
      copies_;  // of q, k, v, o, lse, and of max_scores and lse_rest if asked for
  std::optional<gpu::Memory> workspace_;
  std::vector<Tensor> copies_of_small_;
};

/// Cases of this process until now.
struct AskedKernels {
  int asked;     // for a kernel of some tile
  int refused;   // of these: took another one, since the compiler refused that
  int dropped;   // of these: took one of another family, which HEDDLE_FAMILY names
  int planned;   // were planned without a tile
  int left_out;  // of these: that other family refused, so they did not run
};
AskedKernels asked_kernels();

/// Calls body(i) for each i below `count` that is this process's (HEDDLE_TEST_PART), on as many threads as there are
/// cores, 16 at most. An exception is a failure of its case.
void side_by_side(std::size_t count, const std::function<void(std::size_t)>& body);
/// Calls body(spec) for each spec, side by side; failures come with the spec's text.
void for_each_spec(const std::vector<CaseSpec>& specs, const std::function<void(const CaseSpec&)>& body);

}  // namespace heddle::test
