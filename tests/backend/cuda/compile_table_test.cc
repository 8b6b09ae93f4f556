// Every kernel that the planner may choose, compiled by NVRTC: no spills, no serialised products and no addresses in
// vector registers, where masks read nothing; masks that read captures take registers, so for them it is enough that
// one kernel of each head dim is left. f16 is compiled with one mask only: its kernels differ in a few instructions,
// and so are the spare kernels. HEDDLE_TEST_REDUCED takes no other; HEDDLE_TEST_FULL takes all of what features add.
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
#include "backend/cuda/emit/sequences.h"
#include "backend/cuda/jit/jit.h"
#include "engine/deck.h"
#include "heddle/mods.h"
#include "plan/families/forward_sm90_costs.h"
#include "plan/families/forward_sm90_mods.h"
#include "plan/families/forward_sm90_streamed.h"

namespace heddle::cuda {
namespace {

bool reduced() { return std::getenv("HEDDLE_TEST_REDUCED") != nullptr; }
/// What features add to the table is compiled in part, unless HEDDLE_TEST_FULL asks for all.
bool some_only() { return reduced() || std::getenv("HEDDLE_TEST_FULL") == nullptr; }

using plan::ForwardSm90Kernel;
using plan::HeadDims;
using plan::kForwardSm90Kernels;
using test::Deck;

struct NamedMods {
  std::string name;
  plan::ForwardSm90Mods mods;
  bool by_sequence = false, device_lengths = false;
  bool sinks = false;
  shared::Normalizer normalizer = shared::Normalizer::softmax;
};

NamedMods named(std::string name, const Expr& mask, const Expr& score = {}, const Expr& weight = {},
                Normalizer normalizer = Normalizer::softmax) {
  problem::AttentionProblem problem;
  problem.normalizer = normalizer;
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
  config.device_lengths = named.device_lengths;
  config.sinks = named.sinks;
  config.normalizer = named.normalizer;
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
    EXPECT_GT(moves, config.orders() ? 3 : 20) << "another encoding?";  // less is left to TMA
    // Each panel of a box of pages takes its own: at D 256 79, and 85 with lengths on the device. Packed rows are
    // stored by several warps: 100 with four panels, whose values are in pages.
    EXPECT_LT(moves, config.packs() ? 105 : config.page_rows > 0 ? 90 : 80);
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
    if (reduced() || kernel.spare) continue;
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
  if (reduced()) all.resize(2);
  for (const HeadDims& dims : all) {
    const auto* kernel = std::ranges::find(kForwardSm90Kernels, plan::native_dims(dims), plan::dims_of);
    expect_accepted(kernel->config(dims.qk, dims.v), false, named("no mask", {}));
  }
}

// Stores by threads: their addresses must not take what products have of uniform registers, nor of any others.
TEST_F(CompileTable, OutputsOfOtherTypesAreAccepted) {
  using shared::OutputType;
  const NamedMods causal = named("causal, o of another type", mods::causal());
  NamedMods sequences = named("by sequence, o of another type", {});
  sequences.by_sequence = true;
  const auto with = [](shared::ForwardSm90Config config, OutputType type) {
    config.o_type = type;
    return config;
  };
  for (const OutputType type : {OutputType::f64, OutputType::f16, OutputType::e4m3, OutputType::e5m2}) {
    expect_accepted(with(kForwardSm90Kernels[0].config(), type), false, causal);
  }
  if (some_only()) return;
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    if (!kernel.spare) expect_accepted(with(kernel.config(), OutputType::f32), false, causal);
  }
  expect_accepted(with(kForwardSm90Kernels[0].config(40, 33), OutputType::bf16), true, sequences);
  expect_accepted(with(kForwardSm90Kernels[0].config(64, 36), OutputType::e4m3), true, sequences);
}

TEST_F(CompileTable, KernelsOfSequencesThatDifferAreAllAccepted) {
  NamedMods plain = named("by sequence", {}), causal = named("by sequence, causal", mods::causal_lower_right());
  plain.by_sequence = causal.by_sequence = true;
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    if (first || !kernel.spare) expect_accepted(config, true, causal);
    if (reduced() || !first) continue;
    expect_accepted(config, false, plain);
  }
}

NamedMods with_sinks(NamedMods mods) {
  mods.name += ", sinks";
  mods.sinks = true;
  return mods;
}

// The row's end alone is another; lists of differing sequences leave the producer the fewest registers.
TEST_F(CompileTable, KernelsWithSinksAreAllAccepted) {
  const NamedMods plain = with_sinks(named("no mask", {}));
  NamedMods lengths = with_sinks(named("by sequence, causal", mods::causal_lower_right()));
  lengths.by_sequence = true;
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    expect_accepted(config, false, lengths);
    if (some_only() || kernel.spare) continue;
    expect_accepted(config, first, plain);
  }
}

