// Every kernel that the planner may choose, compiled by NVRTC: no spills and no serialised products, where masks read
// nothing; masks that read captures take registers, so for them it is enough that one kernel of each head dim is left.
// f16 is compiled with one mask only: its kernels differ in a few instructions. HEDDLE_TEST_REDUCED takes no other.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "backend/cuda/emit/forward_sm90.h"
#include "backend/cuda/jit/jit.h"
#include "expr/simplify.h"
#include "heddle/mods.h"
#include "plan/families/forward_sm90_costs.h"

namespace heddle::cuda {
namespace {

using plan::ForwardSm90Kernel;
using plan::kForwardSm90Kernels;

struct NamedMask {
  std::string name;
  Expr mask;  // empty: none
};

/// Keeps kernels in a folder of its own.
class CompileTable : public testing::Test {
 protected:
  std::filesystem::path folder_;

  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "heddle-table-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    ::setenv("HEDDLE_CACHE_DIR", name.c_str(), 1);
    jit::forget();
    const std::string missing = jit::compiler_missing();
    if (missing.empty()) return;
    if (std::getenv("HEDDLE_REQUIRE_NVRTC") != nullptr) FAIL() << missing;
    GTEST_SKIP() << missing;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
};

jit::Source source_of(const ForwardSm90Kernel& kernel, bool f16, const NamedMask& named) {
  shared::ForwardSm90Config config = kernel.config();
  config.f16 = f16;
  config.lse = true;
  config.masked = !named.mask.empty();
  const Expr mask = config.masked ? expr::simplify(named.mask, expr::Precision::f32) : Expr();
  return emit::forward_sm90(config, mask, emit::layout_of({mask}));
}

std::string describe(const ForwardSm90Kernel& kernel, bool f16, const NamedMask& mask) {
  return fmt::format("D {}, {} x 64 queries, {} keys, {}, {}", kernel.head_dim, kernel.warpgroups, kernel.kv_block,
                     f16 ? "f16" : "bf16", mask.name);
}

void expect_accepted(const ForwardSm90Kernel& kernel, bool f16, const NamedMask& mask) {
  SCOPED_TRACE(describe(kernel, f16, mask));
  try {
    const auto cubin = jit::build(source_of(kernel, f16, mask));
    EXPECT_EQ(cubin->spill_bytes, 0);
    fmt::print("{}: {} registers, {:.0f} ms\n", describe(kernel, f16, mask), cubin->registers, cubin->compile_ms);
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST_F(CompileTable, KernelsWithoutReadsAreAllAccepted) {
  const std::vector<NamedMask> masks{
      {"no mask", {}}, {"causal", mods::causal()}, {"window", mods::sliding_window(1024)}};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    expect_accepted(kernel, true, masks[1]);
    if (std::getenv("HEDDLE_TEST_REDUCED") != nullptr) continue;
    for (const NamedMask& mask : masks) expect_accepted(kernel, false, mask);
  }
}

TEST_F(CompileTable, MasksThatReadFindAKernel) {
  const std::vector<NamedMask> masks{
      {"documents", mods::documents(Capture("ids", DType::i32, 1))},
      {"documents and causal", mods::documents(Capture("ids", DType::i32, 1)) && mods::causal()}};
  for (const NamedMask& mask : masks) {
    std::map<int, int> accepted;
    for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
      int& count = accepted[kernel.head_dim];
      try {
        jit::build(source_of(kernel, false, mask));
        ++count;
      } catch (const jit::Rejected& rejected) {
        fmt::print("{}\n", rejected.what());
      }
    }
    for (const auto& [head_dim, count] : accepted) EXPECT_GE(count, 1) << mask.name << ", D " << head_dim;
  }
}

}  // namespace
}  // namespace heddle::cuda
