// The Hopper forward family's kernel, ready to launch.
#include <fmt/format.h>

#include <algorithm>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "backend/cuda/driver/cuda_objects.h"
#include "backend/cuda/hopper/tensor_map.h"
#include "backend/cuda/launch/cuda_gpu.h"
#include "backend/gpu/copied_tensors.h"
#include "backend/gpu/device_lists.h"
#include "backend/gpu/device_sequences.h"
#include "backend/gpu/kernel_facts.h"
#include "backend/gpu/kv_start_values.h"
#include "backend/gpu/page_tables.h"
#include "backend/gpu/row_tensors.h"
#include "backend/gpu/sequence_spans.h"
#include "backend/gpu/set_mod_values.h"
#include "backend/gpu/stored_mask_launch.h"
#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "families/forward_sm90/shared/forward_sm90_params.h"
#include "plan/access/tma_refuses.h"
#include "plan/mods/streamed_read.h"

namespace heddle::forward_sm90 {
namespace {

using shared::ForwardSm90Config;
using shared::ForwardSm90Params;

class ForwardSm90Kernel final : public backend::Kernel {
 public:
  explicit ForwardSm90Kernel(const backend::PrepareArguments& arguments)
      : device_(arguments.plan.device),
        config_(arguments.plan.part<shared::ForwardSm90Config>()),
        packed_sequences_(arguments.problem.packed ? arguments.problem.batch : 0),
        paged_(arguments.problem.page_rows > 0),
        grid_(0),
        layout_(device_text::layout_of(arguments.plan.mods.of_kernel(config_.stores_mask()))),
        source_(jit::with_invariant_rows(
            jit::with_alternative(source(config_, arguments.plan.mods, layout_), arguments.plan.has_alternative),
            arguments.problem.batch_invariant)),
        program_(gpu_.load(device_, source_)),
        kv_start_(gpu_.devices(), device_, arguments.plan.mods.kv_start, arguments.problem.sequences,
                  arguments.options.kv_start),
        function_(program_->function("forward_sm90", shared::forward_sm90_memory(config_).bytes)) {
    const plan::KernelMods& mods = arguments.plan.mods;
    set_constants(arguments, mods);
    if (arguments.problem.device_kv_starts) own_kv_start_ = gpu::slot_of(layout_, plan::kKvStartName);
    if (config_.streamed_bytes > 0) streamed_ = mods.streamed;
    const plan::TileSchedule& schedule = *arguments.plan.schedule;
    grid_ = schedule.grid;
    any_keys_ = !schedule.items.empty() && params_.tensors.kv_len > 0;
    if (grid_ > 0 && std::ranges::any_of(arguments.plan.copies, [](const auto& copy) { return copy.has_value(); })) {
      copied_.emplace(gpu_, arguments);
      if (copied_->has_capture()) reach_ = plan::tile_reach(arguments.problem);
    }
    std::vector<shared::SequenceSpan> spans;
    if (config_.by_sequence && !config_.device_lengths) spans = gpu::spans_of(arguments.problem);
    if (grid_ > 0) {
      lists_.emplace(gpu_.devices(), device_, schedule, spans);
      lists_->set(params_.tiles, params_.fills, params_.mod);
      params_.mask_words.words_at = lists_->mask_words_at();
    }
    if (grid_ > 0 && config_.stores_mask()) {
      stored_mask_.emplace(gpu_, device_, config_.tile(), config_.by_sequence, schedule.stored, mods.stored_mask(),
                           arguments.bindings, kv_start_.bindings(), params_.mod);
      params_.mask_words.words = stored_mask_->words();
    }
    if (grid_ > 0 && config_.device_lengths) {
      if (!any_keys_) params_.tiles.item_count = 0;  // its tiles are of the longest sequences, without keys too
      sequences_.emplace(gpu_, device_, arguments.problem, config_.tile(), params_.tiles,
                         gpu::steps_before(schedule.runs));
    }
  }

