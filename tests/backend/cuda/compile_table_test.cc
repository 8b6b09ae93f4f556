// Every kernel that the planner may choose, compiled by NVRTC: no spills, no serialised products and no addresses in
// vector registers, where masks read nothing; masks that read captures take registers, so for them it is enough that
// one kernel of each head dim is left. f16 is compiled with one mask only: its kernels differ in a few instructions,
// and so are the spare kernels. HEDDLE_TEST_REDUCED takes no other.
#include <elf.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "backend/cuda/emit/forward_sm90.h"
#include "backend/cuda/jit/jit.h"
#include "heddle/mods.h"
#include "plan/families/forward_sm90_costs.h"
#include "plan/families/forward_sm90_mods.h"

namespace heddle::cuda {
namespace {

using plan::ForwardSm90Kernel;
using plan::HeadDims;
using plan::kForwardSm90Kernels;

struct NamedMods {
  std::string name;
  plan::ForwardSm90Mods mods;
  bool by_sequence = false;
};

NamedMods named(std::string name, const Expr& mask, const Expr& score = {}, const Expr& weight = {}) {
  problem::AttentionProblem problem;
  problem.batch = problem.q_heads = problem.kv_heads = 1;
  problem.q_rows = problem.kv_rows = 8192;
  problem.sequences = {{.q_len = 8192, .kv_len = 8192}};
  problem.scale = 1;
  problem.mask_mod = mask;
  problem.score_mod = score;
  problem.weight_mod = weight;
  return {std::move(name), plan::forward_sm90_mods(problem)};
}

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

/// How many instructions of the kernel move a vector register to a uniform one (R2UR: the low twelve bits of sm_90's
/// 16-byte instructions).
int moves_to_uniform_registers(std::span<const char> cubin) {
  constexpr std::uint64_t kOpcode = 0xfff, kMove = 0x2ca;
  const auto read = [&]<class T>(std::size_t at, T) {
    T value;
    std::memcpy(&value, cubin.subspan(at, sizeof value).data(), sizeof value);
    return value;
  };
  const auto header = read(0, Elf64_Ehdr{});
  const auto section = [&](std::size_t i) { return read(header.e_shoff + i * sizeof(Elf64_Shdr), Elf64_Shdr{}); };
  int moves = 0;
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr text = section(i);
    if (text.sh_type != SHT_PROGBITS || (text.sh_flags & SHF_EXECINSTR) == 0) continue;
    for (std::size_t at = text.sh_offset; at < text.sh_offset + text.sh_size; at += 16) {
      if ((read(at, std::uint64_t{}) & kOpcode) == kMove) ++moves;
    }
  }
  return moves;
}

jit::Source source_of(shared::ForwardSm90Config config, bool f16, const NamedMods& named, bool lse = true) {
  config.f16 = f16;
  config.lse = lse;
  config.by_sequence = named.by_sequence;
  return emit::forward_sm90(plan::config_with(config, named.mods), named.mods, emit::layout_of(named.mods.all()));
}

void expect_accepted(const shared::ForwardSm90Config& config, bool f16, const NamedMods& mask, bool lse = true) {
  const std::string kernel_text =
      fmt::format("D {}, {} x 64 queries, {} keys, {}, {}{}", plan::to_string(HeadDims{config.qk_dim, config.v_dim}),
                  config.warpgroups, config.kv_block,
                  config.fp8() ? "fp8"
                  : f16        ? "f16"
                               : "bf16",
                  mask.name, lse ? "" : ", no lse");
  SCOPED_TRACE(kernel_text);
  try {
    const auto cubin = jit::build(source_of(config, f16, mask, lse));
    EXPECT_EQ(cubin->spill_bytes, 0);
    // About 50 is what the descriptors of products and tensor maps take. Where the compiler does not see that an
    // address is one for the warp it was 124 to 223, most of them in the loop, and the kernel 3 to 11 % slower.
    const int moves = moves_to_uniform_registers(cubin->bytes);
    EXPECT_GT(moves, 20) << "another encoding?";
    EXPECT_LT(moves, 80);
    fmt::print("{}: {} registers, {} moves to uniform ones, {:.0f} ms\n", kernel_text, cubin->registers, moves,
               cubin->compile_ms);
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

TEST_F(CompileTable, KernelsWithoutReadsAreAllAccepted) {
  const std::vector<NamedMods> masks{named("no mask", {}), named("causal", mods::causal()),
                                     named("window", mods::sliding_window(1024))};
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    expect_accepted(config, true, masks[1]);
    if (std::getenv("HEDDLE_TEST_REDUCED") != nullptr || kernel.spare) continue;
    expect_accepted(config, false, masks[0]);
    expect_accepted(config, false, masks[1]);
    if (!first) continue;
    expect_accepted(config, false, masks[2]);
    expect_accepted(config, true, masks[0], false);
  }
}

// Ends of o in either half of a product's 16 columns, of queries and keys inside them, panels more or fewer than the
// kernel's own.
TEST_F(CompileTable, HeadDimsBetweenTheKernelsOwnAreAccepted) {
  std::vector<HeadDims> all = {{40, 40}, {1, 33}, {80, 72}, {112, 64}, {160, 24}, {100, 136}, {208, 200}};
  if (std::getenv("HEDDLE_TEST_REDUCED") != nullptr) all.resize(2);
  for (const HeadDims& dims : all) {
    const auto* kernel = std::ranges::find(kForwardSm90Kernels, plan::native_dims(dims), plan::dims_of);
    expect_accepted(kernel->config(dims.qk, dims.v), false, named("no mask", {}));
  }
}

TEST_F(CompileTable, KernelsOfSequencesThatDifferAreAllAccepted) {
  NamedMods plain = named("by sequence", {}), causal = named("by sequence, causal", mods::causal_lower_right());
  plain.by_sequence = causal.by_sequence = true;
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    if (first || !kernel.spare) expect_accepted(config, true, causal);
    if (std::getenv("HEDDLE_TEST_REDUCED") != nullptr || !first) continue;
    expect_accepted(config, false, plain);
  }
}

// Ends of rows that TMA does not store, and key blocks counted from a sequence's last one: with three warpgroups the
// producer has the fewest registers for that.
TEST_F(CompileTable, SequencesWithOddHeadDimsAndDescendingScoresAreAccepted) {
  NamedMods causal = named("by sequence, causal", mods::causal_lower_right()),
            alibi = named("by sequence, ALiBi, causal", mods::causal(), mods::alibi(Capture("slopes", DType::f32, 1)));
  causal.by_sequence = alibi.by_sequence = true;
  EXPECT_TRUE(alibi.mods.descending);
  expect_accepted(kForwardSm90Kernels[0].config(20, 33), false, causal);
  if (std::getenv("HEDDLE_TEST_REDUCED") != nullptr) return;
  for (const HeadDims& dims : {HeadDims{64, 64}, HeadDims{128, 128}, HeadDims{100, 65}}) {
    const auto* kernel = std::ranges::find(kForwardSm90Kernels, plan::native_dims(dims), plan::dims_of);
    expect_accepted(kernel->config(dims.qk, dims.v), false, alibi);
  }
}

// Of 8 bits, of one type and mixed.
TEST_F(CompileTable, KernelsOfEightBitsAreAllAccepted) {
  NamedMods plain = named("by sequence", {}), causal = named("by sequence, causal", mods::causal_lower_right());
  plain.by_sequence = causal.by_sequence = true;
  const NamedMods none = named("no mask", {}), triangle = named("causal", mods::causal());
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    expect_accepted(config, false, triangle);
    if (std::getenv("HEDDLE_TEST_REDUCED") != nullptr || kernel.spare) continue;
    expect_accepted(config, false, none);
    if (!first) continue;
    expect_accepted(config, false, causal);
    config.k_fp8 = shared::Fp8::e5m2;
    expect_accepted(config, false, none, false);
    config.q_fp8 = shared::Fp8::e5m2;
    expect_accepted(config, false, plain);
  }
  for (const HeadDims& dims : {HeadDims{40, 40}, HeadDims{1, 33}, HeadDims{80, 72}, HeadDims{160, 24}}) {
    const auto* kernel = std::ranges::find(plan::kForwardSm90Fp8Kernels, plan::native_dims(dims, true), plan::dims_of);
    expect_accepted(kernel->config(dims.qk, dims.v), false, none);
  }
}

