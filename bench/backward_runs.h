// Backwards of the programs that time one kernel beside another: tensors, and runs of a planned kernel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "engine/machine.h"
#include "families/table.h"
#include "heddle/heddle.h"
#include "plan/plan.h"

namespace heddle::bench {

/// Head dims of q and k, and of v.
struct HeadDims {
  std::int64_t qk, v;
};

/// A problem's tensors: inputs drawn on the host, o and lse by the library, gradients.
struct Memory {
  Tensor q, k, v, d_o, o, lse, dq, dk, dv;
  AttentionOptions options{};

  /// So many query heads for each KV head: `group`.
  Memory(std::int64_t batch, std::int64_t heads, std::int64_t length, const HeadDims& dims, bool causal,
         const Device& gpu, DType dtype = DType::bf16, bool allow_tf32 = false, std::int64_t group = 1) {
    options.allow_tf32 = allow_tf32;
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto draw = [&](std::int64_t drawn_heads, std::int64_t dim) {
      Tensor pool = Tensor::empty(DType::f32, {1'000'003});
      std::generate_n(static_cast<float*>(pool.data()), pool.count(), [&] { return normal(random); });
      const Tensor numbers = pool.to(dtype);
      Tensor drawn = Tensor::empty(dtype, {batch, drawn_heads, length, dim});
      const auto own = static_cast<std::size_t>(numbers.count() * size_of(dtype)),
                 bytes = static_cast<std::size_t>(drawn.count() * size_of(dtype));
      for (std::size_t at = 0; at < bytes; at += own) {
        std::memcpy(static_cast<char*>(drawn.data()) + at, numbers.data(), std::min(own, bytes - at));
      }
      return drawn.to(gpu);
    };
    q = draw(heads, dims.qk), d_o = draw(heads, dims.v);
    k = draw(heads / group, dims.qk), v = draw(heads / group, dims.v);
    if (causal) options.mask_mod = mods::causal();
    AttentionResult forward = attention(q, k, v, options, true);
    o = std::move(forward.o), lse = std::move(forward.lse);
    // NaN, so that a check finds what nobody writes.
    const auto nobodys = [&](const Dims& shape) {
      Tensor nan = Tensor::empty(dtype, shape);
      std::memset(nan.data(), 0xff, static_cast<std::size_t>(nan.count() * size_of(dtype)));
      return nan.to(gpu);
    };
    dq = nobodys(q.view().shape), dk = nobodys(k.view().shape), dv = nobodys(v.view().shape);
  }
  BackwardTensors tensors() const {
    BackwardTensors all{.q = q, .k = k, .v = v, .o = o, .d_o = d_o};
    all.lse = lse;
    all.dq = dq.view(), all.dk = dk.view(), all.dv = dv.view();
    return all;
  }
};

/// One kernel's runs on the tensors of a Memory, which outlives it.
class BackwardRuns {
 public:
  /// `taken`: from the planner's list, the choice whose kernel runs; it may change its plan.
  template <class Taken>
  BackwardRuns(const AttentionOptions& options, const BackwardTensors& tensors, Taken&& taken)
      : options_(options), tensors_(tensors) {
    const AttentionTensors forward = problem::forward_tensors(tensors_);
    const problem::AttentionProblem problem = problem::validate(tensors_, options);
    const plan::Request request{problem, forward, options, engine::machine(), &tensors_};
    std::vector<plan::Choice> choices = plan::choose(request, [&](BlockSize block) -> std::shared_ptr<const BlockMask> {
      if (problem.mask_mod.empty()) return nullptr;
      return std::make_shared<BlockMask>(
          BlockMask::build(problem.mask_mod, {problem.q_heads, problem.sequences}, block));
    });
    const plan::Choice& choice = taken(choices);
    rows_ = choice.block_mask;
    kernel_ = plan::prepare_kernel(choice.plan, rows_.get(), request, options.bindings);
    workspace_ =
        Tensor::empty_on(tensors_.q.device, DType::u8, {std::max<std::int64_t>(1, choice.plan.workspace_bytes)});
  }

  void operator()(void* stream) const {
    kernel_->launch({.tensors = problem::forward_tensors(tensors_),
                     .options = &options_,
                     .bindings = &options_.bindings,
                     .block_mask = rows_.get(),
                     .workspace = workspace_.data(),
                     .stream = stream,
                     .backward = &tensors_});
  }
  const BackwardTensors& tensors() const { return tensors_; }

 private:
  const AttentionOptions& options_;
  BackwardTensors tensors_;
  std::shared_ptr<const BlockMask> rows_;
  std::unique_ptr<backend::Kernel> kernel_;
  Tensor workspace_;
};

/// "512,2048"
inline std::vector<std::int64_t> numbers_of(std::string_view text) {
  std::vector<std::int64_t> numbers;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    numbers.push_back(std::atoll(std::string(text.substr(at, end - at)).c_str()));
    at = end + 1;
  }
  return numbers;
}

}  // namespace heddle::bench
