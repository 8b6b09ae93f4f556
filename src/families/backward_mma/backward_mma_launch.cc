#include "families/backward_mma/backward_mma_launch.h"

#include <fmt/format.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "backend/gpu/device_lists.h"
#include "backend/gpu/kv_start.h"
#include "backend/gpu/mod_values.h"
#include "backend/portable/portable_arguments.h"
#include "families/backward_mma/backward_mma_arguments.h"
#include "families/backward_mma/backward_mma_plans.h"
#include "families/backward_mma/backward_mma_sequences.h"
#include "families/backward_mma/backward_mma_text.h"
#include "families/backward_mma/shared/backward_mma_config.h"

namespace heddle::backward_mma {
namespace {

using shared::BackwardMmaConfig;

/// The lists of all passes, in device memory; parameters point into it.
class Lists {
 public:
  Lists(const backend::DeviceInterface& devices, int device, const std::vector<plan::BackwardSchedule>& schedules,
        const std::vector<shared::RowBlock>& blocks, const std::vector<shared::SequenceSpan>& spans, Params& params) {
    std::vector<char> bytes;
    std::vector<std::size_t> items, runs;
    for (const plan::BackwardSchedule& schedule : schedules) {
      items.push_back(append(bytes, schedule.items));
      runs.push_back(append(bytes, schedule.runs));
    }
    const std::size_t of_blocks = append(bytes, blocks), sequences = append(bytes, spans);
    memory_ = gpu::Memory(devices, device, bytes.size());
    if (!bytes.empty()) devices.copy_and_wait(device, memory_.data(), bytes.data(), bytes.size());
    const char* base = static_cast<const char*>(memory_.data());
    params.rows.blocks = reinterpret_cast<const shared::RowBlock*>(base + of_blocks);
    params.rows.block_count = static_cast<int>(blocks.size());
    for (std::size_t i = 0; i < schedules.size(); ++i) {
      params.passes[i].items = reinterpret_cast<const shared::BackwardItem*>(base + items[i]);
      params.passes[i].runs = reinterpret_cast<const shared::QueryRun*>(base + runs[i]);
      if (!spans.empty()) {
        params.passes[i].mod.sequences = reinterpret_cast<const shared::SequenceSpan*>(base + sequences);
      }
    }
  }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  template <class T>
  static std::size_t append(std::vector<char>& bytes, const std::vector<T>& list) {
    constexpr std::size_t kAlignment = 16;
    const std::size_t begin = (bytes.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes.resize(begin + list.size() * sizeof(T));
    if (!list.empty()) std::memcpy(bytes.data() + begin, list.data(), list.size() * sizeof(T));
    return begin;
  }

  gpu::Memory memory_;
};

class BackwardMmaKernel final : public backend::Kernel {
 public:
  BackwardMmaKernel(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu)
      : gpu_(gpu),
        device_(arguments.plan.device),
        kernels_(arguments.plan.part<plan::BackwardMmaKernels>()),
        problem_(arguments.problem),
        mods_(plan::backward_mods(arguments.problem)),
        layout_(device_text::layout_of(mods_.all())),
        source_(source(kernels_, mods_, layout_, gpu.dialect(), gpu.architecture_of(device_))),
        program_(gpu.load(device_, source_)),
        kv_start_(gpu.devices(), device_, mods_.kv_start, arguments.problem.sequences, arguments.options.kv_start),
        params_(constant_params(arguments)) {
    if (problem_.device_kv_starts) own_kv_start_ = gpu::slot_of(layout_, plan::kKvStartName);
    std::vector<plan::BackwardSchedule> schedules;
    for (std::size_t i = 0; i < kernels_.passes.size(); ++i) {
      const BackwardMmaConfig& pass = kernels_.passes[i];
      schedules.push_back(plan::backward_mma_schedule(problem_, pass, arguments.block_mask));
      ctas_.push_back(static_cast<unsigned>(schedules.back().items.size()) * static_cast<unsigned>(pass.parts()));
      functions_.push_back(program_->function(fmt::format("backward_mma_{}", i).c_str(), shared_bytes(pass)));
    }
    const std::vector<shared::RowBlock> blocks = plan::row_blocks(problem_);
    std::vector<shared::SequenceSpan> spans;
    if (plan::has_spans(kernels_) && !problem_.device_lengths) spans = portable::spans_of(problem_);
    lists_.emplace(gpu.devices(), device_, schedules, blocks, spans, params_);
    if (has_rows(kernels_)) {
      rows_ = program_->function("backward_mma_rows");
      if (kernels_.rows.sinks) sinks_ = program_->function("backward_mma_sinks");
    }
    if (problem_.device_lengths && problem_.batch > 0) {
      sequences_.emplace(gpu, device_, sequences_params(problem_, std::ssize(blocks)));
    }
  }

  void launch(const backend::RunArguments& arguments) const override {
    Params own = params_;
    set_addresses(kernels_, problem_, arguments, own);
    if (sequences_) {
      SequencesParams params = sequences_->params();
      set_lists(arguments, problem_, kernels_, params, own);
      sequences_->launch(params, arguments.stream);
    }
    if (rows_ != nullptr) launch_rows(own.rows, arguments.stream);
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
  }

  std::int64_t held_bytes() const override { return static_cast<std::int64_t>(lists_->bytes()); }

  nlohmann::ordered_json facts() const override {
    nlohmann::ordered_json facts;
    std::string launches;
    for (std::size_t i = 0; i < kernels_.passes.size(); ++i) {
      const BackwardMmaConfig& pass = kernels_.passes[i];
      launches +=
          fmt::format("{}{} by {} CTAs of {} threads, {} bytes of shared memory", i == 0 ? "" : "; ",
                      plan::name_of_pass(pass), ctas_[i], pass.threads(), shared::backward_mma_memory(pass).bytes);
    }
    facts["summary"] = fmt::format("{}: {}", source_.name, launches);
    facts["name"] = source_.name;
    facts["cache key"] = gpu_.key_of(source_);
    facts["origin"] = jit::name(program_->code().from);
    facts["compile ms"] = program_->code().compile_ms;
    facts["registers"] = program_->code().registers;
    facts["list bytes"] = held_bytes();
    facts["cache"] = gpu_.cache_notes();
    return facts;
  }

 private:
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

  const gpu::Gpu& gpu_;
  int device_;
  plan::BackwardMmaKernels kernels_;
  problem::AttentionProblem problem_;
  plan::BackwardMods mods_;
  device_text::ModLayout layout_;
  jit::Source source_;
  std::unique_ptr<gpu::Program> program_;
  gpu::KvStartValues kv_start_;
  int own_kv_start_ = -1;  // the capture that is each run's kv_start; -1: none is
  Params params_;
  std::vector<unsigned> ctas_;    // of each pass
  std::vector<void*> functions_;  // likewise
  void *rows_ = nullptr, *sinks_ = nullptr;
  std::optional<Lists> lists_;
  std::optional<Sequences> sequences_;  // where lengths are on the device
};

}  // namespace

std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu) {
  return std::make_unique<BackwardMmaKernel>(arguments, gpu);
}

}  // namespace heddle::backward_mma
