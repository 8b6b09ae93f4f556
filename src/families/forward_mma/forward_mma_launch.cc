// The portable forward family's kernel on a GPU, ready to launch.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "backend/gpu/device_lists.h"
#include "backend/gpu/device_sequences.h"
#include "backend/gpu/kernel_facts.h"
#include "backend/gpu/kv_start_values.h"
#include "backend/gpu/page_tables.h"
#include "backend/gpu/sequence_spans.h"
#include "backend/gpu/set_mod_values.h"
#include "backend/portable/portable_arguments.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "families/forward_mma/forward_mma.h"
#include "families/forward_mma/shared/forward_mma_params.h"

namespace heddle::forward_mma {
namespace {

using shared::ForwardMmaConfig;
using shared::ForwardMmaParams;

class ForwardMmaKernel final : public backend::Kernel {
 public:
  ForwardMmaKernel(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu)
      : gpu_(gpu),
        device_(arguments.plan.device),
        config_(arguments.plan.part<shared::ForwardMmaConfig>()),
        shared_bytes_(gpu.dialect().kernels_declare_memory ? 0 : shared::forward_mma_memory(config_).bytes),
        v_dim_(arguments.problem.v_dim),
        o_dtype_(arguments.problem.o_dtype),
        layout_(device_text::layout_of(arguments.plan.mods.of_kernel(false), arguments.problem.precision)),
        source_(jit::with_invariant_rows(jit::with_alternative(source(config_, arguments.plan.mods, layout_,
                                                                      gpu.dialect(), gpu.architecture_of(device_)),
                                                               arguments.plan.has_alternative),
                                         arguments.problem.batch_invariant)),
        program_(gpu.load(device_, source_)),
        kv_start_(gpu.devices(), device_, arguments.plan.mods.kv_start, arguments.problem.sequences,
                  arguments.options.kv_start),
        function_(program_->function("forward_mma", shared_bytes_)) {
    portable::set_constants(arguments, params_);
    page_starts_ = gpu::upload_page_starts(gpu.devices(), device_, arguments.problem, params_.table);
    params_.listed.q_heads = static_cast<int>(arguments.problem.q_heads);
    if (arguments.problem.device_kv_starts) own_kv_start_ = gpu::slot_of(layout_, plan::kKvStartName);
    const plan::TileSchedule& schedule = *arguments.plan.schedule;
    const auto items = static_cast<int>(schedule.items.size());
    grid_ = items * config_.splits;
    // Rows that no tile computes are filled by all CTAs.
    if (grid_ == 0) grid_ = std::min(static_cast<int>(schedule.fills.size()), 4 * arguments.plan.multiprocessors);
    if (grid_ == 0) return;
    std::vector<shared::SequenceSpan> spans;
    if (config_.by_sequence && !config_.device_lengths) spans = gpu::spans_of(arguments.problem);
    lists_.emplace(gpu.devices(), device_, schedule, spans);
    lists_->set(params_.tiles, params_.fills, params_.mod);
    if (config_.device_lengths) {
      split_at_ = (shared::sequences_memory(arguments.problem.batch, items).bytes + 255) / 256 * 256;
      if (params_.mod.kv_len == 0) params_.tiles.item_count = 0;  // tiles of the longest sequences, without keys too
      sequences_.emplace(gpu, device_, arguments.problem, config_.tile(), params_.tiles,
                         gpu::steps_before(schedule.runs));
    }
    parts_at_ = split_at_ + shared::split_memory(config_, items).parts;
  }

  void launch(const backend::RunArguments& arguments) const override {
    if (grid_ == 0) return;
    ForwardMmaParams params = params_;
    portable::set_addresses(config_, arguments, params);
    if (config_.converts()) params.descales = portable::descales_of(*arguments.options);
    if (sequences_) {
      sequences_->launch(*arguments.options, arguments.workspace, arguments.stream, params.tiles, params.mod,
                         params.listed);
    }
    if (config_.splits_keys()) {
      char* workspace = static_cast<char*>(arguments.workspace);
      params.tiles.tickets = reinterpret_cast<shared::TicketWord*>(workspace + split_at_);
      params.tiles.launch = gpu::next_launch();
      params.parts = workspace + parts_at_;
    }
    gpu::set_mod_values(layout_, *arguments.bindings, kv_start_.bindings(), params.mod);
    if (own_kv_start_ >= 0) params.mod.captures[own_kv_start_].data = arguments.options->kv_start->data;
    const gpu::Launch launch = {.ctas = static_cast<unsigned>(grid_),
                                .threads = static_cast<unsigned>(config_.threads()),
                                .shared_bytes = static_cast<unsigned>(shared_bytes_)};
    for (int slice = 0; slice < config_.value_slices; ++slice) {
      if (slice > 0) stand_at_slice(config_, slice, v_dim_, o_dtype_, params);
      if (slice > 0 && config_.splits_keys()) params.tiles.launch = gpu::next_launch();
      program_->launch(function_, launch, arguments.stream, &params, "launching forward_mma");
    }
  }

  std::int64_t held_bytes() const override { return lists_ ? static_cast<std::int64_t>(lists_->bytes()) : 0; }

  base::JsonTree facts() const override {
    return gpu::kernel_facts(gpu_, source_, program_->code(),
                             fmt::format("{} CTAs of {} threads, {} bytes of shared memory", grid_, config_.threads(),
                                         shared::forward_mma_memory(config_).bytes),
                             static_cast<std::size_t>(held_bytes()));
  }

 private:
  const gpu::Gpu& gpu_;
  int device_;
  ForwardMmaConfig config_;
  int shared_bytes_;  // that a launch asks for
  std::int64_t v_dim_;
  DType o_dtype_;
  int grid_ = 0;
  device_text::ModLayout layout_;
  jit::Source source_;
  std::unique_ptr<gpu::Program> program_;
  gpu::KvStartValues kv_start_;
  int own_kv_start_ = -1;  // the capture that is each run's kv_start; -1: none is
  void* function_;
  ForwardMmaParams params_{};
  long long split_at_ = 0, parts_at_ = 0;  // in the workspace
  gpu::Memory page_starts_;                // of a list, where the host knows them
  std::optional<gpu::DeviceLists> lists_;
  std::optional<gpu::DeviceSequences> sequences_;  // where lengths are on the device
};

}  // namespace

void stand_at_slice(const ForwardMmaConfig& config, int number, std::int64_t v_dim, DType o_dtype,
                    shared::ForwardParams& params) {
  if (number == 0) return;
  const std::int64_t begin = v_dim - config.v_dim;
  params.v.data = static_cast<const char*>(params.v.data) + begin * config.kv_element_bytes();
  params.outputs.o = static_cast<char*>(params.outputs.o) + begin * size_of(o_dtype);
}

std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu) {
  return std::make_unique<ForwardMmaKernel>(arguments, gpu);
}

}  // namespace heddle::forward_mma
