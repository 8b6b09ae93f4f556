#include "engine/planners_mask.h"

#include <fmt/format.h>

#include <optional>
#include <span>

#include "base/environment.h"
#include "base/on_host.h"
#include "mask/build.h"
#include "mask/shape.h"

namespace heddle::engine {
namespace {

/// The GPU in whose memory all captures of the mask are; none when it reads nothing, or something elsewhere.
std::optional<Device> device_of_captures(const Expr& mask, const Bindings& bindings) {
  std::optional<Device> device;
  for (const auto& [name, declared] : symbols_of(mask).captures) {
    const Device& holder = bindings.captures.at(name).device;
    if (holder.kind == DeviceKind::cpu || (device && !(*device == holder))) return {};
    device = holder;
  }
  return device;
}

/// Rows whose every block is partial.
mask::Rows all_partial(const MaskShape& shape, BlockSize block, std::span<const mask::Matrix> matrices) {
  mask::Rows rows;
  for (const mask::Matrix& matrix : matrices) {
    const Sequence& sequence = shape.sequences[static_cast<std::size_t>(matrix.sequence)];
    const std::int64_t columns = mask::block_count(sequence.kv_len, block.kv);
    for (std::int64_t row = 0; row < mask::block_count(sequence.q_len, block.q); ++row) {
      if (columns > 0) rows.runs.push_back({0, static_cast<std::int32_t>(columns), RunKind::partial});
      rows.offset.push_back(std::ssize(rows.runs));
    }
  }
  return rows;
}

}  // namespace

Bindings mask_bindings(const Expr& mask, const Bindings& given, base::OnHost& host) {
  Bindings own = {.captures = {}, .params = given.params};
  if (mask.empty()) return own;
  for (const auto& [name, declared] : symbols_of(mask).captures) {
    own.captures[name] = host.view(given.captures.at(name));
  }
  return own;
}

std::shared_ptr<const BlockMask> MaskRows::operator()(const problem::AttentionProblem& problem,
                                                      const AttentionOptions& options, BlockSize block) {
  if (options.block_mask != nullptr) {
    base::OnHost host;
    options.block_mask->check_current(mask_bindings(problem.mask_mod, options.bindings, host));
    return options.block_mask;
  }
  if (problem.mask_mod.empty()) return nullptr;
  if (last_ == nullptr || last_->block() != block) last_ = build(problem, options, options.bindings, block);
  return last_;
}

std::shared_ptr<const BlockMask> MaskRows::updated(const problem::AttentionProblem& problem,
                                                   const AttentionOptions& options, const BlockMask& rows,
                                                   const Bindings& bindings) {
  last_ = nullptr;
  if (options.block_mask == nullptr) return build(problem, options, bindings, rows.block());
  base::OnHost host;
  auto rebuilt = std::make_shared<BlockMask>(rows);
  rebuilt->update(mask_bindings(problem.mask_mod, bindings, host), options.threads);
  return rebuilt;
}

std::shared_ptr<const BlockMask> MaskRows::build(const problem::AttentionProblem& problem,
                                                 const AttentionOptions& options, const Bindings& bindings,
                                                 BlockSize block) {
  const MaskShape shape = {problem.q_heads, problem.sequences};
  const DType reals = problem.precision == expr::Precision::f64 ? DType::f64 : DType::f32;
  const std::optional<Device> device = device_of_captures(problem.mask_mod, bindings);
  found_.clear();
  if (problem::reads_device_lengths(problem, problem.mask_mod)) {
    found_ = fmt::format("nowhere: the mask reads what only {} knows of the sequences; every block of keys is partial",
                         problem::name(problem.device));
    const auto find = [](const Expr&, const MaskShape& of, BlockSize size, std::span<const mask::Matrix> matrices,
                         const Bindings&) { return all_partial(of, size, matrices); };
    return std::make_shared<const BlockMask>(
        mask::build_elsewhere(problem.mask_mod, shape, block, bindings, find, problem.clamp_reads));
  }
  if (device && !base::value_of(base::Option::host_masks).empty()) {
    found_ = fmt::format("on the host: {} is set", base::name_of(base::Option::host_masks));
  } else if (device) {
    backend::BuiltMask built = backend::find_device_kind(device->kind)
                                   ->build_mask(device->index, problem.mask_mod, shape, block, bindings, reals,
                                                problem.clamp_reads, on_device_);
    if (built.mask != nullptr) {
      found_ = fmt::format("on {}", problem::name(*device));
      return built.mask;
    }
    found_ = fmt::format("on the host: {}", built.refused);
  }
  base::OnHost host;
  const Bindings there = mask_bindings(problem.mask_mod, bindings, host);
  return std::make_shared<BlockMask>(
      BlockMask::build(problem.mask_mod, shape, block, there, options.threads, reals, problem.clamp_reads));
}

}  // namespace heddle::engine