NamedMods with_normalizer(Normalizer normalizer, std::string name, const Expr& mask, const Expr& score = {},
                          const Expr& weight = {}) {
  const bool sigmoid = normalizer == Normalizer::sigmoid;
  NamedMods mods = named((sigmoid ? "sigmoid, " : "none, ") + std::move(name), mask, score, weight, normalizer);
  mods.normalizer = sigmoid ? shared::Normalizer::sigmoid : shared::Normalizer::none;
  return mods;
}

TEST_F(CompileTable, KernelsOfOtherNormalizersAreAllAccepted) {
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    // In f16 rows of the latter have powers of their own.
    expect_accepted(config, true, with_normalizer(Normalizer::none, "causal", mods::causal()), false);
    if (some_only() || kernel.spare) continue;
    expect_accepted(config, false, with_normalizer(Normalizer::sigmoid, "no mask", {}), false);
    if (!first) continue;
    expect_accepted(config, true, with_normalizer(Normalizer::sigmoid, "causal", mods::causal()), false);
    NamedMods lengths = with_normalizer(Normalizer::none, "by sequence, causal", mods::causal_lower_right());
    lengths.by_sequence = true;
    expect_accepted(config, false, lengths, false);
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
  if (reduced()) return;
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
    if (reduced() || kernel.spare) continue;
    expect_accepted(config, false, none);
    if (!first) continue;
    expect_accepted(config, false, causal);
    config.k_fp8 = shared::Fp8::e5m2;
    expect_accepted(config, false, none, false);
    config.q_fp8 = shared::Fp8::e5m2;
    expect_accepted(config, false, plain);
  }
  for (const HeadDims& dims :
       {HeadDims{40, 40}, HeadDims{1, 33}, HeadDims{80, 72}, HeadDims{160, 24}, HeadDims{130, 255}}) {
    const auto* kernel = std::ranges::find(plan::kForwardSm90Fp8Kernels, plan::native_dims(dims, true), plan::dims_of);
    expect_accepted(kernel->config(dims.qk, dims.v), false, none);
  }
}

// What 16 bits have, too: sinks, an o of another type, masks by bits (of 192 keys element by element).
TEST_F(CompileTable, KernelsOfEightBitsWithWhatOthersHave) {
  const NamedMods dilated = with_sinks(named("dilated", mods::causal() && (leaf::q_idx() - leaf::kv_idx()) % 4 == 0));
  NamedMods lengths = with_sinks(named("by sequence, causal", mods::causal_lower_right()));
  lengths.by_sequence = true;
  EXPECT_EQ(dilated.mods.mask_form, shared::MaskForm::distance);
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    if (kernel.spare || (reduced() && !first)) continue;
    expect_accepted(config, false, dilated);
    config.o_type = shared::OutputType::f32;
    expect_accepted(config, false, lengths);
    config.o_type = shared::OutputType::e4m3;
    if (first) expect_accepted(config, false, named("no mask, o of e4m3", {}), false);
  }
}

// What they have more is off the loop, but in the registers of the producer and of rows that attend nothing.
TEST_F(CompileTable, KernelsWithLengthsOnTheDeviceAreAllAccepted) {
  NamedMods plain = named("device lengths", {}), causal = named("device lengths, causal", mods::causal()),
            alibi =
                named("device lengths, ALiBi, causal", mods::causal(), mods::alibi(Capture("slopes", DType::f32, 1)));
  for (NamedMods* mods : {&plain, &causal, &alibi}) mods->by_sequence = mods->device_lengths = true;
  EXPECT_TRUE(alibi.mods.descending);
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    if (first || !kernel.spare) expect_accepted(config, false, causal);
    if (some_only() || !first) continue;
    expect_accepted(config, true, plain);
  }
  expect_accepted(kForwardSm90Kernels[0].config(20, 33), false, causal);
  if (some_only()) return;
  for (const HeadDims& dims : {HeadDims{64, 64}, HeadDims{128, 128}, HeadDims{100, 65}}) {
    const auto* kernel = std::ranges::find(kForwardSm90Kernels, plan::native_dims(dims), plan::dims_of);
    expect_accepted(kernel->config(dims.qk, dims.v), false, alibi);
  }
}

TEST_F(CompileTable, WhatPlacesSequencesIsAccepted) {
  const auto cubin = jit::build(emit::sequences());
  EXPECT_EQ(cubin->spill_bytes, 0);
  EXPECT_EQ(cubin->stack_bytes, 0);
  fmt::print("sequences: {} registers, {:.0f} ms\n", cubin->registers, cubin->compile_ms);
}

shared::ForwardSm90Config gathered(shared::ForwardSm90Config config, int q, int k, int v, bool odd_o) {
  config.q_gather = q;
  config.k_gather = k;
  config.v_gather = v;
  config.odd_o = odd_o;
  return config;
}

