// Kernels whose rows do not lie in one box: in pages, or packed from several heads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "engine/deck.h"
#include "heddle/mods.h"
#include "kernels/cuda/compile_table.h"

namespace heddle::cuda {
namespace {

using test::Deck;

NamedMods of_sequences(std::string name, const Expr& mask) {
  NamedMods mods = named(std::move(name), mask);
  mods.by_sequence = true;
  return mods;
}

// Two warps copy rows in the registers that the producer has: with three warpgroups they are too few. Columns that a
// row's copies do not share evenly among the lanes, and rows that end inside of one, are ways of their own.
TEST_F(CompileTable, KernelsThatGatherAreAllAccepted) {
  const NamedMods causal = of_sequences("gathered, causal", mods::causal_lower_right()),
                  plain = of_sequences("gathered", {});
  const ForwardSm90Kernel &two = kForwardSm90Kernels[1], &three = kForwardSm90Kernels[0];
  expect_accepted(paged(two.config(20, 33), 1, true), false, causal);
  expect_accepted(paged(three.config(65, 65), 0, true), false, named("odd o", mods::causal()));
  expect_accepted(paged(two.config(), 3), true, plain);
  Deck<int> rows({1, 3, 7, 12}, 2);
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    if (kernel.warpgroups == 3) continue;
    expect_accepted(paged(kernel.config(), rows.deal(), true), false, causal);
    if (!kernel.spare) expect_accepted(paged(kernel.config(), rows.deal()), true, plain);
  }
  for (const HeadDims& dims : {HeadDims{60, 40}, HeadDims{61, 41}, HeadDims{24, 8}}) {
    expect_accepted(paged(two.config(dims.qk, dims.v), rows.deal()), false, causal);
  }
}

TEST_F(CompileTable, KernelsOfPagesAreAllAccepted) {
  const NamedMods causal = of_sequences("pages, causal", mods::causal_lower_right());
  expect_accepted(paged(kForwardSm90Kernels[0].config(), 16), false, causal);
  Deck<int> rows({8, 16, 24, 64, 128, 256}, 2);
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    expect_accepted(paged(kernel.config(), rows.deal()), false, causal);
    expect_accepted(paged(kernel.config(), 0, true), false, named("odd o", {}));
  }
}

// Orders tell the gathering warps where sequences end. The producer has few registers for what it says about a sequence
// without keys.
TEST_F(CompileTable, PagesWithLengthsOnTheDeviceAreAllAccepted) {
  NamedMods causal = of_sequences("device lengths, pages, causal", mods::causal_lower_right());
  causal.device_lengths = true;
  const ForwardSm90Kernel &three = kForwardSm90Kernels[0], &two = kForwardSm90Kernels[1];
  expect_accepted(paged(three.config(), 16), false, causal);
  expect_accepted(paged(two.config(), 1), false, causal);
  expect_accepted(paged(two.config(20, 33), 3, true), false, causal);
  Deck<int> rows({8, 16, 64, 128, 256}, 3), odd_rows({1, 3, 7}, 4);
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    expect_accepted(paged(kernel.config(), rows.deal()), false, causal);
    if (!kernel.spare && kernel.warpgroups < 3) expect_accepted(paged(kernel.config(), odd_rows.deal()), true, causal);
  }
}

