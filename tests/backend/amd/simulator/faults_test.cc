// Wrong kernels: each fault is found, and named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/amd/simulator/simulated.h"

namespace heddle::amd::simulator {
namespace {

using ::testing::HasSubstr;

class Faults : public OnEveryChip {
 protected:
  /// Launches, and expects this fault and no other.
  void expect_fault(Fault fault, const std::string& kernel, std::uint32_t groups, std::uint32_t block,
                    const Arguments& arguments, const std::string& words = "") {
    const Report report = gpu_.launch(kernel, {groups, 1, 1}, block, arguments);
    EXPECT_TRUE(report.findings.has(fault)) << kernel << ": " << report.findings.text();
    EXPECT_THAT(report.findings.text(), HasSubstr(words));
    for (const Finding& finding : report.findings.all()) EXPECT_EQ(finding.fault, fault) << report.findings.text();
  }

  Simulated gpu_{"faults", GetParam()};
  std::uint64_t in_ = gpu_.input(random_integers<std::uint32_t>(256));
  std::uint64_t out_ = gpu_.output<std::uint32_t>(128);
};
INSTANTIATE_TEST_SUITE_P(, Faults, ::testing::ValuesIn(chips()), [](const auto& chip) { return chip.param; });

TEST_P(Faults, missing_wait) {
  expect_fault(Fault::kWait, "missing_wait_for_global", 1, 64, Arguments().add(out_).add(in_),
               "is read before the load");
}

TEST_P(Faults, wait_for_another_load) {
  expect_fault(Fault::kWait, "wait_for_the_wrong_load", 1, 64, Arguments().add(out_).add(in_));
  gpu_.memory().forget(out_);
  gpu_.run("wait_for_the_right_load", {1, 1, 1}, 64, Arguments().add(out_).add(in_));
}

TEST_P(Faults, lds_not_written_before_the_barrier) {
  expect_fault(Fault::kRace, "barrier_before_lds_arrived", 1, 128, Arguments().add(out_), "LDS bytes");
}

TEST_P(Faults, missing_barrier) {
  const Report report = gpu_.launch("missing_barrier_after_write", {1, 1, 1}, 128, Arguments().add(out_).add(in_));
  EXPECT_TRUE(report.findings.has(Fault::kRace)) << report.findings.text();
  EXPECT_TRUE(report.findings.has(Fault::kUndefined))
      << "the first wave reads what no wave has written: " << report.findings.text();
  gpu_.memory().forget(out_);
  expect_fault(Fault::kRace, "missing_barrier_after_read", 1, 128, Arguments().add(out_).add(in_));
}

// Whatever order waves run in.
TEST_P(Faults, missing_barrier_in_every_order) {
  for (std::uint64_t order = 1; order < 8; ++order) {
    LaunchOptions options;
    options.wave_order = order;
    EXPECT_TRUE(gpu_.launch("missing_barrier_after_read", {1, 1, 1}, 128, Arguments().add(out_).add(in_), options)
                    .findings.has(Fault::kRace));
  }
}

TEST_P(Faults, out_of_bounds) {
  const std::uint64_t eight = gpu_.input(std::vector<std::uint32_t>(8)),
                      eight_out = gpu_.output<std::uint32_t>(8, "eight words");
  expect_fault(Fault::kBounds, "out_of_bounds_write", 1, 64, Arguments().add(eight_out).add(8u),
               "0 bytes past the end of eight words");
  const Report read = gpu_.launch("out_of_bounds_read", {1, 1, 1}, 64, Arguments().add(out_).add(eight).add(8u));
  EXPECT_TRUE(read.findings.has(Fault::kBounds)) << read.findings.text();
  EXPECT_TRUE(read.findings.has(Fault::kUndefined)) << "what was read there is stored: " << read.findings.text();
}

TEST_P(Faults, lds_out_of_bounds) {
  std::vector<std::uint32_t> slots(64);
  for (std::uint32_t i = 0; i < 64; ++i) slots[i] = i;
  slots[20] = 64;
  const Report report = gpu_.launch("lds_out_of_bounds", {1, 1, 1}, 64, Arguments().add(out_).add(gpu_.input(slots)));
  EXPECT_TRUE(report.findings.has(Fault::kBounds)) << report.findings.text();
  EXPECT_THAT(report.findings.text(), HasSubstr("lane 20: LDS bytes 256 to 259, of 256"));
}

TEST_P(Faults, duplicate_store) {
  expect_fault(Fault::kDuplicate, "duplicate_store", 2, 64, Arguments().add(out_).add(63u), "another thread stored");
  const std::uint64_t fresh = gpu_.output<std::uint32_t>(96);
  gpu_.run("duplicate_store", {1, 1, 1}, 64, Arguments().add(fresh).add(63u));
  gpu_.memory().set_rewritable(fresh, true);
  gpu_.run("duplicate_store", {2, 1, 1}, 64, Arguments().add(fresh).add(63u));
}

TEST_P(Faults, misaligned_atomic) {
  const std::uint64_t counters = gpu_.input(std::vector<std::uint32_t>(2));
  expect_fault(Fault::kAlignment, "misaligned_atomic", 1, 64, Arguments().add(counters));
}

TEST_P(Faults, undefined_values) {
  expect_fault(Fault::kUndefined, "unwritten_lds", 1, 64, Arguments().add(out_));
  expect_fault(Fault::kUndefined, "unwritten_register", 1, 64, Arguments().add(out_));
  const std::uint64_t halves = gpu_.input(random_integers<std::uint16_t>(64)), nothing = gpu_.output<std::uint32_t>(4);
  expect_fault(Fault::kUndefined, "unwritten_half", 1, 64, Arguments().add(out_).add(halves),
               "stores bits that nothing wrote");
  expect_fault(Fault::kUndefined, "branch_on_unwritten_memory", 1, 64, Arguments().add(out_).add(nothing), "branch");
}

TEST_P(Faults, barrier_that_one_wave_does_not_reach) {
  const std::uint64_t all = gpu_.input(std::vector<std::uint32_t>(4, 1)),
                      some = gpu_.input(std::vector<std::uint32_t>{1, 0, 0, 0});
  gpu_.run("barrier_in_a_branch", {1, 1, 1}, 128, Arguments().add(out_).add(all));
  gpu_.memory().forget(out_);
  expect_fault(Fault::kBarrier, "barrier_in_a_branch", 1, 128, Arguments().add(out_).add(some));
}

TEST_P(Faults, endless_loop) {
  LaunchOptions options;
  options.longest_wave = 10'000;
  const std::uint64_t zero = gpu_.input(std::vector<std::uint32_t>(1));
  const Report report = gpu_.launch("runs_on", {1, 1, 1}, 64, Arguments().add(out_).add(zero), options);
  EXPECT_TRUE(report.findings.has(Fault::kRunaway));
  EXPECT_LT(report.instructions, 30'000u);
}

TEST_P(Faults, unknown_instruction) {
  try {
    gpu_.launch("uses_what_is_not_simulated", {1, 1, 1}, 64, Arguments().add(out_));
    FAIL() << "nothing was thrown";
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), HasSubstr("s_getreg_b32"));
    EXPECT_THAT(error.what(), HasSubstr("uses_what_is_not_simulated"));
  }
}

TEST_P(Faults, bad_launches) {
  const auto launch = [&](const std::string& kernel, std::uint32_t block, const Arguments& arguments) {
    gpu_.launch(kernel, {1, 1, 1}, block, arguments);
  };
  EXPECT_THROW(launch("no_such_kernel", 64, {}), std::runtime_error);
  EXPECT_THROW(launch("duplicate_store", 65, Arguments().add(out_).add(1u)), std::runtime_error);
  EXPECT_THROW(launch("duplicate_store", 64, Arguments().add(out_)), std::runtime_error);
  EXPECT_THROW(CodeObject::load("/dev/null"), std::runtime_error);
}

TEST_P(Faults, bank_conflicts_are_counted) {
  const std::uint64_t to = gpu_.output<std::uint32_t>(64);
  const Report report = gpu_.run("bank_conflicts", {1, 1, 1}, 64, Arguments().add(to).add(in_));
  // A store and a load of 64 threads, 32 of them in a cycle if nothing conflicts: 4 cycles. Here each takes one.
  EXPECT_EQ(report.lds.all, 128u);
  EXPECT_EQ(report.lds.conflicts, 124u);
}

TEST(FaultsOnGfx11, halves_of_an_operand_differ) {
  Simulated gpu("faults", "gfx1100");
  const std::uint64_t in = gpu.input(random_integers<std::uint8_t>(32 * 32)), out = gpu.output<float>(32 * 8);
  const Report report = gpu.launch("halves_differ", {1, 1, 1}, 32, Arguments().add(out).add(in));
  EXPECT_TRUE(report.findings.has(Fault::kDuplicate));
  EXPECT_THAT(report.findings.text(), HasSubstr("A: lane 0 holds"));
}

}  // namespace
}  // namespace heddle::amd::simulator