// Two warps copy rows in the registers that the producer has: with three warpgroups they are too few.
TEST_F(CompileTable, KernelsThatGatherAreAllAccepted) {
  const NamedMods plain = named("gathered", {}), causal = named("gathered, causal", mods::causal());
  NamedMods sequences = named("gathered, by sequence, causal", mods::causal_lower_right());
  sequences.by_sequence = true;
  expect_accepted(gathered(kForwardSm90Kernels[1].config(20, 33), 8, 2, 16, true), false, sequences);
  if (some_only()) return;
  Deck<int> bytes({2, 4, 8, 16}, 1);
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    if (kernel.warpgroups == 3) continue;
    const int q = bytes.deal(), k = bytes.deal(), v = bytes.deal();
    expect_accepted(gathered(kernel.config(), q, k, v, false), false, causal);
    if (kernel.spare) continue;
    expect_accepted(gathered(kernel.config(), k, v, q, true), true, sequences);
  }
  const ForwardSm90Kernel& two = kForwardSm90Kernels[1];
  for (const int width : {2, 4, 8, 16}) {
    expect_accepted(gathered(two.config(), width, 0, 0, true), false, plain);
    expect_accepted(gathered(two.config(60, 40), 0, width, 0, false), false, sequences);
    expect_accepted(gathered(two.config(61, 41), 0, 0, width, true), false, sequences);
  }
}

TEST_F(CompileTable, KernelsOfPagesAreAllAccepted) {
  NamedMods causal = named("pages, causal", mods::causal_lower_right()), plain = named("pages", {});
  causal.by_sequence = plain.by_sequence = true;
  const auto paged = [](shared::ForwardSm90Config config, int rows, int gather) {
    config.page_rows = rows;
    return gathered(config, 0, gather, gather, false);
  };
  expect_accepted(paged(kForwardSm90Kernels[0].config(), 16, 0), false, causal);
  if (some_only()) return;
  Deck<int> rows({1, 3, 7, 8, 16, 64, 128, 256}, 2), bytes({2, 4, 8, 16}, 1);
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    expect_accepted(paged(kernel.config(), 8 << (rows.deal() % 6), 0), false, causal);
    if (kernel.spare || kernel.warpgroups == 3) continue;
    expect_accepted(paged(kernel.config(), rows.deal(), bytes.deal()), true, plain);
  }
}

// One warp transposes values, the other one gathers: pages by TMA in all kernels, rows where the producer has registers
// for it. Copies of one byte are of 8 bits alone.
TEST_F(CompileTable, KernelsOfEightBitsThatGatherAreAllAccepted) {
  NamedMods causal = named("pages, causal", mods::causal_lower_right()),
            window = with_sinks(named("pages, window", mods::sliding_window(1024))), plain = named("gathered", {}),
            lengths = with_sinks(named("pages, window, device lengths", mods::sliding_window(1024)));
  causal.by_sequence = window.by_sequence = lengths.by_sequence = lengths.device_lengths = true;
  const auto paged = [](shared::ForwardSm90Config config, int rows, int gather) {
    config.page_rows = rows;
    return gathered(config, 0, gather, gather, false);
  };
  Deck<int> pages({8, 16, 64, 128, 256}, 3), odd_pages({1, 3, 7, 24}, 4), bytes({1, 2, 4, 8, 16}, 5);
  for (const ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    if (reduced() && kernel.spare) continue;
    expect_accepted(paged(config, pages.deal(), 0), false, lengths);
    if (some_only() && kernel.spare) continue;
    expect_accepted(config, false, lengths);
    expect_accepted(paged(config, pages.deal(), 0), false, window);
    expect_accepted(paged(config, pages.deal(), 0), false, causal);
    if (kernel.warpgroups == 3) continue;
    expect_accepted(paged(config, odd_pages.deal(), bytes.deal()), false, lengths);
    const int q = bytes.deal(), k = bytes.deal(), v = bytes.deal();
    const bool odd_o = kernel.v_dim < 256 || kernel.spare;  // 128 x 96 spills there, and the spare one is taken
    expect_accepted(gathered(config, q, k, v, odd_o), false, plain);
  }
  const auto two = std::ranges::find(plan::kForwardSm90Fp8Kernels, 2, &ForwardSm90Kernel::warpgroups);
  for (const int width : {1, 2, 4, 8, 16}) {
    expect_accepted(gathered(two->config(62, 42), 0, width, 0, false), false, causal);
    if (some_only()) continue;
    expect_accepted(gathered(two->config(), width, 0, 0, true), false, plain);
    expect_accepted(gathered(two->config(62, 34), 0, 0, width, true), false, causal);
  }
}

