// The portable backward family's kernels on a GPU, ready to launch.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "backend/gpu/backward_sequences.h"
#include "backend/gpu/device_arrays.h"
#include "backend/gpu/device_lists.h"
#include "backend/gpu/kernel_facts.h"
#include "backend/gpu/kv_start_values.h"
#include "backend/gpu/sequence_spans.h"
#include "backend/gpu/set_mod_values.h"
#include "families/backward_mma/backward_mma.h"
#include "families/backward_mma/backward_mma_arguments.h"
#include "families/backward_mma/shared/backward_mma_config.h"

namespace heddle::backward_mma {
namespace {

using shared::BackwardMmaConfig;

class BackwardMmaKernel final : public backend::Kernel {
 public:
  BackwardMmaKernel(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu)
      : gpu_(gpu),
        device_(arguments.plan.device),
        kernels_(arguments.plan.part<plan::BackwardMmaKernels>()),
        problem_(arguments.problem),
        mods_(plan::backward_mods(arguments.problem, plan::OfPlaces::native)),
        reads_(plan::mma_reads(arguments.problem, arguments.options.bindings, mods_)),
        layout_(layout_of(mods_, reads_, problem_.precision)),
        source_(jit::with_alternative(source(kernels_, mods_, reads_, types_of_sums(reads_, *arguments.backward),
                                             layout_, gpu.dialect(), gpu.architecture_of(device_)),
                                      arguments.plan.has_alternative)),
        program_(gpu.load(device_, source_)),
        kv_start_(gpu.devices(), device_, mods_.kv_start, arguments.problem.sequences, arguments.options.kv_start),
        params_(constant_params(arguments, reads_)) {
    if (problem_.device_kv_starts) own_kv_start_ = gpu::slot_of(layout_, plan::kKvStartName);
    std::vector<plan::BackwardSchedule> schedules;
    for (std::size_t i = 0; i < kernels_.passes.size(); ++i) {
      const BackwardMmaConfig& pass = kernels_.passes[i];
      schedules.push_back(plan::backward_mma_schedule(problem_, pass, arguments.block_mask));
      ctas_.push_back(
          static_cast<unsigned>(plan::backward_mma_ctas(problem_, pass, std::ssize(schedules.back().items))));
      functions_.push_back(program_->function(fmt::format("backward_mma_{}", i).c_str(), shared_bytes(pass)));
    }
    const std::vector<shared::RowBlock> blocks = plan::row_blocks(problem_);
    std::vector<shared::SequenceSpan> spans;
    if (plan::has_spans(kernels_) && !problem_.device_lengths) spans = gpu::spans_of(problem_);
    upload(schedules, blocks, spans);
    if (has_rows(kernels_)) {
      rows_ = program_->function("backward_mma_rows");
      if (kernels_.rows.sinks) sinks_ = program_->function("backward_mma_sinks");
    }
    if (!kernels_.widen.empty()) widen_ = program_->function("backward_mma_widen");
    if (plan::clears_sums(kernels_)) clear_ = program_->function("backward_mma_clear");
    if (reads_.any()) store_ = program_->function("backward_mma_store");
    if (plan::adds_queries(kernels_)) queries_ = program_->function("backward_mma_queries");
    if (problem_.device_lengths && problem_.batch > 0) {
      sequences_.emplace(gpu, device_, gpu::backward_sequences_params(problem_, std::ssize(blocks)));
    }
  }

  void launch(const backend::RunArguments& arguments) const override {
    Params own = params_;
    set_addresses(kernels_, problem_, reads_, arguments, own);
    if (sequences_) {
      gpu::BackwardSequencesParams params = sequences_->params();
      set_lists_to_read(arguments, problem_, kernels_, params, own);
      sequences_->launch(params, arguments.stream);
    }
    if (widen_ != nullptr) {
      program_->launch(widen_, {.ctas = static_cast<unsigned>(own.widen.ctas), .threads = shared::kSumThreads},
                       arguments.stream, &own.widen, "launching backward_mma_widen");
    }
    if (rows_ != nullptr) launch_rows(own.rows, arguments.stream);
    if (clear_ != nullptr) launch_sums(clear_, own.sums, arguments.stream);
    for (std::size_t i = 0; i < kernels_.passes.size(); ++i) {
      if (ctas_[i] == 0) continue;
      shared::BackwardMmaParams& pass = own.passes[i];
      gpu::set_mod_values(layout_, *arguments.bindings, kv_start_.bindings(), pass.mod);
      if (own_kv_start_ >= 0) pass.mod.captures[own_kv_start_].data = arguments.options->kv_start->data;
      const gpu::Launch launch = {.ctas = ctas_[i],
                                  .threads = static_cast<unsigned>(kernels_.passes[i].threads()),
                                  .shared_bytes = static_cast<unsigned>(shared_bytes(kernels_.passes[i]))};
      program_->launch(functions_[i], launch, arguments.stream, &pass, "launching backward_mma");
    }
    if (queries_ != nullptr) launch_queries(own.rows, arguments.stream);
    if (reads_.any()) launch_sums(store_, own.sums, arguments.stream);
  }

