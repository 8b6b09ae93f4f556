#include "families/backward_sm90/backward_reads_launch.h"

#include <algorithm>
#include <bit>

#include "backend/cuda/launch/cuda_gpu.h"
#include "families/backward_sm90/backward_reads_text.h"
#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "plan/access/kernel_types.h"
#include "plan/tiles/backward_schedule.h"
#include "shared/backward_lists.h"

namespace heddle::backward_sm90 {
namespace {

using plan::BackwardReads;
using problem::AttentionProblem;
using shared::BackwardReadsParams;
using shared::ReadKind;
using shared::StorageType;

constexpr int kCtas = 1056;  // of kernels that walk elements: eight for each multiprocessor
constexpr std::int64_t kMostShares = 64;

Sequence longest(const AttentionProblem& problem) {
  Sequence most{};
  for (const Sequence& sequence : problem.sequences) {
    most.q_len = std::max(most.q_len, sequence.q_len);
    most.kv_len = std::max(most.kv_len, sequence.kv_len);
  }
  return most;
}

/// No read has more partials.
std::int64_t partials_of(const AttentionProblem& problem) {
  const Sequence most = longest(problem);
  return std::max<std::int64_t>(1, problem.batch * problem.q_heads * (most.q_len + most.kv_len));
}

std::int64_t all_keys(const AttentionProblem& problem) {
  return problem.packed ? problem.kv_rows : problem.batch * problem.kv_rows;
}

}  // namespace

std::vector<StorageType> types_of_reads(const BackwardReads& reads, const BackwardTensors& tensors) {
  std::vector<StorageType> types;
  for (const plan::CaptureSum& sum : reads.sums)
    types.push_back(plan::storage_type_of(plan::gradient_of(sum, tensors).dtype));
  return types;
}

BackwardReadsParams backward_reads_params(const backend::PrepareArguments& arguments, const BackwardReads& reads,
                                          const BackwardConstants& constants) {
  const AttentionProblem& problem = arguments.problem;
  const plan::BackwardReadsMemory memory = plan::backward_reads_memory(problem, reads);
  BackwardReadsParams params{};
  for (std::size_t i = 0; i < reads.sums.size(); ++i) {
    const plan::CaptureSum& sum = reads.sums[i];
    const TensorView& gradient = plan::gradient_of(sum, *arguments.backward);
    shared::ReadSum& own = params.sums[i];
    own.rank = sum.shape.size();
    own.count = sum.count;
    std::int64_t partials = 0;
    for (const plan::BackwardRead& read : reads.reads) {
      partials += read.sum == static_cast<int>(i) ? partials_of(problem) : 0;
    }
    own.bits = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(partials)));
    for (int axis = 0; axis < own.rank; ++axis) {
      own.extent[axis] = static_cast<int>(sum.shape[axis]);
      own.stride[axis] = gradient.strides[axis];
    }
  }
  params.zero_bytes = memory.bytes;
  params.ctas = kCtas;
  params.apart = reads.apart;
  params.groups = std::max(1, plan::key_groups(problem));
  params.batch = static_cast<int>(problem.batch);
  params.packed = problem.packed;
  params.kv_rows = static_cast<int>(problem.kv_rows);
  params.all_keys = all_keys(problem);
  params.padded_blocks = problem.packed ? -1 : shared::blocks_of_rows(static_cast<int>(problem.q_rows));
  params.round_batch = params.round_head = -1;
  params.score_scale = static_cast<float>(problem.scale);
  params.d_lse = constants.rows.d_lse;
  params.sinks = constants.rows.sinks;
  params.unit = constants.rows.unit;
  return params;
}

void set_reads(const backend::RunArguments& arguments, const BackwardReads& reads, const plan::BackwardReadsMemory& at,
               char* memory, const BackwardConstants& constants, BackwardReadsParams& params) {
  const auto place = [&](std::int64_t offset, auto*& to) {
    to = offset < 0 ? nullptr : reinterpret_cast<std::remove_reference_t<decltype(to)>>(memory + offset);
  };
  params.zeros = memory;
  for (std::size_t i = 0; i < reads.sums.size(); ++i) {
    params.sums[i].data = plan::gradient_of(reads.sums[i], *arguments.backward).data;
    place(at.fixed[i], params.sums[i].fixed);
    place(at.floats[i], params.sums[i].floats);
    place(at.largest[i], params.sums[i].largest);
  }
  for (std::size_t i = 0; i < reads.reads.size(); ++i) place(at.partials[i], params.partials[i]);
  params.d_lse.data = constants.rows.d_lse.data;
  params.sinks.data = constants.rows.sinks.data;
}