// The gathering warps find where sequences end in orders; what the producer says in them of one without keys is all
// that its few registers have to hold besides.
TEST_F(CompileTable, PagesAndGatheredRowsWithLengthsOnTheDeviceAreAllAccepted) {
  NamedMods causal = named("device lengths, pages or gathered, causal", mods::causal_lower_right());
  causal.by_sequence = causal.device_lengths = true;
  const auto paged = [](shared::ForwardSm90Config config, int rows, int gather) {
    config.page_rows = rows;
    return gathered(config, 0, gather, gather, false);
  };
  const ForwardSm90Kernel &three = kForwardSm90Kernels[0], &two = kForwardSm90Kernels[1];
  expect_accepted(paged(three.config(), 16, 0), false, causal);
  expect_accepted(paged(two.config(), 1, 8), false, causal);
  expect_accepted(gathered(two.config(20, 33), 8, 2, 16, true), false, causal);
  if (some_only()) return;
  Deck<int> rows({1, 3, 7, 8, 16, 64, 128, 256}, 3), bytes({2, 4, 8, 16}, 4);
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    expect_accepted(paged(kernel.config(), 8 << (rows.deal() % 6), 0), false, causal);
    if (kernel.spare || kernel.warpgroups == 3) continue;
    expect_accepted(paged(kernel.config(), rows.deal(), bytes.deal()), true, causal);
    expect_accepted(gathered(kernel.config(), bytes.deal(), bytes.deal(), bytes.deal(), true), false, causal);
  }
}

// Rows of several heads: their places, what a tile's place holds of them, a box or an order for each.
TEST_F(CompileTable, PackedKernelsAreAllAccepted) {
  const auto packed = [](shared::ForwardSm90Config config, int queries) {
    config.packed_queries = queries;
    return config;
  };
  const auto with_pages = [&](const shared::ForwardSm90Config& kernel, int queries, int rows) {
    shared::ForwardSm90Config config = packed(kernel, queries);
    config.page_rows = rows;
    return config;
  };
  const auto with_output = [&](const shared::ForwardSm90Config& kernel, int queries, shared::OutputType type) {
    shared::ForwardSm90Config config = packed(kernel, queries);
    config.o_type = type;
    return config;
  };
  NamedMods lengths = with_sinks(named("packed, by sequence, causal", mods::causal_lower_right()));
  lengths.by_sequence = true;
  NamedMods plain = named("packed", {}), pages = named("packed, pages, causal", mods::causal_lower_right());
  pages.by_sequence = true;
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    if (reduced() && kernel.qk_dim > 64) return;
    if (kernel.spare && some_only()) continue;
    expect_accepted(packed(kernel.config(), 16), false, lengths);
    if (kernel.spare) continue;
    if (first || !some_only()) expect_accepted(packed(kernel.config(), 32), true, plain);
    if (first || !some_only()) expect_accepted(packed(kernel.config(), 64), false, plain);
    if (some_only()) continue;
    expect_accepted(with_pages(kernel.config(), 16, 16), false, pages);
    expect_accepted(packed(kernel.config(), 64), false, lengths);
    expect_accepted(with_pages(kernel.config(), 64, 64), true, pages);
    expect_accepted(with_output(kernel.config(), 16, shared::OutputType::f32), false, lengths);
    if (kernel.warpgroups == 3) continue;
    for (const int queries : {16, 32, 64}) {
      expect_accepted(gathered(packed(kernel.config(), queries), 2 << (queries / 32), 0, 0, true), false, lengths);
    }
  }
  const NamedMods dropout = named("packed, dropout", {}, {}, mods::dropout(0.1, 1)),
                  dilated = named("packed, dilated", mods::causal() && (leaf::q_idx() - leaf::kv_idx()) % 4 == 0),
                  alibi = named("packed, ALiBi", mods::causal(), mods::alibi(Capture("slopes", DType::f32, 1))),
                  distant = named("packed, T5", {}, mods::t5_bias(Capture("table", DType::bf16, 2), 32, 128, true));
  const ForwardSm90Kernel &three = kForwardSm90Kernels[0], &two = kForwardSm90Kernels[1];
  expect_accepted(gathered(packed(two.config(20, 33), 16), 8, 2, 16, true), false, lengths);
  expect_accepted(with_output(three.config(), 32, shared::OutputType::e4m3), false, lengths);
  for (const NamedMods& mods : {dropout, dilated, alibi}) expect_accepted(packed(two.config(), 16), false, mods);
  expect_accepted(packed(two.config(), 64), false, distant);
}

