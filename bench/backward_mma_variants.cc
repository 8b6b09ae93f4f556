// Checks each kernel in the table of the portable backward against the reference on a small problem, then times it,
// full and causal.
//
//   bench_backward_mma_variants [--dim D,...] [--lengths N,...] [--dtype bf16|f16|f32|f64] [--kernel I] [--times N]
//                               [--tf32 0|1] [--device I]
//
// Prints milliseconds and TFLOP/s of all kernels of a run (5 products; causal counts half), or why kernels cannot run.
// Exits 1 if gradients fail the criterion of heddle/check.h.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "families/backward_mma/backward_mma.h"
#include "mma_variants.h"

namespace heddle::bench {
namespace {

/// The runs of the kernels at a place of the planner's list.
class Runner {
 public:
  Runner(const Memory& memory, std::size_t number)
      : runs_(memory.options, memory.tensors(), [&](std::vector<plan::Choice>& choices) -> const plan::Choice& {
          name = backward_mma::name_of(choices.at(number).plan.part<plan::BackwardMmaKernels>());
          return choices[number];
        }) {}
  void operator()(void* stream) const { runs_(stream); }
  GradientReport check(const Memory& memory) const { return check_backward(runs_.tensors(), memory.options); }

  std::string name;
  static constexpr std::int64_t kFlops = 10;

 private:
  BackwardRuns runs_;
};

}  // namespace
}  // namespace heddle::bench

int main(int count, char** words) {
  ::setenv("HEDDLE_FAMILY", "backward_mma", 1);  // unproven families are for who asks for them
  return heddle::bench::run_variants<heddle::bench::Runner>(heddle::bench::parse_variants(count, words));
}
