// Kernels of 8 bits, alone, with what others have, and with pages.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/deck.h"
#include "heddle/mods.h"
#include "kernels/cuda/compile_table.h"
#include "sample.h"

namespace heddle::cuda {
namespace {

using test::Deck;

// q, k and v have 8 bits, of one type and mixed.
TEST_F(CompileTable, KernelsOfEightBitsAreAllAccepted) {
  NamedMods plain = named("by sequence", {}), causal = named("by sequence, causal", mods::causal_lower_right());
  plain.by_sequence = causal.by_sequence = true;
  const NamedMods none = named("no mask", {}), triangle = named("causal", mods::causal());
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    expect_accepted(config, false, triangle);
    if (kernel.spare) continue;
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

// Features that kernels of 16 bits also have: sinks, an o of another type, masks by bits (element by element for 192
// keys).
TEST_F(CompileTable, KernelsOfEightBitsWithWhatOthersHave) {
  const NamedMods dilated = with_sinks(named("dilated", mods::causal() && (leaf::q_idx() - leaf::kv_idx()) % 4 == 0));
  NamedMods lengths = with_sinks(named("by sequence, causal", mods::causal_lower_right()));
  lengths.by_sequence = true;
  EXPECT_EQ(dilated.mods.mask_form, shared::MaskForm::distance);
  HeadDims last = {0, 0};
  for (const ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    shared::ForwardSm90Config config = kernel.config();
    const bool first = !(std::exchange(last, plan::dims_of(kernel)) == plan::dims_of(kernel));
    if (kernel.spare) continue;
    expect_accepted(config, false, dilated);
    config.o_type = shared::StorageType::f32;
    expect_accepted(config, false, lengths);
    config.o_type = shared::StorageType::e4m3;
    if (first) expect_accepted(config, false, named("no mask, o of e4m3", {}), false);
  }
}

// One warp transposes values, the other brings pages: boxes of TMA in all kernels, single rows if the producer has
// registers for it.
TEST_F(CompileTable, KernelsOfEightBitsWithPagesAreAllAccepted) {
  NamedMods causal = named("pages, causal", mods::causal_lower_right()),
            window = with_sinks(named("pages, window", mods::sliding_window(1024))),
            lengths = with_sinks(named("pages, window, device lengths", mods::sliding_window(1024)));
  causal.by_sequence = window.by_sequence = lengths.by_sequence = lengths.device_lengths = true;
  Deck<int> pages({8, 16, 24, 64, 128, 256}, 3), odd_pages({1, 3, 7}, 4);
  for (const ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    const shared::ForwardSm90Config config = kernel.config();
    expect_accepted(paged(config, pages.deal()), false, lengths);
    expect_accepted(config, false, lengths);
    expect_accepted(paged(config, pages.deal()), false, window);
    expect_accepted(paged(config, pages.deal()), false, causal);
    if (kernel.warpgroups == 3) continue;
    expect_accepted(paged(config, odd_pages.deal()), false, lengths);
    const bool odd_o = kernel.v_dim < 256 || kernel.spare;  // 128 x 96 spills there, and the spare one is taken
    expect_accepted(paged(config, odd_pages.deal(), odd_o), false, causal);
  }
  const auto two = std::ranges::find(plan::kForwardSm90Fp8Kernels, 2, &ForwardSm90Kernel::warpgroups);
  expect_accepted(paged(two->config(62, 42), 3), false, causal);
  expect_accepted(paged(two->config(48, 31), 1, true), false, causal);
}

// A factor for each head.
TEST_F(CompileTable, KernelsOfEightBitsThatPackHeadsAreAllAccepted) {
  const auto packed = [](shared::ForwardSm90Config config, int queries) {
    config.packed_queries = queries;
    return config;
  };
  NamedMods plain = named("packed", {}), pages = named("packed, pages, causal", mods::causal_lower_right()),
            there = with_sinks(named("packed, device lengths, window", mods::sliding_window(1024)));
  pages.by_sequence = there.by_sequence = there.device_lengths = true;
  Deck<int> rows({8, 16, 24, 64, 128, 256}, 5);
  for (const ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    if (kernel.spare) continue;
    expect_accepted(packed(kernel.config(), 16), false, there);
    expect_accepted(packed(kernel.config(), 32), false, plain);
    const bool next = kernel.warpgroups == 3 && kernel.qk_dim == 192;  // it spills 4 bytes, and 128 x 128 is taken
    if (!next) expect_accepted(paged(packed(kernel.config(), 16), rows.deal()), false, pages);
    expect_accepted(paged(packed(kernel.config(), 64), rows.deal()), false, there);
    if (kernel.warpgroups < 3) expect_accepted(paged(packed(kernel.config(), 16), 3), false, pages);
  }
}

// In 8 bits: reads and a mask by bits, or a weight, and pages whose rows one warp gathers of both tensors. At D 192
// and 256 only blocks of 32 keys leave registers for the worst of it.
void expect_most_registers_accepted(bool large_dims) {
  using shared::Fp8;
  using shared::StorageType;
  struct Crossing {
    NamedMods mods;
    Fp8 type;
    int page_rows = 0;
    StorageType o_type = StorageType::same;
    bool odd_o = false;
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
      {.mods = named("window, mapped", window, in_cap(f16)), .type = Fp8::e4m3},
      {.mods = lower_right, .type = Fp8::e5m2, .page_rows = 1},
      {.mods = near, .type = Fp8::e5m2, .page_rows = 24},
      {.mods = there(with_sinks(named("documents, mapped, dropout", documents, in_cap(f32), dropout))),
       .type = Fp8::e4m3,
       .page_rows = 3,
       .o_type = StorageType::e4m3,
       .odd_o = true},
      {.mods = there(with_sinks(named("documents, mapped", documents, in_cap(f32)))),
       .type = Fp8::e5m2,
       .page_rows = 5,
       .odd_o = true},
      {.mods = there(with_sinks(named("window, added, dropout", window, leaf::score() + read(f32), dropout))),
       .type = Fp8::e4m3,
       .page_rows = 16,
       .o_type = StorageType::f64},
  };
  OneOfEach kernels;
  for (const ForwardSm90Kernel& kernel : plan::kForwardSm90Fp8Kernels) {
    if ((kernel.v_dim >= 192) != large_dims) continue;
    std::uint64_t number = large_dims ? all.size() : 0;
    for (const Crossing& crossing : all) {
      if (!test::is_kernel_drawn(number++, 2 * all.size())) continue;  // the compiler takes up to 10 s for each
      shared::ForwardSm90Config config = paged(kernel.config(), crossing.page_rows, crossing.odd_o);
      if (config.gathers() && kernel.warpgroups == 3) continue;
      config.q_fp8 = config.k_fp8 = config.v_fp8 = crossing.type;
      if (!crossing.odd_o || crossing.o_type != StorageType::same) config.o_type = crossing.o_type;
      config.weight_exponent = crossing.mods.mods.weight.empty() ? 0 : 1;
      kernels.offer(fmt::format("D {}, fp8, {}, pages of {}", plan::to_string(plan::dims_of(kernel)),
                                crossing.mods.name, crossing.page_rows),
                    fmt::format("{} x {}", config.rows(), kernel.kv_block), source_of(config, false, crossing.mods));
    }
  }
}

TEST_F(CompileTable, EightBitsWithMostRegistersAtLargeHeadDimsFindAKernel) { expect_most_registers_accepted(true); }
TEST_F(CompileTable, EightBitsWithMostRegistersAtSmallHeadDimsFindAKernel) { expect_most_registers_accepted(false); }

}  // namespace
}  // namespace heddle::cuda