// Those that drop by masks of draws: early draws take a register for each two weights.
TEST_F(CompileTable, KernelsThatDropAreAllAccepted) {
  const Expr seed = param("seed", ExprType::i32), p = param("p", ExprType::f32);
  const Expr draw = random_uniform(seed, leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx());
  const NamedMods dropout = named("dropout", {}, {}, mods::dropout(0.1, seed));
  NamedMods params = named("dropout by params, by sequence, causal", mods::causal_lower_right(), {},
                           where(draw < p, 0.0, 1.0 / (1.0 - p)));
  params.by_sequence = true;
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    if (config.kv_block % shared::kKeysOfDraw != 0) continue;
    ASSERT_TRUE(plan::config_with(config, dropout.mods).dropped && plan::config_with(config, params.mods).dropped);
    if (!kernel.spare) expect_accepted(config, false, dropout);
    if (!some_only()) expect_accepted(config, true, params);
  }
}

/// How those kernels are to be that each mod has one of.
struct Kind {
  bool f16 = false, lse = true, fp8 = false;
};

/// Each of the mods has a kernel of each head dim that the compiler accepts. 96 and 192/128 are left out: they have
/// 128's tile of 128 x 128, and no more of o in a thread.
void expect_one_accepted(const std::vector<NamedMods>& all, Kind kind = {}) {
  for (const NamedMods& mods : all) {
    std::map<std::string, bool> accepted;
    for (const ForwardSm90Kernel& kernel : plan::forward_sm90_kernels(kind.fp8)) {
      const HeadDims dims = plan::dims_of(kernel);
      if (dims.qk == 96 || dims.qk != dims.v) continue;
      bool& found = accepted[plan::to_string(dims)];
      if (found) continue;
      try {
        const auto cubin = jit::build(source_of(kernel.config(), kind.f16, mods, kind.lse));
        fmt::print("D {}, {} x {}, {}{}: {:.0f} ms\n", plan::to_string(dims), kernel.config().rows(), kernel.kv_block,
                   kind.fp8 ? "fp8, " : "", mods.name, cubin->compile_ms);
        found = true;
      } catch (const jit::Rejected& rejected) {
        fmt::print("{}\n", rejected.what());
      }
    }
    for (const auto& [dims, found] : accepted) EXPECT_TRUE(found) << mods.name << ", D " << dims;
  }
}

// In 8 bits: reads and a mask by bits, or a weight, and rows of which one warp gathers those of both tensors. At D 192
// and 256 only blocks of 32 keys leave registers for the worst of it.
void expect_most_registers_accepted(bool large_dims) {
  using shared::Fp8;
  using shared::OutputType;
  struct Crossing {
    NamedMods mods;
    Fp8 type;
    int page_rows = 0, gather = 0;
    OutputType o_type = OutputType::same;
    bool odd_o = false;
    int dim = 0;  // where 64 keys are too many
  };
  const Capture f16("bias", DType::f16, 3), bf16("bias", DType::bf16, 3), f32("bias", DType::f32, 3);
  const auto read = [](const Capture& bias) { return bias(leaf::h(), leaf::q_idx(), leaf::kv_idx()); };
  const auto in_cap = [&](const Capture& bias) { return 3.0 * tanh((leaf::score() + read(bias)) / 3.0); };
  const auto there = [](NamedMods mods) {
    mods.by_sequence = mods.device_lengths = true;
    return mods;
  };
  const Expr dropout = mods::dropout(0.1, param("seed", ExprType::i32)), window = mods::sliding_window(17, 3),
             documents = mods::documents(Capture("ids", DType::i64, 1)) && mods::causal();
  NamedMods lower_right = with_sinks(
                named("causal, added, dropout", mods::causal_lower_right(), leaf::score() + read(bf16), dropout)),
            near = with_sinks(named("window, added", window, leaf::score() + read(bf16)));
  lower_right.by_sequence = near.by_sequence = true;
  const std::vector<Crossing> all = {
      {.mods = named("window, mapped", window, in_cap(f16)), .type = Fp8::e4m3, .dim = 256},
      {.mods = lower_right, .type = Fp8::e5m2, .page_rows = 1, .gather = 16, .dim = 256},
      {.mods = near, .type = Fp8::e5m2, .page_rows = 24, .dim = 256},
      {.mods = there(with_sinks(named("documents, mapped, dropout", documents, in_cap(f32), dropout))),
       .type = Fp8::e4m3,
       .page_rows = 3,
       .gather = 1,
       .o_type = OutputType::e4m3,
       .odd_o = true},
      {.mods = there(with_sinks(named("documents, mapped", documents, in_cap(f32)))),
       .type = Fp8::e5m2,
       .gather = 2,
       .odd_o = true},
      {.mods = there(with_sinks(named("window, added, dropout", window, leaf::score() + read(f32), dropout))),
       .type = Fp8::e4m3,
       .page_rows = 16,
       .o_type = OutputType::f64,
       .dim = 192},
  };
  std::map<std::string, bool> accepted;
  for (const ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    if ((kernel.v_dim >= 192) != large_dims) continue;
    for (const Crossing& crossing : all) {
      if (some_only() && kernel.v_dim != crossing.dim) continue;
      if (crossing.gather > 0 && kernel.warpgroups == 3) continue;
      shared::ForwardSm90Config config = gathered(kernel.config(), 0, crossing.gather, crossing.gather, crossing.odd_o);
      config.q_fp8 = config.k_fp8 = config.v_fp8 = crossing.type;
      config.page_rows = crossing.page_rows;
      config.o_type = crossing.o_type;
      config.weight_exponent = crossing.mods.mods.weight.empty() ? 0 : 1;
      const std::string name =
          fmt::format("D {}, fp8, {}, pages of {}, gathers {}", plan::to_string(plan::dims_of(kernel)),
                      crossing.mods.name, crossing.page_rows, crossing.gather);
      bool& found = accepted[name];
      if (found) continue;
      try {
        const auto cubin = jit::build(source_of(config, false, crossing.mods));
        found = true;
        fmt::print("{}, {} x {}: {} registers, {:.0f} ms\n", name, config.rows(), kernel.kv_block, cubin->registers,
                   cubin->compile_ms);
      } catch (const jit::Rejected& rejected) {
        fmt::print("{}, {} x {}: {}\n", name, config.rows(), kernel.kv_block, rejected.what());
      }
    }
  }
  for (const auto& [name, found] : accepted) EXPECT_TRUE(found) << name;
}

