// The Hopper backward family's kernels, ready to launch. The main one is backward_sm90/backward_sm90_kernel.cuh of
// kernels/nvidia, or backward_sm90_apart.cuh beside it, or with head dims above 128 backward_sm90_wide.cuh;
// backward_rows_kernels.cuh has those around it.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <vector>

#include "backend/cuda/driver/cuda_objects.h"
#include "backend/cuda/hopper/tensor_map.h"
#include "backend/cuda/launch/cuda_gpu.h"
#include "backend/gpu/backward_sequences.h"
#include "backend/gpu/copied_tensors.h"
#include "backend/gpu/device_arrays.h"
#include "backend/gpu/device_lists.h"
#include "backend/gpu/kernel_facts.h"
#include "backend/gpu/kv_start_values.h"
#include "backend/gpu/row_tensors.h"
#include "backend/gpu/sequence_spans.h"
#include "backend/gpu/set_mod_values.h"
#include "families/backward_sm90/backward_reads_launch.h"
#include "families/backward_sm90/backward_sm90.h"
#include "families/backward_sm90/backward_sm90_arguments.h"
#include "families/backward_sm90/shared/backward_wide_memory.h"
#include "plan/access/tma_refuses.h"

namespace heddle::backward_sm90 {
namespace {

using problem::AttentionProblem;
using shared::BackwardSm90Config;

/// The main kernel computes something.
bool of_rows(const AttentionProblem& problem) { return problem.wanted.q || problem.wanted.k || problem.wanted.v; }

class BackwardSm90Kernel final : public backend::Kernel {
 public:
  explicit BackwardSm90Kernel(const backend::PrepareArguments& arguments)
      : device_(arguments.plan.device),
        config_(arguments.plan.part<shared::BackwardSm90Config>()),
        problem_(arguments.problem),
        mods_(plan::backward_sm90_mods(arguments.problem, config_)),
        reads_(plan::backward_reads(problem_, arguments.options.bindings, mods_.kv_start)),
        reads_memory_(plan::backward_reads_memory(problem_, reads_)),
        layout_(backward_layout(mods_, reads_)),
        source_(jit::with_alternative(main_source(config_, mods_, layout_), arguments.plan.has_alternative)),
        main_program_(of_rows(arguments.problem) ? gpu_.load(device_, source_) : nullptr),
        rows_program_(gpu_.load(device_, jit::with_alternative(rows_source(config_), arguments.plan.has_alternative))),
        kv_start_(gpu_.devices(), device_, mods_.kv_start, arguments.problem.sequences, arguments.options.kv_start),
        rows_(rows_program_->function("backward_rows")),
        d_q_(rows_program_->function("backward_d_q")),
        sinks_(rows_program_->function("backward_sinks")),
        constants_(backward_constants(arguments)) {
    if (main_program_) main_ = main_program_->function("backward_sm90", shared::backward_shared_bytes(config_));
    const plan::BackwardSm90Schedule schedule =
        plan::backward_sm90_schedule(arguments.problem, config_, arguments.block_mask, arguments.plan.multiprocessors);
    share_places_ = schedule.share_places;
    ctas_ = static_cast<unsigned>(arguments.plan.grid);
    constants_.main.ctas = arguments.plan.grid;
    constants_.main.tiles = static_cast<int>(schedule.items.size());
    any_steps_ = schedule.steps > 0;
    blocks_ = static_cast<unsigned>(schedule.blocks.size());
    std::vector<shared::SequenceSpan> spans;
    if (config_.by_sequence && !config_.device_lengths) spans = gpu::spans_of(arguments.problem);
    tiles_ = static_cast<unsigned>(schedule.items.size());
    if (reads_.any()) {
      read_kernels_.emplace(arguments, mods_, reads_, layout_);
      reads_params_ = backward_reads_params(arguments, reads_, constants_);
    }
    if (ctas_ > 0 || blocks_ > 0) {
      upload(schedule, spans);
      if (config_.device_lengths) sequences_.emplace(gpu_, device_, sequences_params(std::ssize(schedule.blocks)));
    }
    if (problem_.device_kv_starts) own_kv_start_ = gpu::slot_of(layout_, plan::kKvStartName);
    if (any_steps_ && std::ranges::any_of(arguments.plan.copies, [](const auto& copy) { return copy.has_value(); })) {
      copied_.emplace(gpu_, arguments);
    }
  }

