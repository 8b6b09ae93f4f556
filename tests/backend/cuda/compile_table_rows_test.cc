// Kernels whose rows do not lie in one box: gathered, in pages, or packed from several heads.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>

#include "backend/cuda/compile_table.h"
#include "engine/deck.h"
#include "heddle/mods.h"

namespace heddle::cuda {
namespace {

using test::Deck;

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
  // TMA takes one of the two: other counts of who says that a buffer is filled.
  for (const bool keys : {true, false}) {
    shared::ForwardSm90Config mixed = gathered(kForwardSm90Kernels[1].config(), 0, keys ? 8 : 0, keys ? 0 : 8, false);
    mixed.page_rows = 16;
    expect_accepted(mixed, keys, causal);
  }
  if (some_only()) return;
  Deck<int> rows({1, 3, 7, 8, 16, 64, 128, 256}, 2), bytes({2, 4, 8, 16}, 1);
  for (const ForwardSm90Kernel& kernel : kForwardSm90Kernels) {
    expect_accepted(paged(kernel.config(), 8 << (rows.deal() % 6), 0), false, causal);
    if (kernel.spare || kernel.warpgroups == 3) continue;
    expect_accepted(paged(kernel.config(), rows.deal(), bytes.deal()), true, plain);
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

}  // namespace
}  // namespace heddle::cuda