std::vector<ReadRound> rounds_of(const AttentionProblem& problem, const BackwardReads& reads) {
  std::vector<ReadRound> rounds;
  const auto batches = static_cast<int>(reads.round_a_sequence ? problem.batch : 1),
             heads = static_cast<int>(reads.round_a_head ? problem.kv_heads : 1);
  for (int batch = 0; batch < batches; ++batch) {
    for (int head = 0; head < heads; ++head) {
      rounds.push_back({reads.round_a_sequence ? batch : -1, reads.round_a_head ? head : -1});
    }
  }
  return rounds;
}

ReadGrid read_grid(const AttentionProblem& problem) {
  const Sequence most = longest(problem);
  const std::int64_t shares = (most.q_len + most.kv_len + shared::kReadThreads - 1) / shared::kReadThreads;
  return {static_cast<unsigned>(problem.batch * problem.q_heads),
          static_cast<unsigned>(std::clamp<std::int64_t>(shares, 1, kMostShares))};
}

BackwardReadKernels::BackwardReadKernels(const backend::PrepareArguments& arguments, const plan::BackwardMods& mods,
                                         const BackwardReads& reads, const device_text::ModLayout& layout)
    : config_(plan::reads_config(arguments.plan.part<shared::BackwardSm90Config>(), reads)),
      rounds_(rounds_of(arguments.problem, reads)),
      grid_(read_grid(arguments.problem)),
      any_partials_(std::ranges::any_of(
          reads.reads, [](const plan::BackwardRead& read) { return shared::has_partials(read.kind); })),
      sums_(cuda::cuda_gpu().load(
          arguments.plan.device,
          jit::with_alternative(sums_source(config_, reads, types_of_reads(reads, *arguments.backward), layout),
                                arguments.plan.has_alternative))),
      clear_(sums_->function("clear_reads")),
      collect_(sums_->function("collect_reads")),
      scatter_(sums_->function("scatter_reads")),
      store_(sums_->function("store_reads")) {
  if (!reads.visits_pairs()) return;
  pass_ = cuda::cuda_gpu().load(
      arguments.plan.device,
      jit::with_alternative(reads_source(config_, mods, reads, types_of_reads(reads, *arguments.backward), layout),
                            arguments.plan.has_alternative));
  visit_ = pass_->function("backward_reads", shared::backward_sm90_memory(config_).bytes);
}

void BackwardReadKernels::clear(BackwardReadsParams& params, void* stream) const {
  sums_->launch(clear_, {.ctas = kCtas, .threads = shared::kReadThreads}, stream, &params, "launching clear_reads");
}

void BackwardReadKernels::visit(cuda::CUtensorMap (&maps)[4], shared::BackwardSm90Params& main,
                                BackwardReadsParams& params, unsigned tiles, void* stream) const {
  if (visit_ == nullptr) return;
  void* parameters[] = {&maps[0], &maps[1], &maps[2], &maps[3], &main, &params};
  const gpu::Launch launch = {.ctas = tiles,
                              .threads = static_cast<unsigned>(config_.threads()),
                              .shared_bytes = static_cast<unsigned>(shared::backward_sm90_memory(config_).bytes)};
  for (const ReadRound& round : rounds_) {
    params.round_batch = round.batch;
    params.round_head = round.head;
    pass_->enqueue(visit_, launch, stream, parameters, "launching backward_reads");
  }
}

void BackwardReadKernels::finish(shared::BackwardSm90Params& main, BackwardReadsParams& params, void* stream) const {
  int shares = static_cast<int>(grid_.shares);
  void* parameters[] = {&main, &params, &shares};
  const gpu::Launch launch = {.ctas = grid_.ctas, .height = grid_.shares, .threads = shared::kReadThreads};
  if (any_partials_ && grid_.ctas > 0) {
    sums_->enqueue(collect_, launch, stream, parameters, "launching collect_reads");
    sums_->enqueue(scatter_, launch, stream, parameters, "launching scatter_reads");
  }
  sums_->launch(store_, {.ctas = kCtas, .threads = shared::kReadThreads}, stream, &params, "launching store_reads");
}

}  // namespace heddle::backward_sm90