  void launch(const backend::RunArguments& arguments) const override {
    if (grid_ == 0) return;
    const gpu::CopiedTensors::Tensors given = given_tensors(arguments.tensors, *arguments.bindings);
    const gpu::CopiedTensors::Tensors all = copied_ && any_keys_ ? copied_->reached(given, arguments.workspace) : given;
    AttentionTensors tensors = arguments.tensors;
    tensors.q = all.of[0], tensors.k = all.of[1], tensors.v = all.of[2];
    if (any_keys_) {
      gpu::check_address("q", tensors.q.data, plan::kTmaBytes);
      gpu::check_address("k", tensors.k.data, plan::kTmaBytes);
      gpu::check_address("v", tensors.v.data, plan::kTmaBytes);
    }
    const int o_bytes = bytes_of_o(tensors.o.dtype);
    gpu::check_address("o", tensors.o.data, o_bytes > 0 ? o_bytes : plan::kTmaBytes);

    const cuda::ContextScope scope(device_);
    ForwardSm90Params params = params_;
    cuda::CUtensorMap maps[4] = {};  // not read where no tile has a key
    if (any_keys_) {
      maps[0] = map_of(tensors.q, false);
      if (config_.gathers()) {
        params.pages.gathered[shared::kGatherK].data = tensors.k.data;
        params.pages.gathered[shared::kGatherV].data = tensors.v.data;
      } else {
        maps[1] = map_of(tensors.k, true);
        maps[2] = map_of(tensors.v, true);
      }
      if (o_bytes == 0) maps[3] = map_of(tensors.o, false);
    }
    cuda::StreamedMaps streamed{};
    if (streamed_ && any_keys_) streamed = cuda::streamed_maps(all.of[plan::kCopiedCapture], config_.streamed_box());
    if (paged_) gpu::set_table(*arguments.options, params.pages.table);
    params.outputs.o = tensors.o.data;
    if (tensors.lse) params.outputs.lse = static_cast<float*>(tensors.lse->data);
    if (tensors.max_scores) params.max_scores.data = static_cast<float*>(tensors.max_scores->data);
    if (tensors.lse_rest) params.lse_rest.data = static_cast<float*>(tensors.lse_rest->data);
    if (config_.sinks) params.sinks.data = static_cast<const float*>(arguments.options->sinks->data);
    params.tiles.tickets = static_cast<shared::TicketWord*>(arguments.workspace);
    params.tiles.launch = gpu::next_launch();
    if (sequences_)
      sequences_->launch(*arguments.options, arguments.workspace, arguments.stream, params.tiles, params.mod,
                         params.listed);
    if (copied_ && any_keys_)
      copied_->launch(given, params.mod.sequences, params.pages.table, arguments.workspace, arguments.stream);
    gpu::set_mod_values(layout_, *arguments.bindings, kv_start_.bindings(), params.mod);
    if (own_kv_start_ >= 0) params.mod.captures[own_kv_start_].data = arguments.options->kv_start->data;
    if (config_.fp8()) {
      params.descales.q = gpu::descale_of(arguments.options->q_descale);
      params.descales.k = gpu::descale_of(arguments.options->k_descale);
      params.descales.v = gpu::descale_of(arguments.options->v_descale);
    }
    void* parameters[] = {&maps[0], &maps[1], &maps[2], &maps[3], &params, &streamed.panels, &streamed.rest};

    const gpu::Launch launch = {.ctas = static_cast<unsigned>(grid_),
                                .threads = static_cast<unsigned>(config_.threads()),
                                .shared_bytes = static_cast<unsigned>(shared::forward_sm90_memory(config_).bytes)};
    program_->enqueue(function_, launch, arguments.stream, parameters, "launching forward_sm90");
  }

  std::int64_t held_bytes() const override {
    return (lists_ ? static_cast<std::int64_t>(lists_->bytes()) : 0) + (stored_mask_ ? stored_mask_->bytes() : 0);
  }

  base::JsonTree facts() const override {
    base::JsonTree facts = gpu::kernel_facts(gpu_, source_, program_->code(),
                                             fmt::format("{} CTAs of {} threads, {} bytes of shared memory", grid_,
                                                         config_.threads(), shared::forward_sm90_memory(config_).bytes),
                                             lists_ ? lists_->bytes() : 0);
    if (copied_) facts["copied bytes"] = copied_->bytes();
    if (stored_mask_) {
      facts["mask bits"] =
          fmt::format("{} bytes, of {} partial blocks", stored_mask_->bytes(), stored_mask_->partial_blocks());
    }
    return facts;
  }