TEST_F(CompileTable, WhatTakesTheMostRegistersAtLargeHeadDimsFindsAKernel) { expect_most_registers_accepted(true); }
TEST_F(CompileTable, WhatTakesTheMostRegistersAtSmallHeadDimsFindsAKernel) {
  if (!some_only()) expect_most_registers_accepted(false);
}

// Each of these kernels, of the others one is enough: what documents cost is measured on them.
TEST_F(CompileTable, MasksByBitsAreAccepted) {
  const Expr documents = mods::documents(Capture("ids", DType::i64, 1));
  const std::vector<NamedMods> masks = {named("dilated", mods::causal() && (leaf::q_idx() - leaf::kv_idx()) % 4 == 0),
                                        named("documents of i64 and causal", documents && mods::causal())};
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const HeadDims dims = plan::dims_of(kernel);
    if (kernel.spare || dims.qk != dims.v || (dims.qk != 64 && dims.qk != 128)) continue;
    for (const NamedMods& mask : masks) {
      EXPECT_NE(mask.mods.mask_form, shared::MaskForm::direct);
      expect_accepted(kernel.config(), kernel.warpgroups == 3, mask);
      if (reduced()) return;
    }
  }
}

TEST_F(CompileTable, MasksThatReadFindAKernel) {
  const Capture ids("ids", DType::i32, 1), keep("keep", DType::boolean, 2);
  expect_one_accepted({named("documents", mods::documents(ids)),
                       named("documents and causal", mods::documents(ids) && mods::causal()),
                       named("tree", mods::tree(ids, Capture("last", DType::i32, 1))),
                       named("table", keep(leaf::q_idx(), leaf::kv_idx()) && mods::causal())});
}

/// As the planner does it where the tensor's strides allow it.
shared::ForwardSm90Config streaming(const shared::ForwardSm90Config& config, const NamedMods& named) {
  const auto with_tiles = plan::with_streamed_tiles(plan::config_with(config, named.mods), named.mods.streamed->dtype);
  return with_tiles.value_or(config);
}

TEST_F(CompileTable, KernelsThatStreamABiasAreAllAccepted) {
  const auto biased = [](std::string name, const Capture& bias, const Expr& mask, bool by_sequence = false) {
    NamedMods mods = named(std::move(name), mask, leaf::score() + bias(leaf::h(), leaf::q_idx(), leaf::kv_idx()));
    mods.by_sequence = by_sequence;
    return mods;
  };
  const std::vector<NamedMods> all = {biased("bias bf16", Capture("bias", DType::bf16, 3), {}),
                                      biased("bias bf16, causal", Capture("bias", DType::bf16, 3), mods::causal()),
                                      biased("bias f32", Capture("bias", DType::f32, 3), {}),
                                      biased("bias bf16, by sequence", Capture("bias", DType::bf16, 3), {}, true)};
  std::map<std::string, bool> accepted;
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    for (const NamedMods& mods : all) {
      const shared::ForwardSm90Config config = streaming(kernel.config(), mods);
      if (config.streamed_bytes == 0) continue;
      const std::string name = fmt::format(
          "D {}, {} x {}, {} stages, {} tiles, {} q, {} o, {}", plan::to_string(plan::dims_of(kernel)), config.rows(),
          kernel.kv_block, config.stages, config.streamed_stages, config.q_buffers, config.o_panels, mods.name);
      bool& found = accepted[fmt::format("D {}, {}", plan::to_string(plan::dims_of(kernel)), mods.name)];
      try {
        const auto cubin = jit::build(source_of(config, false, mods));
        found = true;
        fmt::print("{}: {} registers, {} moves, {:.0f} ms\n", name, cubin->registers,
                   moves_to_uniform_registers(cubin->bytes), cubin->compile_ms);
      } catch (const jit::Rejected& rejected) {
        fmt::print("{}: {}\n", name, rejected.what());
      }
      if (some_only()) return;
    }
  }
  for (const auto& [name, found] : accepted) EXPECT_TRUE(found) << name;
}

