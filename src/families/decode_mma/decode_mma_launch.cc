// decode_mma's kernels on a GPU, ready to launch.
#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backend/gpu/device_lists.h"
#include "backend/gpu/device_sequences.h"
#include "backend/gpu/kernel_facts.h"
#include "backend/gpu/kv_start_values.h"
#include "backend/gpu/page_tables.h"
#include "backend/gpu/sequence_spans.h"
#include "backend/gpu/set_mod_values.h"
#include "families/decode_mma/decode_mma.h"
#include "families/decode_mma/decode_mma_arguments.h"
#include "families/decode_mma/decode_mma_shared_keys.h"
#include "families/decode_mma/shared/decode_mma_memory.h"

namespace heddle::decode_mma {
namespace {

using shared::DecodeMmaBoxParams;
using shared::DecodeMmaParams;
using shared::ForwardMmaConfig;

jit::Source source_of(const ForwardMmaConfig& config, const backend::PrepareArguments& arguments, const gpu::Gpu& gpu) {
  const plan::Plan& plan = arguments.plan;
  return jit::with_invariant_rows(
      jit::with_alternative(source(config, plan.mods, device_text::layout_of(plan.mods.of_kernel(false)), gpu.dialect(),
                                   gpu.architecture_of(plan.device)),
                            plan.has_alternative),
      arguments.problem.batch_invariant);
}

/// The kernel of shared keys, which runs before that of the sequences' own keys, `own`.
class SharedKeysKernel {
 public:
  SharedKeysKernel(const ForwardMmaConfig& own, const backend::PrepareArguments& arguments, const gpu::Gpu& gpu)
      : gpu_(gpu),
        device_(arguments.plan.device),
        config_(plan::shared_keys_config(own)),
        shared_bytes_(shared::decode_mma_memory(config_).bytes),
        program_(gpu.load(device_, source_of(config_, arguments, gpu))),
        function_(program_->function("shared_keys", shared_bytes_)) {}

  void launch(const DecodeMmaParams& params, const AttentionTensors& tensors, void* stream) const {
    const gpu::Launch launch = {.ctas = static_cast<unsigned>(params.tiles),
                                .height = static_cast<unsigned>(params.prefix_gangs),
                                .threads = static_cast<unsigned>(config_.threads()),
                                .shared_bytes = static_cast<unsigned>(shared_bytes_),
                                .overlaps = config_.overlaps};
    DecodeMmaBoxParams with_maps{params, {}, {}, 0, 0};
    set_box_numbers(config_, tensors.k, with_maps);
    gpu_.describe_rows(device_, tensors.k, config_.box_rows(), with_maps.longest, &with_maps.first);
    gpu_.describe_rows(device_, tensors.v, config_.box_rows(), with_maps.longest, &with_maps.rest);
    program_->launch(function_, launch, stream, &with_maps, "launching shared_keys");
  }

  std::string text() const {
    return fmt::format("before it shared_keys: {} rows x {} keys in CTAs of {} threads, {} registers each",
                       config_.live_rows, config_.kv_block, config_.threads(), program_->code().registers);
  }

 private:
  const gpu::Gpu& gpu_;
  int device_;
  ForwardMmaConfig config_;
  int shared_bytes_;
  std::unique_ptr<gpu::Program> program_;
  void* function_;
};

class DecodeMmaKernel final : public backend::Kernel {
 public:
  DecodeMmaKernel(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu)
      : gpu_(gpu),
        device_(arguments.plan.device),
        grid_(arguments.plan.grid),
        config_(arguments.plan.part<ForwardMmaConfig>()),
        shared_bytes_(shared::decode_mma_memory(config_).bytes),
        layout_(device_text::layout_of(arguments.plan.mods.of_kernel(false))),
        source_(source_of(config_, arguments, gpu)),
        program_(gpu.load(device_, source_)),
        kv_start_(gpu.devices(), device_, arguments.plan.mods.kv_start, arguments.problem.sequences,
                  arguments.options.kv_start),
        function_(program_->function("decode_mma", shared_bytes_)),
        params_(constant_params(arguments)),
        page_starts_(gpu::upload_page_starts(gpu.devices(), device_, arguments.problem, params_.table)) {
    if (config_.shares_elsewhere()) shared_keys_.emplace(config_, arguments, gpu);
    if (arguments.problem.device_kv_starts) own_kv_start_ = gpu::slot_of(layout_, plan::kKvStartName);
    if (!config_.by_sequence || config_.device_lengths) return;
    params_.mod.sequences = uploaded(gpu::spans_of(arguments.problem), spans_);
    if (!config_.prefixed()) return;
    params_.prefix_group = {uploaded(arguments.problem.prefix_group, prefix_group_), 1, 1};
    params_.prefix_len = {uploaded(arguments.problem.prefix_len, prefix_len_), 1, 1};
  }