 private:
  cuda::CUtensorMap map_of(ConstTensorView tensor, bool keys) const {
    if (keys && config_.page_rows > 0) {
      return cuda::tensor_map_before_ends(tensor, tensor.data, config_.page_box(), config_.page_rows);
    }
    const int box_rows = keys ? config_.kv_block : std::min(shared::kWarpgroupRows, config_.queries());
    const int longest = keys ? params_.tensors.kv_len : params_.tensors.q_len;
    if (!config_.by_sequence) return cuda::tensor_map(tensor, tensor.data, box_rows);
    if (packed_sequences_ > 0 && !(keys && paged_)) tensor = gpu::by_sequence(tensor, packed_sequences_);
    return cuda::tensor_map_before_ends(tensor, tensor.data, box_rows, longest);
  }

  /// With the capture that is streamed, if one is. Throws where it is to be read in place, and TMA cannot.
  gpu::CopiedTensors::Tensors given_tensors(const AttentionTensors& tensors, const Bindings& bindings) const {
    gpu::CopiedTensors::Tensors given = {{tensors.q, tensors.k, tensors.v, {}}};
    if (!streamed_ || !any_keys_) return given;
    const ConstTensorView& capture = bindings.captures.at(streamed_->capture);
    ConstTensorView& in_tiles = given.of[plan::kCopiedCapture];
    in_tiles = plan::in_tiles(*streamed_, capture, reach_);
    std::string reason = capture.count() > 0 ? "" : fmt::format("capture '{}' has no elements", streamed_->capture);
    if (reason.empty() && copied_ && copied_->has_capture()) {
      copied_->check_capture(*streamed_, capture, in_tiles);
      return given;
    }
    if (reason.empty()) reason = plan::refuses_streaming(*streamed_, capture);
    if (reason.empty()) return given;
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} (the plan streams it by TMA, as it could the planned one)", reason));
  }

  /// Bytes that threads store at a time; 0: TMA stores o.
  int bytes_of_o(DType dtype) const {
    if (!config_.stores_o_by_threads()) return 0;
    return static_cast<int>(size_of(dtype)) * (config_.odd_o ? 1 : 2);
  }

  /// `tensors`: as the kernel reads them.
  void set_pages(const backend::PrepareArguments& arguments, const AttentionTensors& tensors) {
    params_.pages.table = gpu::planned_table(arguments.problem, arguments.options, arguments.tensors.k.shape[0]);
    page_starts_ = gpu::upload_page_starts(gpu_.devices(), device_, arguments.problem, params_.pages.table);
    for (int axis = 0; axis < 3; ++axis) {
      params_.pages.gathered[shared::kGatherK].stride[axis] = tensors.k.strides[axis];
      params_.pages.gathered[shared::kGatherV].stride[axis] = tensors.v.strides[axis];
    }
  }