  void launch(const backend::RunArguments& arguments) const override {
    if (ctas_ == 0 && blocks_ == 0 && !read_kernels_) return;
    check_gradients(*arguments.backward);
    const gpu::CopiedTensors::Tensors given = {
        {arguments.tensors.q, arguments.tensors.k, arguments.tensors.v, arguments.backward->d_o}};
    const gpu::CopiedTensors::Tensors all = copied_ ? copied_->reached(given, arguments.workspace) : given;
    static constexpr std::array<std::string_view, 4> kNames = {"q", "k", "v", "dO"};
    for (std::size_t i = 0; any_steps_ && i < kNames.size(); ++i) {
      gpu::check_address(kNames[i], all.of[i].data, plan::kTmaBytes);
    }
    const cuda::ContextScope scope(device_);
    cuda::CUtensorMap maps[4] = {};  // not read where there is no step
    if (any_steps_) {
      maps[0] = map_of(all.of[0], false);
      maps[1] = map_of(all.of[1], true);
      maps[2] = map_of(all.of[2], true);
      maps[3] = map_of(all.of[3], false);
    }
    BackwardConstants own = constants_;
    set_addresses(arguments, problem_, config_, own);
    if (sequences_) {
      gpu::BackwardSequencesParams params = sequences_->params();
      set_lists_to_read(arguments, problem_, config_, params, own);
      sequences_->launch(params, arguments.stream);
    }
    gpu::set_mod_values(layout_, *arguments.bindings, kv_start_.bindings(), own.main.mod);
    if (own_kv_start_ >= 0) own.main.mod.captures[own_kv_start_].data = arguments.options->kv_start->data;
    if (copied_) {
      copied_->launch(given, problem_.packed ? nullptr : own.main.mod.sequences, {}, arguments.workspace,
                      arguments.stream);
    }
    shared::BackwardReadsParams reads = reads_params_;
    char* memory = static_cast<char*>(arguments.workspace) + plan::backward_sm90_workspace(problem_, config_).bytes;
    if (share_places_ > 0) set_shares(config_, share_places_, memory, own);
    if (read_kernels_) {
      set_reads(arguments, reads_, reads_memory_, memory, own, reads);
    }
    launch_all(maps, own, reads, arguments.stream);
  }

  std::int64_t held_bytes() const override { return static_cast<std::int64_t>(arrays_.bytes()); }

  base::JsonTree facts() const override {
    const jit::MachineCode& rows = rows_program_->code();
    base::JsonTree facts = gpu::kernel_facts(gpu_, source_, main_program_ ? main_program_->code() : rows,
                                             fmt::format("{} CTAs of {} threads, {} bytes of shared memory", ctas_,
                                                         config_.threads(), shared::backward_shared_bytes(config_)),
                                             arrays_.bytes());
    if (main_program_) facts["compile ms"] = main_program_->code().compile_ms + rows.compile_ms;
    if (read_kernels_) facts["compile ms of captures' gradients"] = read_kernels_->compile_ms();
    if (read_kernels_ && read_kernels_->pass() != nullptr) {
      facts["registers of captures' gradients"] = read_kernels_->pass()->registers;
    }
    if (copied_) facts["copied bytes"] = copied_->bytes();
    return facts;
  }

 private:
  /// Lets the parameters point to the lists.
  void upload(const plan::BackwardSm90Schedule& schedule, const std::vector<shared::SequenceSpan>& spans) {
    const auto items = arrays_.add(schedule.items);
    const auto runs = arrays_.add(schedule.runs);
    const auto blocks = arrays_.add(schedule.blocks);
    const auto sequences = arrays_.add(spans);
    const auto first_blocks = arrays_.add(schedule.first_blocks);
    const auto ranks = arrays_.add(schedule.ranks);
    const auto turns = arrays_.add(schedule.turns);
    arrays_.upload(gpu_.devices(), device_);
    constants_.main.items = arrays_.at(items);
    constants_.main.runs = arrays_.at(runs);
    constants_.main.ranks = arrays_.at(ranks);
    constants_.main.ring.turns = arrays_.at(turns);
    constants_.main.ring.blocks = arrays_.at(blocks);
    constants_.rows.blocks = arrays_.at(blocks);
    constants_.rows.block_count = static_cast<int>(schedule.blocks.size());
    if (spans.empty()) return;
    reads_params_.first_blocks = arrays_.at(first_blocks);
    constants_.main.mod.sequences = arrays_.at(sequences);
  }
  /// Requires upload().
  gpu::BackwardSequencesParams sequences_params(std::int64_t blocks) const {
    return backward_sequences_params(problem_, config_, constants_, blocks);
  }