// Rows that end otherwise, an o that threads store, a thread that follows the steps: all of them fill rows, or pass
// over tiles, that only the device knows.
TEST_F(CompileTable, LengthsOnTheDeviceBesideOtherFeaturesAreAccepted) {
  const auto there = [](NamedMods mods) {
    mods.name += ", device lengths";
    mods.by_sequence = mods.device_lengths = true;
    return mods;
  };
  const auto storing = [](shared::ForwardSm90Config config, shared::OutputType type) {
    config.o_type = type;
    return config;
  };
  const Expr documents = mods::documents(Capture("ids", DType::i32, 1)) && mods::causal();
  const NamedMods sinks = there(with_sinks(named("causal", mods::causal())));
  const ForwardSm90Kernel& first = kForwardSm90Kernels[0];
  expect_accepted(first.config(20, 33), false, sinks);
  expect_accepted(storing(first.config(), shared::OutputType::e4m3), false, sinks);
  if (some_only()) return;
  expect_accepted(storing(first.config(40, 33), shared::OutputType::f64), true, sinks);
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const HeadDims dims = plan::dims_of(kernel);
    if (kernel.spare || dims.qk != dims.v || dims.qk % 64 != 0) continue;
    expect_accepted(kernel.config(), kernel.warpgroups == 3, sinks);
  }
  expect_accepted(first.config(), true, there(with_normalizer(Normalizer::none, "causal", mods::causal())), false);
  expect_accepted(first.config(), false, there(with_normalizer(Normalizer::sigmoid, "no mask", {})), false);
  expect_one_accepted({there(named("documents and causal", documents)),
                       there(named("dropout", {}, {}, mods::dropout(0.1, param("seed", ExprType::i32))))});
  const Capture bias("bias", DType::bf16, 3);
  const NamedMods biased =
      there(with_sinks(named("bias", {}, leaf::score() + bias(leaf::h(), leaf::q_idx(), leaf::kv_idx()))));
  for (const int dim : {64, 128}) {
    bool found = false;
    for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
      if (found || plan::dims_of(kernel).qk != dim || plan::dims_of(kernel).v != dim) continue;
      const shared::ForwardSm90Config config = streaming(kernel.config(), biased);
      if (config.streamed_bytes == 0) continue;
      try {
        const auto cubin = jit::build(source_of(config, false, biased));
        EXPECT_EQ(cubin->spill_bytes, 0);
        found = true;
        fmt::print("D {}, {} x {}, {}: {} registers, {} moves\n", dim, config.rows(), kernel.kv_block, biased.name,
                   cubin->registers, moves_to_uniform_registers(cubin->bytes));
      } catch (const jit::Rejected& rejected) {
        fmt::print("{}\n", rejected.what());
      }
    }
    EXPECT_TRUE(found) << "D " << dim;
  }
}