  void set_constants(const backend::PrepareArguments& arguments, const plan::KernelMods& mods) {
    const problem::AttentionProblem& problem = arguments.problem;
    if (problem.sequences.empty()) return;
    params_.tensors.q_len = gpu::longest(problem, &Sequence::q_len);
    params_.tensors.kv_len = gpu::longest(problem, &Sequence::kv_len);
    params_.tensors.last_block = (params_.tensors.kv_len - 1) / config_.kv_block;
    params_.group = static_cast<int>(problem.group());
    AttentionTensors tensors = arguments.tensors;
    const auto& copies = arguments.plan.copies;
    if (copies[0]) tensors.q = plan::copy_of(*copies[0], tensors.q.dtype, nullptr);
    if (copies[1]) tensors.k = plan::copy_of(*copies[1], tensors.k.dtype, nullptr);
    if (copies[2]) tensors.v = plan::copy_of(*copies[2], tensors.v.dtype, nullptr);
    if (packed_sequences_ > 0) {
      tensors.o = gpu::by_sequence(tensors.o, packed_sequences_);
      if (tensors.lse) tensors.lse = gpu::by_sequence(*tensors.lse, packed_sequences_);
      if (tensors.max_scores) tensors.max_scores = gpu::by_sequence(*tensors.max_scores, packed_sequences_);
      if (tensors.lse_rest) tensors.lse_rest = gpu::by_sequence(*tensors.lse_rest, packed_sequences_);
    }
    if (paged_) set_pages(arguments, tensors);
    params_.tensors.q_batched = tensors.q.shape[0] > 1;
    params_.tensors.k_batched = tensors.k.shape[0] > 1;
    params_.tensors.v_batched = tensors.v.shape[0] > 1;
    if (mods.cap != 0) set_cap(plan::cap_series(mods, problem.scale));
    params_.flat.from = mods.flat_from;
    params_.flat.to = mods.flat_to;
    params_.mask_repeats_to = mods.mask_repeats_to;
    params_.scale = static_cast<float>(problem.scale * mods.factor);
    const double unit = config_.normalizer == shared::Normalizer::none ? 1 : std::numbers::log2e;
    params_.scale_log2 = static_cast<float>(problem.scale * mods.factor * unit);
    set_natural(mods);
    if (config_.sinks) params_.sinks.stride = arguments.options.sinks->strides[0];
    for (int axis = 0; axis < 3; ++axis) {
      params_.outputs.o_stride[axis] = tensors.o.strides[axis];
      if (tensors.lse) params_.outputs.lse_stride[axis] = tensors.lse->strides[axis];
      if (tensors.max_scores) params_.max_scores.stride[axis] = tensors.max_scores->strides[axis];
      if (tensors.lse_rest) params_.lse_rest.stride[axis] = tensors.lse_rest->strides[axis];
    }
    params_.mod.q_len = params_.tensors.q_len;
    params_.mod.kv_len = params_.tensors.kv_len;
    params_.mod.q_start = static_cast<int>(problem.sequences.front().q_start);
    params_.listed.q_heads = static_cast<int>(problem.q_heads);
  }

  /// lse in two words: what makes a row's maximum natural, in two words too. The kernel's factors are rounded, so it is
  /// not ln 2.
  void set_natural(const plan::KernelMods& mods) {
    double natural = std::numbers::ln2;
    const bool mapped = config_.scores == shared::ScoreForm::added || config_.scores == shared::ScoreForm::mapped;
    if (mapped) natural = 1 / static_cast<double>(static_cast<float>(std::numbers::log2e));
    if (config_.scores == shared::ScoreForm::plain && mods.cap == 0 && params_.scale_log2 != 0) {
      natural = static_cast<double>(params_.scale) / static_cast<double>(params_.scale_log2);
    }
    params_.natural[0] = static_cast<float>(natural);
    params_.natural[1] = static_cast<float>(natural - static_cast<double>(params_.natural[0]));
  }

  void set_cap(const plan::CapSeries& series) {
    params_.cap.inside = static_cast<float>(series.inside);
    params_.cap.outside = static_cast<float>(series.outside);
    for (int i = 0; i < 3; ++i) params_.cap.series[i] = static_cast<float>(series.coefficients[i]);
    params_.cap.limit = static_cast<float>(series.limit);
  }

  const gpu::Gpu& gpu_ = cuda::cuda_gpu();
  int device_;
  ForwardSm90Config config_;
  std::int64_t packed_sequences_;  // 0: the batch is padded
  bool paged_;                     // k and v are, which a copy of them is not
  int grid_;
  bool any_keys_ = false;
  device_text::ModLayout layout_;
  jit::Source source_;
  std::unique_ptr<gpu::Program> program_;
  gpu::KvStartValues kv_start_;
  int own_kv_start_ = -1;  // the capture that is each run's kv_start; -1: none is
  void* function_;
  ForwardSm90Params params_{};
  std::optional<plan::StreamedRead> streamed_;
  std::optional<gpu::DeviceLists> lists_;
  std::optional<gpu::StoredMask> stored_mask_;
  gpu::Memory page_starts_;                        // of a list, where the host knows them
  std::optional<gpu::DeviceSequences> sequences_;  // where lengths are on the device
  std::optional<gpu::CopiedTensors> copied_;       // where some of them are read from copies
  plan::TileReach reach_;                          // of a capture's copy
};

}  // namespace

std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments) {
  return std::make_unique<ForwardSm90Kernel>(arguments);
}

}  // namespace heddle::forward_sm90
