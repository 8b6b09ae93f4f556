#include "backend/cuda/launch/forward_mma.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <vector>

#include "backend/cuda/driver/device.h"
#include "backend/cuda/emit/forward_mma.h"
#include "backend/cuda/jit/jit.h"
#include "backend/cuda/launch/device_lists.h"
#include "backend/cuda/launch/kv_start.h"
#include "backend/cuda/launch/mod_values.h"
#include "backend/cuda/launch/sequences.h"
#include "backend/forward_mma/params.h"
#include "shared/forward_mma_memory.h"

namespace heddle::cuda {
namespace {

using shared::ForwardMmaConfig;
using shared::ForwardMmaParams;

class ForwardMmaKernel final : public backend::Kernel {
 public:
  explicit ForwardMmaKernel(const backend::PrepareArguments& arguments)
      : device_(arguments.plan.device),
        config_(*arguments.plan.forward_mma),
        layout_(device_text::layout_of(arguments.plan.mods.of_kernel(false))),
        source_(emit::forward_mma(config_, arguments.plan.mods, layout_, architecture_of(device_))),
        cubin_(jit::build(source_)),
        module_(device_, cubin_->bytes, jit::compiler_number()),
        kv_start_(device_, arguments.plan.mods.kv_start, arguments.problem.sequences, arguments.options.kv_start),
        function_(module_.function("forward_mma", shared_bytes())),
        params_(forward_mma::constant_params(arguments)) {
    if (arguments.problem.device_kv_starts) own_kv_start_ = slot_of(layout_, plan::kKvStartName);
    const plan::TileSchedule& schedule = *arguments.plan.schedule;
    const auto items = static_cast<int>(schedule.items.size());
    grid_ = items * config_.splits;
    // Rows that no tile computes are filled by all CTAs.
    if (grid_ == 0) grid_ = std::min(static_cast<int>(schedule.fills.size()), 4 * arguments.plan.multiprocessors);
    if (grid_ == 0) return;
    std::vector<shared::SequenceSpan> spans;
    if (config_.by_sequence && !config_.device_lengths) spans = forward_mma::spans_of(arguments.problem);
    lists_.emplace(device_, schedule, spans);
    lists_->set(params_.tiles, params_.fills, params_.mod);
    if (config_.device_lengths) {
      split_at_ = (shared::sequences_memory(arguments.problem.batch, items).bytes + 255) / 256 * 256;
      if (params_.mod.kv_len == 0) params_.tiles.item_count = 0;  // tiles of the longest sequences, without keys too
      sequences_.emplace(arguments.problem, config_.tile(), device_, params_.tiles, steps_before(schedule.runs));
    }
    parts_at_ = split_at_ + shared::split_memory(config_, items).parts;
  }

  void launch(const backend::RunArguments& arguments) const override {
    if (grid_ == 0) return;
    ForwardMmaParams params = params_;
    forward_mma::set_addresses(config_, arguments, params);
    const ContextScope scope(device_);
    if (sequences_) {
      sequences_->launch(*arguments.options, arguments.workspace, arguments.stream, params.tiles, params.mod,
                         params.listed);
    }
    if (config_.splits_keys()) {
      char* workspace = static_cast<char*>(arguments.workspace);
      params.tiles.tickets = reinterpret_cast<shared::TicketWord*>(workspace + split_at_);
      params.tiles.run = next_run();
      params.parts = workspace + parts_at_;
    }
    set_mod_values(layout_, *arguments.bindings, kv_start_.bindings(), params.mod);
    if (own_kv_start_ >= 0) params.mod.captures[own_kv_start_].data = arguments.options->kv_start->data;
    void* parameters[] = {&params};
    const Launch launch = {.ctas = static_cast<unsigned>(grid_),
                           .threads = static_cast<unsigned>(config_.threads()),
                           .shared_bytes = static_cast<unsigned>(shared_bytes())};
    launch_kernel(function_, launch, arguments.stream, parameters, "launching forward_mma");
  }

  std::int64_t held_bytes() const override { return lists_ ? static_cast<std::int64_t>(lists_->bytes()) : 0; }

  nlohmann::ordered_json facts() const override {
    static constexpr std::string_view kFrom[] = {"compiled", "from memory", "from the disk cache"};
    nlohmann::ordered_json facts;
    facts["summary"] = fmt::format("{}: {} CTAs of {} threads, {} bytes of shared memory", source_.name, grid_,
                                   config_.threads(), shared_bytes());
    facts["name"] = source_.name;
    facts["cache key"] = jit::key_of(source_);
    facts["origin"] = kFrom[static_cast<std::size_t>(cubin_->from)];
    facts["compile ms"] = cubin_->compile_ms;
    facts["registers"] = cubin_->registers;
    facts["list bytes"] = held_bytes();
    facts["cache"] = jit::cache_notes();
    return facts;
  }

 private:
  int shared_bytes() const { return shared::forward_mma_memory(config_).bytes; }

  int device_;
  ForwardMmaConfig config_;
  int grid_ = 0;
  device_text::ModLayout layout_;
  jit::Source source_;
  std::shared_ptr<const jit::Cubin> cubin_;
  Module module_;
  KvStartValues kv_start_;
  int own_kv_start_ = -1;  // the capture that is each run's kv_start; -1: none is
  CUfunction function_;
  ForwardMmaParams params_;
  long long split_at_ = 0, parts_at_ = 0;  // in the workspace
  std::optional<DeviceLists> lists_;
  std::optional<DeviceSequences> sequences_;  // where lengths are on the device
};

}  // namespace

std::unique_ptr<backend::Kernel> prepare_forward_mma(const backend::PrepareArguments& arguments) {
  return std::make_unique<ForwardMmaKernel>(arguments);
}

}  // namespace heddle::cuda