// Rows that are gathered and pages, together with what else takes the producer's warpgroup, shared memory or the tile's
// place. Each head dim has a kernel that does all of it.
void expect_crossings_accepted(bool device_lengths) {
  const Expr biased = leaf::score() + Capture("bias", DType::bf16, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
  const Expr documents = mods::documents(Capture("ids", DType::i32, 1));
  struct Crossing {
    NamedMods mods;
    int page_rows, q, k, v;
    shared::OutputType o_type = shared::OutputType::same;
    bool odd_o = false;
  };
  const Expr dropout = mods::dropout(0.1, param("seed", ExprType::i32));
  const NamedMods lengths = named("causal", mods::causal_lower_right());
  const Crossing all[] = {
      {named("bias", mods::causal_lower_right(), biased), 16, 0, 0, 0},
      {with_sinks(named("bias", documents && mods::causal(), biased)), 3, 2, 4, 8, shared::OutputType::f32, true},
      {with_sinks(lengths), 64, 0, 0, 0, shared::OutputType::e4m3},
      {named("dropout", mods::causal(), {}, dropout), 7, 0, 16, 16},
      {with_normalizer(Normalizer::none, "causal", mods::causal()), 0, 16, 8, 2, shared::OutputType::f16, true},
  };
  std::map<std::string, bool> accepted;
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const HeadDims dims = plan::dims_of(kernel);
    if (dims.qk == 96 || dims.qk != dims.v) continue;  // as in expect_one_accepted()
    for (Crossing crossing : all) {
      const bool gathers = crossing.q + crossing.k + crossing.v > 0;
      if (gathers && kernel.warpgroups == 3) continue;
      crossing.mods.by_sequence = true;
      crossing.mods.device_lengths = device_lengths;
      shared::ForwardSm90Config config = gathered(kernel.config(), crossing.q, crossing.k, crossing.v, crossing.odd_o);
      config.page_rows = crossing.page_rows;
      config.o_type = crossing.o_type;
      config.by_sequence = true;
      config.sinks = crossing.mods.sinks;
      if (crossing.mods.mods.streamed) {
        config = streaming(config, crossing.mods);
        if (config.streamed_bytes == 0) continue;
      }
      const std::string name = fmt::format(
          "D {}, {}, pages of {}, gathers {} {} {}{}", plan::to_string(plan::dims_of(kernel)), crossing.mods.name,
          crossing.page_rows, crossing.q, crossing.k, crossing.v, device_lengths ? ", device lengths" : "");
      bool& found = accepted[name];
      if (found) continue;
      try {
        const bool lse = crossing.mods.normalizer == shared::Normalizer::softmax;
        const auto cubin = jit::build(source_of(config, false, crossing.mods, lse));
        found = true;
        fmt::print("{}, {} x {}: {} registers, {:.0f} ms\n", name, config.rows(), kernel.kv_block, cubin->registers,
                   cubin->compile_ms);
      } catch (const jit::Rejected& rejected) {
        fmt::print("{}, {} x {}: {}\n", name, config.rows(), kernel.kv_block, rejected.what());
      }
    }
    if (some_only()) break;
  }
  for (const auto& [name, found] : accepted) EXPECT_TRUE(found) << name;
}

TEST_F(CompileTable, PagesAndGatheredRowsBesideAllElse) { expect_crossings_accepted(false); }
TEST_F(CompileTable, PagesGatheredRowsAndLengthsOnTheDeviceBesideAllElse) { expect_crossings_accepted(true); }

TEST_F(CompileTable, ScoreAndWeightModsFindAKernel) {
  const Capture slopes("slopes", DType::f32, 1), table("table", DType::bf16, 2), bias("bias", DType::bf16, 3);
  const Expr relative = leaf::score() + to_f32(leaf::q_idx() - leaf::kv_idx());
  std::vector<NamedMods> all = {named("ALiBi, causal", mods::causal(), mods::alibi(slopes)),
                                named("relative position", {}, relative),
                                named("T5", {}, mods::t5_bias(table, 32, 128, true)),
                                named("softcap", {}, mods::softcap(20)),
                                named("bias", {}, leaf::score() + bias(leaf::h(), leaf::q_idx(), leaf::kv_idx())),
                                named("dropout", {}, {}, mods::dropout(0.1, param("seed", ExprType::i32)))};
  if (reduced()) all.resize(1);
  expect_one_accepted(all);
  expect_one_accepted(all, {.fp8 = true});
}

TEST_F(CompileTable, ScoreAndWeightModsOfOtherNormalizersFindAKernel) {
  const Capture slopes("slopes", DType::f32, 1), table("table", DType::bf16, 2), bias("bias", DType::bf16, 3);
  const auto sigmoid = [](std::string name, const Expr& mask, const Expr& score, const Expr& weight = {}) {
    return with_normalizer(Normalizer::sigmoid, std::move(name), mask, score, weight);
  };
  const auto none = [](std::string name, const Expr& mask, const Expr& score, const Expr& weight = {}) {
    return with_normalizer(Normalizer::none, std::move(name), mask, score, weight);
  };
  const Expr dropout = mods::dropout(0.1, param("seed", ExprType::i32)), positive = max(leaf::score(), 0.0);
  std::vector<NamedMods> all = {sigmoid("shifted", {}, leaf::score() - 9.0),
                                sigmoid("softcap", {}, mods::softcap(20)),
                                sigmoid("ALiBi, causal", mods::causal(), mods::alibi(slopes)),
                                none("T5", {}, mods::t5_bias(table, 32, 128, true)),
                                none("squared ReLU", {}, positive * positive),
                                none("softcap", {}, mods::softcap(20))},
                         in_f16 = {none("ALiBi", {}, mods::alibi(slopes)), none("dropout", {}, {}, dropout),
                                   sigmoid("bias", {}, leaf::score() + bias(leaf::h(), leaf::q_idx(), leaf::kv_idx()))};
  if (some_only()) {
    all.resize(1);
    in_f16.resize(1);
  }
  expect_one_accepted(all, {.lse = false});
  expect_one_accepted(in_f16, {.f16 = true, .lse = false});
}

}  // namespace
}  // namespace heddle::cuda