  /// Checks tensors whose rows are read and written 16 bytes at once.
  void check_gradients(const BackwardTensors& tensors) const {
    if (any_steps_ && config_.vectorised_rows) {
      gpu::check_address("o", tensors.o.data, 16);
      gpu::check_address("dO", tensors.d_o.data, 16);
    }
    const auto check = [&](std::string_view name, const std::optional<TensorView>& view, bool vectorised) {
      if (!view || config_.odd_gradients) return;
      gpu::check_address(name, view->data, vectorised ? 16 : 2 * size_of(view->dtype));
    };
    check("dq", tensors.dq, config_.vectorised_d_q);
    check("dk", tensors.dk, config_.vectorised_gradients);
    check("dv", tensors.dv, config_.vectorised_gradients);
  }

  cuda::CUtensorMap map_of(ConstTensorView tensor, bool keys) const {
    const shared::WalkedTensors& walked = constants_.main.tensors;
    const int box_rows = keys ? config_.cta_keys() : shared::kStepQueries;
    if (!config_.by_sequence) return cuda::tensor_map(tensor, tensor.data, box_rows);
    if (problem_.packed) tensor = gpu::by_sequence(tensor, problem_.batch);
    return cuda::tensor_map_before_ends(tensor, tensor.data, box_rows, keys ? walked.kv_len : walked.q_len);
  }

  void launch_all(cuda::CUtensorMap (&maps)[4], BackwardConstants& own, shared::BackwardReadsParams& reads,
                  void* stream) const {
    const unsigned heads = static_cast<unsigned>(own.main.q_heads);
    if (read_kernels_) read_kernels_->clear(reads, stream);
    const gpu::Launch of_blocks = {.ctas = blocks_, .height = heads, .threads = shared::kRowThreads};
    if (blocks_ > 0) rows_program_->launch(rows_, of_blocks, stream, &own.rows, "launching backward_rows");
    if (ctas_ > 0 && main_ != nullptr) {
      void* parameters[] = {&maps[0], &maps[1], &maps[2], &maps[3], &own.main};
      const gpu::Launch launch = {.ctas = ctas_,
                                  .threads = static_cast<unsigned>(config_.threads()),
                                  .shared_bytes = static_cast<unsigned>(shared::backward_shared_bytes(config_))};
      main_program_->enqueue(main_, launch, stream, parameters, "launching backward_sm90");
    }
    if (read_kernels_ && any_steps_) read_kernels_->visit(maps, own.main, reads, tiles_, stream);
    if (config_.d_q && !config_.ring && blocks_ > 0)
      rows_program_->launch(d_q_, of_blocks, stream, &own.rows, "launching backward_d_q");
    if (config_.sinks) {
      rows_program_->launch(sinks_, {.ctas = heads, .threads = 32}, stream, &own.rows, "launching backward_sinks");
    }
    if (read_kernels_) read_kernels_->finish(own.main, reads, stream);
  }

  const gpu::Gpu& gpu_ = cuda::cuda_gpu();
  int device_;
  BackwardSm90Config config_;
  AttentionProblem problem_;
  plan::BackwardMods mods_;
  plan::BackwardReads reads_;
  plan::BackwardReadsMemory reads_memory_;
  device_text::ModLayout layout_;
  jit::Source source_;
  std::unique_ptr<gpu::Program> main_program_;  // null where no gradient of q, k or v is asked for
  std::unique_ptr<gpu::Program> rows_program_;
  gpu::KvStartValues kv_start_;
  void *main_ = nullptr, *rows_, *d_q_, *sinks_;
  BackwardConstants constants_;
  shared::BackwardReadsParams reads_params_{};
  std::optional<BackwardReadKernels> read_kernels_;  // gradients of captures and params
  unsigned ctas_ = 0, blocks_ = 0, tiles_ = 0;
  int share_places_ = 0;
  bool any_steps_ = false;
  gpu::DeviceArrays arrays_;                         // lists of tiles and blocks
  std::optional<gpu::BackwardSequences> sequences_;  // where lengths are on the device
  int own_kv_start_ = -1;                            // capture: each run's own vector
  std::optional<gpu::CopiedTensors> copied_;
};

}  // namespace

std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments) {
  return std::make_unique<BackwardSm90Kernel>(arguments);
}

}  // namespace heddle::backward_sm90
