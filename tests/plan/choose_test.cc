// Which family is taken, and how a plan prints.
#include <gtest/gtest.h>

#include "plan/plan.h"
#include "problem/call.h"

namespace heddle::test {
namespace {

plan::Plan first_choice(const problem::AttentionProblem& problem, BackendChoice wanted, int threads,
                        const device::Caps& caps) {
  AttentionOptions options;
  options.backend = wanted;
  options.threads = threads;
  return plan::choose(problem, {}, options, {.cpu = caps, .cuda = {}, .cuda_missing = {}},
                      [](BlockSize) { return nullptr; })
      .front()
      .plan;
}

TEST(Choose, TakesTheCpuFamilyUnlessAskedForTheReference) {
  const problem::AttentionProblem problem = Call().validate();
  device::Caps caps;
  caps.cores = 5;
  for (const BackendChoice wanted : {BackendChoice::automatic, BackendChoice::cpu}) {
    const plan::Plan plan = first_choice(problem, wanted, 0, caps);
    EXPECT_EQ(plan.backend, BackendChoice::cpu);
    EXPECT_EQ(plan.family, "cpu_forward");
    EXPECT_EQ(plan.threads, 5);
  }
  const plan::Plan reference = first_choice(problem, BackendChoice::reference, 3, caps);
  EXPECT_EQ(reference.backend, BackendChoice::reference);
  EXPECT_EQ(reference.family, "reference");
  EXPECT_EQ(reference.threads, 3);
  EXPECT_EQ(reference.workspace_bytes, 0);
}

TEST(Choose, DoesNotLetThreadsChangeTheTile) {
  const problem::AttentionProblem problem = Call().validate();
  device::Caps caps;
  caps.cores = 64;
  const BlockSize tile = first_choice(problem, BackendChoice::cpu, 1, caps).tile;
  for (const int threads : {0, 2, 7, 64}) {
    EXPECT_EQ(first_choice(problem, BackendChoice::cpu, threads, caps).tile, tile);
  }
}

TEST(Plan, PrintsWhatItIsAndWhatWasRejected) {
  const plan::Plan plan = {.backend = BackendChoice::cpu,
                           .family = "cpu_forward",
                           .tile = {96, 128},
                           .workspace_bytes = 4096,
                           .threads = 2,
                           .rejected = {"tile of 192 queries: too many"}};
  EXPECT_EQ(to_string(plan),
            "cpu_forward on cpu, tile 96 queries x 128 keys, 2 threads, workspace 4096 bytes\n  rejected: tile of 192 "
            "queries: too many");
}

}  // namespace
}  // namespace heddle::test