/// Each of the mods has a kernel of each head dim that the compiler accepts. 96 and 192/128 are left out: they have
/// 128's tile of 128 x 128, and no more of o in a thread.
void expect_one_accepted(const std::vector<NamedMods>& all, bool fp8 = false) {
  for (const NamedMods& mods : all) {
    std::map<std::string, bool> accepted;
    for (const ForwardSm90Kernel& kernel : plan::forward_sm90_kernels(fp8)) {
      const HeadDims dims = plan::dims_of(kernel);
      if (dims.qk == 96 || dims.qk != dims.v) continue;
      bool& found = accepted[plan::to_string(dims)];
      if (found) continue;
      try {
        const auto cubin = jit::build(source_of(kernel.config(), false, mods));
        fmt::print("D {}, {} x {}, {}{}: {:.0f} ms\n", plan::to_string(dims), kernel.config().rows(), kernel.kv_block,
                   fp8 ? "fp8, " : "", mods.name, cubin->compile_ms);
        found = true;
      } catch (const jit::Rejected& rejected) {
        fmt::print("{}\n", rejected.what());
      }
    }
    for (const auto& [dims, found] : accepted) EXPECT_TRUE(found) << mods.name << ", D " << dims;
  }
}

TEST_F(CompileTable, MasksThatReadFindAKernel) {
  expect_one_accepted(
      {named("documents", mods::documents(Capture("ids", DType::i32, 1))),
       named("documents and causal", mods::documents(Capture("ids", DType::i32, 1)) && mods::causal())});
}

TEST_F(CompileTable, ScoreAndWeightModsFindAKernel) {
  const Capture slopes("slopes", DType::f32, 1), table("table", DType::bf16, 2), bias("bias", DType::bf16, 3);
  const Expr relative = leaf::score() + to_f32(leaf::q_idx() - leaf::kv_idx());
  std::vector<NamedMods> all = {named("ALiBi, causal", mods::causal(), mods::alibi(slopes)),
                                named("relative position", {}, relative),
                                named("T5", {}, mods::t5_bias(table, 32, 128, true)),
                                named("softcap", {}, mods::softcap(20)),
                                named("bias", {}, leaf::score() + bias(leaf::h(), leaf::q_idx(), leaf::kv_idx())),
                                named("dropout", {}, {}, mods::dropout(0.1, param("seed", ExprType::i32)))};
  if (std::getenv("HEDDLE_TEST_REDUCED") != nullptr) all.resize(1);
  expect_one_accepted(all);
  expect_one_accepted(all, true);
}

}  // namespace
}  // namespace heddle::cuda