  void launch(const backend::RunArguments& arguments) const override {
    DecodeMmaParams params = params_;
    set_addresses(config_, arguments, grid_, params);
    params.launch = gpu::next_launch();
    gpu::set_mod_values(layout_, *arguments.bindings, kv_start_.bindings(), params.mod);
    if (own_kv_start_ >= 0) params.mod.captures[own_kv_start_].data = arguments.options->kv_start->data;
    const gpu::Launch launch = {.ctas = static_cast<unsigned>(params_.tiles),
                                .height = static_cast<unsigned>(grid_ / params_.tiles),
                                .threads = static_cast<unsigned>(config_.threads()),
                                .shared_bytes = static_cast<unsigned>(shared_bytes_),
                                .overlaps = config_.overlaps || shared_keys_.has_value()};
    if (shared_keys_) shared_keys_->launch(params, arguments.tensors, arguments.stream);
    constexpr const char* kWhat = "launching decode_mma";
    if (!config_.boxes) return program_->launch(function_, launch, arguments.stream, &params, kWhat);
    DecodeMmaBoxParams with_maps{params, {}, {}, 0, 0};
    const ConstTensorView& k = arguments.tensors.k;
    const std::optional<ConstTensorView>& k_rest = arguments.options->k_rest;
    set_box_numbers(config_, k, with_maps);
    gpu_.describe_rows(device_, k, config_.block_keys(), with_maps.longest, &with_maps.first);
    if (k_rest) {
      gpu_.describe_rows(device_, *k_rest, config_.block_keys(), with_maps.longest, &with_maps.rest);
    }
    program_->launch(function_, launch, arguments.stream, &with_maps, kWhat);
  }

  std::int64_t held_bytes() const override {
    std::size_t bytes = 0;
    for (const auto* memory : {&spans_, &prefix_group_, &prefix_len_}) bytes += *memory ? (*memory)->bytes() : 0;
    return static_cast<std::int64_t>(bytes);
  }

  base::JsonTree facts() const override {
    return gpu::kernel_facts(gpu_, source_, program_->code(),
                             fmt::format("{} CTAs of {} threads, {} bytes of shared memory{}", grid_, config_.threads(),
                                         shared_bytes_, shared_keys_ ? "; " + shared_keys_->text() : ""),
                             static_cast<std::size_t>(held_bytes()));
  }

 private:
  template <class T>
  const T* uploaded(const std::vector<T>& values, std::optional<gpu::Memory>& to) const {
    to.emplace(gpu_.devices(), device_, values.size() * sizeof(T));
    gpu_.devices().copy_and_wait(device_, to->data(), values.data(), values.size() * sizeof(T));
    return static_cast<const T*>(to->data());
  }

  const gpu::Gpu& gpu_;
  int device_, grid_;
  ForwardMmaConfig config_;
  int shared_bytes_;
  device_text::ModLayout layout_;
  jit::Source source_;
  std::unique_ptr<gpu::Program> program_;
  gpu::KvStartValues kv_start_;
  int own_kv_start_ = -1;  // the capture that is each run's kv_start; -1: none is
  void* function_;
  std::optional<SharedKeysKernel> shared_keys_;
  DecodeMmaParams params_;
  gpu::Memory page_starts_;                               // of a list, where the host knows them
  std::optional<gpu::Memory> spans_;                      // where the host knows them, and they differ
  std::optional<gpu::Memory> prefix_group_, prefix_len_;  // i64, likewise
};

}  // namespace

std::unique_ptr<backend::Kernel> prepare(const backend::PrepareArguments& arguments, const gpu::Gpu& gpu) {
  return std::make_unique<DecodeMmaKernel>(arguments, gpu);
}

}  // namespace heddle::decode_mma
