// Checks each kernel in the table of the portable forward against the reference on a small problem, then times it, full
// and causal.
//
//   bench_forward_mma_variants [--dim D,...] [--lengths N,...] [--dtype bf16|f16|f32|f64] [--kernel I] [--times N]
//                              [--tf32 0|1] [--device I]
//
// Prints milliseconds and TFLOP/s of a run (causal counts half), or why a kernel cannot run. Exits 1 if o or lse fails
// the criterion of heddle/check.h.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "families/forward_mma/forward_mma.h"
#include "heddle/check.h"
#include "mma_variants.h"

namespace heddle::bench {
namespace {

/// A kernel's runs on the q, k, v, o and lse of a Memory.
class Runner {
 public:
  Runner(const Memory& memory, std::size_t number) : options_(memory.options) {
    tensors_ = {.q = memory.q, .k = memory.k, .v = memory.v, .o = memory.o.view()};
    tensors_.lse = memory.lse.view();
    const problem::AttentionProblem problem = problem::validate(tensors_, options_);
    const plan::Request request{problem, tensors_, options_, engine::machine()};
    std::vector<plan::Choice> choices = plan::choose(request, [&](BlockSize block) -> std::shared_ptr<const BlockMask> {
      if (problem.mask_mod.empty()) return nullptr;
      return std::make_shared<BlockMask>(
          BlockMask::build(problem.mask_mod, {problem.q_heads, problem.sequences}, block));
    });
    const plan::Choice& choice = choices.at(number);
    name = forward_mma::name_of(choice.plan.part<shared::ForwardMmaConfig>());
    rows_ = choice.block_mask;
    kernel_ = plan::prepare_kernel(choice.plan, rows_.get(), request, options_.bindings);
    workspace_ =
        Tensor::empty_on(tensors_.q.device, DType::u8, {std::max<std::int64_t>(1, choice.plan.workspace_bytes)});
  }
  void operator()(void* stream) const {
    kernel_->launch({.tensors = tensors_,
                     .options = &options_,
                     .bindings = &options_.bindings,
                     .block_mask = rows_.get(),
                     .workspace = workspace_.data(),
                     .stream = stream});
  }

  CheckReport check(const Memory& memory) const {
    return check_attention(memory.q, memory.k, memory.v, memory.options, memory.o, memory.lse.view());
  }

  std::string name;
  static constexpr std::int64_t kFlops = 4;

 private:
  const AttentionOptions& options_;
  AttentionTensors tensors_;
  std::shared_ptr<const BlockMask> rows_;
  std::unique_ptr<backend::Kernel> kernel_;
  Tensor workspace_;
};

}  // namespace
}  // namespace heddle::bench

int main(int count, char** words) {
  ::setenv("HEDDLE_FAMILY", "forward_mma", 1);  // the family alone, where another would be chosen
  return heddle::bench::run_variants<heddle::bench::Runner>(heddle::bench::parse_variants(count, words));
}
