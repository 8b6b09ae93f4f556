// Kernels of decode_mma as the planner would have them on each chip: by NVRTC, without spills, within the shared memory
// that the chip lends a CTA. By default each chip compiles a part of the problems; HEDDLE_TEST_FULL compiles all.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "backend/cuda/jit/cuda_jit.h"
#include "device/known_gpus.h"
#include "families/decode_mma/decode_mma.h"
#include "families/decode_mma/decode_mma_shared_keys.h"
#include "families/decode_mma/shared/decode_mma_memory.h"
#include "heddle/mods.h"
#include "plan/hopper.h"
#include "sample.h"

namespace heddle::test {
namespace {

struct Case {
  std::int64_t dim, queries, group, page_rows;
  Expr mask{}, score{};
  bool lengths_there = false;
  DType dtype = DType::bf16, kv_dtype = DType::bf16;
  bool batch_invariant = false;
  bool prefixes = false;
  std::int64_t v_dim = 0;    // another one than of keys
  bool passes_over = false;  // blocks of which the mask leaves no pair
  std::int64_t apart = 0;    // columns of queries and of keys that stand in tensors of their own
};

std::vector<Case> cases() {
  const Expr last = leaf::q_idx() - leaf::kv_idx();
  const Expr alibi = mods::alibi(Capture("slopes", DType::f32, 1)), softcap = 20.0 * tanh(leaf::score() / 20.0);
  std::vector<Case> all;
  for (const std::int64_t dim : {64, 80, 128, 192, 256, 33}) {
    for (const std::int64_t queries : {1, 4, 16}) {
      all.push_back({dim, queries, 4, 0});
      all.push_back({dim, queries, 8, 16, mods::causal(), alibi, true});
      all.push_back({dim, queries, 1, 1, {}, softcap, true});
      all.push_back({dim, queries, 8, 16, (leaf::kv_idx() < 4 || last < 128) && mods::causal(), {}, true});
    }
  }
  for (const std::int64_t dim : {64, 80, 128, 256, 33}) {
    for (const DType kv : {DType::e4m3, DType::e5m2}) {
      all.push_back({dim, 1, 4, 0, {}, {}, false, DType::bf16, kv});
      all.push_back({dim, 4, 8, 64, mods::causal(), alibi, true, DType::bf16, kv});
      all.push_back({dim, 16, 1, 16, mods::causal(), {}, true, DType::f16, kv});
      all.push_back({dim, 1, 8, 16, mods::causal() && last < 128, softcap, true, kv, kv});
    }
  }
  for (const std::int64_t dim : {64, 128, 192, 256}) {
    all.push_back({dim, 64, 1, 0});
    all.push_back({dim, 33, 1, 16, mods::causal(), alibi, true});
    all.push_back({dim, 64, 1, 64, mods::causal(), {}, true, DType::bf16, DType::e4m3});
  }
  for (const std::int64_t heads : {16, 32, 64}) {
    for (const DType kv : {DType::bf16, DType::e4m3}) {
      all.push_back({576, 1, heads, 0, {}, {}, false, DType::bf16, kv});
      all.push_back({576, 1, heads, 64, {}, {}, true, DType::bf16, kv});
      all.push_back({576, 2, heads, 64, mods::causal(), {}, true, DType::bf16, kv});
    }
  }
  for (const std::int64_t heads : {16, 64}) {  // as engines hold latent attention
    for (const DType kv : {DType::bf16, DType::e4m3}) {
      all.push_back({.dim = 576,
                     .queries = 1,
                     .group = heads,
                     .page_rows = 64,
                     .lengths_there = true,
                     .kv_dtype = kv,
                     .apart = 64});
      all.push_back({.dim = 576, .queries = 1, .group = heads, .page_rows = 0, .kv_dtype = kv, .apart = 64});
      all.push_back({.dim = 576,
                     .queries = 2,
                     .group = heads,
                     .page_rows = 64,
                     .mask = mods::causal(),
                     .lengths_there = true,
                     .kv_dtype = kv,
                     .apart = 64});
    }
  }
  for (const std::int64_t dim : {64, 128, 192}) {
    all.push_back({.dim = dim, .queries = 1, .group = 8, .page_rows = 16, .lengths_there = true, .apart = 24});
    all.push_back({.dim = dim, .queries = 48, .group = 1, .page_rows = 16, .lengths_there = true, .apart = dim - 64});
  }
  all.push_back({128, 31, 2, 64, mods::causal(), alibi, true});
  for (const std::int64_t dim : {64, 128, 256, 576}) {
    for (const DType kv : {DType::bf16, DType::e4m3}) {
      const std::int64_t group = dim == 576 ? 16 : 4;
      all.push_back({dim, 1, group, 0, {}, {}, false, DType::bf16, kv, true});
      all.push_back({dim, 1, group, 16, {}, {}, true, DType::bf16, kv, true});
      all.push_back({dim, 4, 2 * group, 16, mods::causal(), {}, true, DType::bf16, kv, true});
      all.push_back({dim, 40, group, 16, mods::causal(), {}, true, DType::bf16, kv, true});
    }
  }
  all.push_back({128, 1, 8, 16, mods::causal() && last < 128, alibi, true, DType::bf16, DType::bf16, true});
  for (const std::int64_t dim : {64, 128, 256}) {
    for (const DType kv : {DType::bf16, DType::e4m3}) {
      all.push_back({dim, 1, 4, 16, {}, {}, true, DType::bf16, kv, false, true});
      all.push_back({dim, 1, 8, 0, {}, {}, false, DType::bf16, kv, false, true});
      all.push_back({dim, 2, 4, 16, mods::causal() && last < 4096, alibi, true, DType::bf16, kv, false, true});
      all.push_back({dim, 1, 4, 16, mods::causal(), {}, true, DType::bf16, kv, false, true});
    }
  }
  all.push_back({128, 1, 4, 0,
                 floor_div(leaf::q_idx(), param("chunk", ExprType::i32)) ==
                     floor_div(leaf::kv_idx(), param("chunk", ExprType::i32))});
  all.push_back({128, 8, 4, 0, leaf::kv_idx() >= Capture("begins", DType::i32, 2)(leaf::b(), leaf::q_idx())});
  all.push_back({.dim = 192, .queries = 20, .group = 4, .page_rows = 16, .lengths_there = true, .v_dim = 128});
  all.push_back({.dim = 192, .queries = 40, .group = 1, .page_rows = 0, .mask = mods::causal(), .v_dim = 128});
  // Blocks without a pair are passed over.
  const Capture ids("ids", DType::i32, 2);
  const Expr documents = ids(leaf::b(), leaf::q_idx()) == ids(leaf::b(), leaf::kv_idx()) && mods::causal();
  const Expr of_heads = last < 64 * (leaf::h() + 1) && mods::causal();
  for (const std::int64_t dim : {64, 128, 256}) {
    all.push_back({dim, 1, 8, 16, documents, {}, true});
    all.back().passes_over = dim <= 128;
    all.push_back({dim, 4, 4, 16, of_heads, {}, true});
    all.back().passes_over = dim <= 128;
    all.push_back({dim, 1, 8, 16, documents, {}, true, DType::bf16, DType::e4m3});
    all.back().passes_over = dim <= 128;
    all.push_back({dim, 64, 1, 16, documents, {}, true});
  }
  all.push_back({576, 1, 32, 64, documents, {}, true, DType::bf16, DType::e4m3});
  return all;
}

/// True where no kernel of the family fits into shared memory; forward_mma takes the case then.
bool too_large(const Case& c, const device::KnownGpu& gpu) {
  return c.dim > 128 && c.queries > 1 && gpu.caps.shared_memory_bytes < (128 << 10);
}

/// Values of what the masks above read.
Bindings bindings() {
  static const std::array<std::int32_t, 16> begins{};
  Bindings bindings;
  bindings.params["chunk"] = std::int32_t{4096};
  static const std::vector<std::int32_t> ids(2 * 8192, 0);
  bindings.captures["ids"] = ConstTensorView(ids.data(), DType::i32, Dims{2, 8192});
  bindings.captures["begins"] = ConstTensorView(begins.data(), DType::i32, Dims{2, 8});
  return bindings;
}

/// Bytes that a kernel may spill and be taken. Kernels of latent attention spill members of the line, once a tile,
/// beside masks and lengths on the device: by TMA up to 84, by threads' copies up to 356.
int most_spills(const Case& c, bool boxes) {
  if (!c.batch_invariant) return c.dim <= 256 ? 0 : boxes ? 96 : 384;
  if (c.dim > 256) return 2048;
  return c.dim > 128 ? 640 : 0;
}

/// One of the plans' kernels is accepted; without mods the first one.
void expect_kernel(const Case& c, const device::KnownGpu& gpu) {
  HopperCall call = {.batch = c.prefixes ? 64 : 2,
                     .q_heads = 8 * c.group,
                     .kv_heads = 8,
                     .q_rows = c.queries,
                     .kv_rows = 8192,
                     .dim = c.dim,
                     .v_dim = c.dim > 256 ? 512 : c.v_dim,
                     .mask = c.mask,
                     .dtype = c.dtype,
                     .values_in_keys = c.dim > 256,
                     .options = {.bindings = bindings(), .batch_invariant = c.batch_invariant},
                     .kv_dtype = c.kv_dtype,
                     .q_rest = c.apart,
                     .k_rest = c.apart};
  problem::AttentionProblem problem = call.problem();
  problem.score_mod = c.score;
  problem.page_rows = c.page_rows;
  problem.listed_pages = c.page_rows > 0 && (c.queries + c.group / 4) % 2 == 1;  // some of them
  problem.device_lengths = c.lengths_there;
  problem.with_prefixes = c.prefixes;
  const plan::KernelMods mods = plan::portable_mods(problem);
  const auto choices =
      plan::decode_mma(problem, call.tensors(), call.all_options(), gpu.caps, [](BlockSize) { return nullptr; });
  for (const plan::Choice& choice : choices) {
    const auto& config = choice.plan.part<shared::ForwardMmaConfig>();
    EXPECT_LE(shared::decode_mma_memory(config).bytes, gpu.caps.shared_memory_bytes);
    try {
      const auto build = [&](const shared::ForwardMmaConfig& each) {
        // With batch_invariant this kernel is taken, whatever the compiler makes of it.
        return cuda::jit::build(jit::with_invariant_rows(
            jit::with_alternative(
                decode_mma::source(
                    each, mods, device_text::layout_of(mods.of_kernel(false)), gpu::cuda_dialect(),
                    fmt::format("sm_{}{}{}", gpu.caps.major, gpu.caps.minor, gpu.caps.major == 9 ? "a" : "")),
                !c.batch_invariant),
            c.batch_invariant));
      };
      if (config.shares_elsewhere()) {
        const shared::ForwardMmaConfig of_shared = plan::shared_keys_config(config);
        EXPECT_LE(shared::decode_mma_memory(of_shared).bytes, gpu.caps.shared_memory_bytes);
        fmt::print("{}, {}: {} registers\n", gpu.name, decode_mma::name_of(of_shared), build(of_shared)->registers);
      }
      const auto cubin = build(config);
      // Wide rows of 8 bits may leave no registers for shared prefixes on chips without Hopper's shared memory.
      const bool may_lack_prefixes = c.dim > 128 && size_of(c.kv_dtype) == 1 && gpu.caps.shared_memory_bytes < 120'000;
      EXPECT_TRUE(config.prefixed() == c.prefixes || (c.prefixes && may_lack_prefixes));
      EXPECT_TRUE(!c.passes_over || config.tested_heads > 0);
      EXPECT_LE(cubin->spill_bytes, config.shares_elsewhere() ? 128 : most_spills(c, config.boxes));
      fmt::print("{}, {}: {} registers\n", gpu.name, decode_mma::name_of(config), cubin->registers);
      return;
    } catch (const cuda::jit::Rejected& rejected) {
      fmt::print("{}: {}\n", gpu.name, rejected.what());
      // Two fragments of rows of a wave leave few registers where waves share rows, too: one fragment follows.
      // Wide rows leave few beside the bounds of a mask: fewer waves of keys follow.
      EXPECT_TRUE(!c.score.empty() || (c.dim > 128 && !c.mask.empty()) || config.row_waves > 1 || config.prefixed())
          << rejected.what();
    }
  }
  // forward_mma takes wide rows whose mods need more registers.
  EXPECT_TRUE(c.dim > 128 && (!c.score.empty() || !c.mask.empty()))
      << "none of " << choices.size() << " kernels was accepted";
}

TEST(CompileTableDecodeMma, EveryChipHasAKernelWithoutSpills) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("heddle-decode-{}", getpid())).string();
  ::setenv("HEDDLE_CACHE_DIR", folder.c_str(), 1);
  cuda::jit::forget();
  if (const std::string missing = cuda::jit::compiler_missing(); !missing.empty()) {
    if (std::getenv("HEDDLE_REQUIRE_NVRTC") != nullptr) FAIL() << missing;
    GTEST_SKIP() << missing;
  }
  const std::vector<Case> all = cases();
  unsigned number = 0, of_prefixes = 0;
  for (const device::KnownGpu& gpu : device::kKnownGpus) {
    for (const Case& c : all) {
      if (too_large(c, gpu) || !is_kernel_drawn(c.prefixes ? of_prefixes++ : number++, 320)) continue;
      SCOPED_TRACE(fmt::format("{}, D {}, {} queries of {} heads, pages of {}, {} on {}{}{}", gpu.name, c.dim,
                               c.queries, c.group, c.page_rows, name(c.dtype), name(c.kv_dtype),
                               c.batch_invariant ? ", batch-invariant" : "", c.prefixes ? ", prefixes" : ""));
      try {
        expect_kernel(c, gpu);
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace heddle::test