// Rows of several heads: their places, what a tile's place holds of them, a box for each.
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
  const auto with_output = [&](const shared::ForwardSm90Config& kernel, int queries, shared::StorageType type) {
    shared::ForwardSm90Config config = packed(kernel, queries);
    config.o_type = type;
    return config;
  };
  NamedMods lengths = with_sinks(named("packed, by sequence, causal", mods::causal_lower_right())),
            there = with_sinks(named("packed, device lengths, causal", mods::causal_lower_right()));
  lengths.by_sequence = there.by_sequence = there.device_lengths = true;
  NamedMods plain = named("packed", {}), pages = named("packed, pages, causal", mods::causal_lower_right());
  pages.by_sequence = true;
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    expect_accepted(packed(kernel.config(), 16), false, lengths);
    if (kernel.spare) continue;
    expect_accepted(packed(kernel.config(), 16), false, there);
    expect_accepted(packed(kernel.config(), 32), true, plain);
    expect_accepted(packed(kernel.config(), 64), false, plain);
    expect_accepted(with_pages(kernel.config(), 16, 16), false, pages);
    expect_accepted(packed(kernel.config(), 64), false, lengths);
    expect_accepted(with_pages(kernel.config(), 64, 64), true, pages);
    expect_accepted(with_output(kernel.config(), 16, shared::StorageType::f32), false, lengths);
    expect_accepted(with_output(kernel.config(), 32, shared::StorageType::f32), false, there);
    expect_accepted(with_pages(kernel.config(), 16, 16), false, there);
    if (kernel.warpgroups < 3) expect_accepted(with_pages(kernel.config(), 32, 3), false, pages);
  }
  const NamedMods dropout = named("packed, dropout", {}, {}, mods::dropout(0.1, 1)),
                  dilated = named("packed, dilated", mods::causal() && (leaf::q_idx() - leaf::kv_idx()) % 4 == 0),
                  alibi = named("packed, ALiBi", mods::causal(), mods::alibi(Capture("slopes", DType::f32, 1))),
                  distant = named("packed, T5", {}, mods::t5_bias(Capture("table", DType::bf16, 2), 32, 128, true));
  NamedMods biased =
      with_sinks(named("packed, bias, device lengths, causal", mods::causal(),
                       leaf::score() + Capture("bias", DType::bf16, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx())));
  biased.by_sequence = biased.device_lengths = true;
  const ForwardSm90Kernel &three = kForwardSm90Kernels[0], &two = kForwardSm90Kernels[1];
  for (const ForwardSm90Kernel& kernel : {three, two}) {
    expect_accepted(streaming(packed(kernel.config(), 16), biased), false, biased);
    expect_accepted(streaming(with_pages(kernel.config(), 32, 16), biased), false, biased);
  }
  expect_accepted(with_pages(two.config(20, 33), 16, 1), false, pages);
  expect_accepted(with_output(three.config(), 32, shared::StorageType::e4m3), false, lengths);
  for (const NamedMods& mods : {dropout, dilated, alibi}) expect_accepted(packed(two.config(), 16), false, mods);
  expect_accepted(packed(two.config(), 64), false, distant);
}

// Pages, together with what else takes the producer's warpgroup, shared memory or the tile's
// place. Each head dim has a kernel that does all of it.
void expect_crossings_accepted(bool device_lengths) {
  const Expr biased = leaf::score() + Capture("bias", DType::bf16, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
  const Expr documents = mods::documents(Capture("ids", DType::i32, 1));
  struct Crossing {
    NamedMods mods;
    int page_rows;
    shared::StorageType o_type = shared::StorageType::same;
    bool odd_o = false;
  };
  const Expr dropout = mods::dropout(0.1, param("seed", ExprType::i32));
  const NamedMods lengths = named("causal", mods::causal_lower_right());
  const Crossing all[] = {
      {named("bias", mods::causal_lower_right(), biased), 16},
      {with_sinks(named("bias", documents && mods::causal(), biased)), 3, shared::StorageType::f32, true},
      {with_sinks(lengths), 64, shared::StorageType::e4m3},
      {named("dropout", mods::causal(), {}, dropout), 7},
      {with_normalizer(Normalizer::none, "causal", mods::causal()), 0, shared::StorageType::f16, true},
  };
  OneOfEach kernels;
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    const HeadDims dims = plan::dims_of(kernel);
    if (dims.qk == 96 || dims.qk != dims.v) continue;  // as in expect_one_accepted()
    for (Crossing crossing : all) {
      shared::ForwardSm90Config config = paged(kernel.config(), crossing.page_rows, crossing.odd_o);
      if (config.gathers() && kernel.warpgroups == 3) continue;
      crossing.mods.by_sequence = true;
      crossing.mods.device_lengths = device_lengths;
      if (!crossing.odd_o || crossing.o_type != shared::StorageType::same) config.o_type = crossing.o_type;
      config.by_sequence = true;
      config.sinks = crossing.mods.sinks;
      if (crossing.mods.mods.streamed) {
        config = streaming(config, crossing.mods);
        if (config.streamed_bytes == 0) continue;
      }
      const bool lse = crossing.mods.normalizer == shared::Normalizer::softmax;
      kernels.offer(fmt::format("D {}, {}, pages of {}{}", plan::to_string(plan::dims_of(kernel)), crossing.mods.name,
                                crossing.page_rows, device_lengths ? ", device lengths" : ""),
                    fmt::format("{} x {}", config.rows(), kernel.kv_block),
                    source_of(config, false, crossing.mods, lse));
    }
  }
}

TEST_F(CompileTable, PagesBesideAllElse) { expect_crossings_accepted(false); }
TEST_F(CompileTable, PagesAndLengthsOnTheDeviceBesideAllElse) { expect_crossings_accepted(true); }

}  // namespace
}  // namespace heddle::cuda