  std::int64_t held_bytes() const override { return static_cast<std::int64_t>(arrays_.bytes()); }

  base::JsonTree facts() const override {
    std::string launches;
    for (std::size_t i = 0; i < kernels_.passes.size(); ++i) {
      const BackwardMmaConfig& pass = kernels_.passes[i];
      launches +=
          fmt::format("{}{} by {} CTAs of {} threads, {} bytes of shared memory", i == 0 ? "" : "; ",
                      plan::name_of_pass(pass), ctas_[i], pass.threads(), shared::backward_mma_memory(pass).bytes);
    }
    return gpu::kernel_facts(gpu_, source_, program_->code(), launches, arrays_.bytes());
  }

 private:
  /// Lets the parameters point to the lists of all passes.
  void upload(const std::vector<plan::BackwardSchedule>& schedules, const std::vector<shared::RowBlock>& blocks,
              const std::vector<shared::SequenceSpan>& spans) {
    std::vector<gpu::DeviceArrays::Offset<shared::BackwardItem>> items;
    std::vector<gpu::DeviceArrays::Offset<shared::QueryRun>> runs;
    for (const plan::BackwardSchedule& schedule : schedules) {
      items.push_back(arrays_.add(schedule.items));
      runs.push_back(arrays_.add(schedule.runs));
    }
    const auto of_blocks = arrays_.add(blocks);
    const auto sequences = arrays_.add(spans);
    arrays_.upload(gpu_.devices(), device_);
    params_.rows.blocks = arrays_.at(of_blocks);
    params_.rows.block_count = static_cast<int>(blocks.size());
    for (std::size_t i = 0; i < schedules.size(); ++i) {
      params_.passes[i].items = arrays_.at(items[i]);
      params_.passes[i].runs = arrays_.at(runs[i]);
      if (!spans.empty()) params_.passes[i].mod.sequences = arrays_.at(sequences);
    }
  }
  int shared_bytes(const BackwardMmaConfig& pass) const {
    return gpu_.dialect().kernels_declare_memory ? 0 : shared::backward_mma_memory(pass).bytes;
  }
  void launch_rows(shared::BackwardRowsParams& rows, void* stream) const {
    const auto heads = static_cast<unsigned>(rows.q_heads), blocks = static_cast<unsigned>(rows.block_count);
    if (blocks * heads > 0) {
      program_->launch(rows_, {.ctas = blocks * heads, .threads = shared::kRowThreads}, stream, &rows,
                       "launching backward_mma_rows");
    }
    if (sinks_ == nullptr || heads == 0) return;
    program_->launch(sinks_, {.ctas = heads, .threads = shared::kRowThreads}, stream, &rows,
                     "launching backward_mma_sinks");
  }

  void launch_queries(shared::BackwardRowsParams& rows, void* stream) const {
    const unsigned ctas = static_cast<unsigned>(rows.q_heads) * static_cast<unsigned>(rows.block_count);
    if (ctas == 0) return;
    const auto threads = static_cast<unsigned>(plan::stored_queries_threads(kernels_));
    program_->launch(queries_, {.ctas = ctas, .threads = threads}, stream, &rows, "launching backward_mma_queries");
  }
  void launch_sums(void* function, shared::MmaSumsParams& sums, void* stream) const {
    program_->launch(function, {.ctas = static_cast<unsigned>(sums.ctas), .threads = shared::kSumThreads}, stream,
                     &sums, "launching backward_mma's sums");
  }

  const gpu::Gpu& gpu_;
  int device_;
  plan::BackwardMmaKernels kernels_;
  problem::AttentionProblem problem_;
  plan::BackwardMods mods_;
  plan::MmaReads reads_;
  device_text::ModLayout layout_;
  jit::Source source_;
  std::unique_ptr<gpu::Program> program_;
  gpu::KvStartValues kv_start_;
  int own_kv_start_ = -1;  // the capture that is each run's kv_start; -1: none is
  Params params_;
  std::vector<unsigned> ctas_;    // of each pass
  std::vector<void*> functions_;  // likewise
  void *rows_ = nullptr, *sinks_ = nullptr, *clear_ = nullptr, *store_ = nullptr, *widen_ = nullptr,
       *queries_ = nullptr;
  gpu::DeviceArrays arrays_;                         // the lists of all passes
  std::optional<gpu::BackwardSequences> sequences_;  // where lengths are on the device
};

}  // namespace

std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu) {
  return std::make_unique<BackwardMmaKernel>(arguments, gpu);
}

}  // namespace heddle::backward_mma
