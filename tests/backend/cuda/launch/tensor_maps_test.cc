// TMA's maps of a launch: extents, strides and boxes of every layout; where they end with sequences.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <set>
#include <span>
#include <tuple>

#include "expect_map.h"
#include "heddle/mods.h"
#include "launch_case.h"

namespace heddle::cuda {
namespace {

class LaunchMaps : public LaunchCase {};

std::string text_of(const FakeTensorMap& map) {
  if (map.rank == 0) return "none";
  return fmt::format("{} in steps of {} bytes, boxes {}", std::span(map.extents, map.rank),
                     std::span(map.strides, map.rank - 1), std::span(map.box, map.rank));
}

/// Plans and runs; expects what every launch owes its tensors.
void expect_launch(const AttentionTensors& tensors, void* workspace) {
  const AttentionPlan plan(tensors, {});
  plan.run(tensors, {.workspace = workspace});
  const FakeLaunch& launch = last_launch();
  const int kv_block = planned(plan).kv_block;
  expect_map(launch.maps[0], tensors.q, 64);
  expect_map(launch.maps[1], tensors.k, kv_block);
  expect_map(launch.maps[2], tensors.v, kv_block);
  if (tensors.o.shape[3] % 8 == 0) {
    expect_map(launch.maps[3], tensors.o, 64);
  } else {
    EXPECT_EQ(launch.maps[3].rank, 0);  // threads store it
  }
  const shared::ForwardSm90Params& params = launch.params;
  EXPECT_EQ(params.tensors.q_batched != 0, tensors.q.shape[0] > 1);
  EXPECT_EQ(params.tensors.k_batched != 0, tensors.k.shape[0] > 1);
  EXPECT_EQ(params.tensors.v_batched != 0, tensors.v.shape[0] > 1);
  EXPECT_EQ(params.tensors.q_len, tensors.q.shape[2]);
  EXPECT_EQ(params.tensors.kv_len, tensors.k.shape[2]);
  EXPECT_EQ(params.outputs.o, tensors.o.data);
  EXPECT_EQ(params.outputs.lse, tensors.lse->data);
  for (int axis = 0; axis < 3; ++axis) {
    EXPECT_EQ(params.outputs.o_stride[axis], tensors.o.strides[axis]) << axis;
    EXPECT_EQ(params.outputs.lse_stride[axis], tensors.lse->strides[axis]) << axis;
  }
}

TEST_F(LaunchMaps, MapsAreWrittenInnermostFirst) {
  const CallTensors heads, rows({.rows_first = true});
  const FakeLaunch launch = launch_of(heads);
  EXPECT_EQ(text_of(launch.maps[0]), "[128, 150, 4, 2] in steps of [256, 38400, 153600] bytes, boxes [64, 64, 1, 1]");
  EXPECT_THAT(text_of(launch.maps[1]), testing::StartsWith("[128, 130, 2, 2] in steps of [256, 33280, 66560] bytes"));
  EXPECT_EQ(text_of(launch_of(rows).maps[3]),
            "[128, 150, 4, 2] in steps of [1024, 256, 159744] bytes, boxes [64, 64, 1, 1]");
}

// Boxes of 64 columns, whatever the tensors have: TMA fills what is missing, and knows by the extents what is.
TEST_F(LaunchMaps, MapsHaveTheTrueHeadDims) {
  const FakeLaunch launch = launch_of(CallTensors({.dim = 96, .v_dim = 40}));
  EXPECT_THAT(text_of(launch.maps[0]), testing::StartsWith("[96, 150, 4, 2] in steps of [192, "));
  EXPECT_THAT(text_of(launch.maps[1]), testing::StartsWith("[96, 130, 2, 2] in steps of [192, "));
  EXPECT_THAT(text_of(launch.maps[2]), testing::StartsWith("[40, 130, 2, 2] in steps of [80, "));
  EXPECT_THAT(text_of(launch.maps[3]), testing::StartsWith("[40, 150, 4, 2] in steps of [80, "));
  for (const Call& call :
       {Call{.dim = 96, .v_dim = 40}, Call{.dim = 8, .v_dim = 200}, Call{.dim = 100, .v_dim = 20, .column_gap = 4},
        Call{.batch = 1, .q_heads = 1, .kv_heads = 1, .q_rows = 1, .kv_rows = 1, .dim = 1, .v_dim = 3}}) {
    SCOPED_TRACE(fmt::format("D {} / {}", call.dim, call.v_dim));
    const CallTensors own(call);
    expect_launch(own.tensors(), own.workspace());
  }
}

// 8 bits: boxes of as many bytes, and where the factors stand.
TEST_F(LaunchMaps, MapsAndFactorsOfEightBits) {
  const CallTensors call({.dim = 128, .v_dim = 48, .column_gap = 16, .dtype = DType::e4m3});
  const Tensor factors = Tensor::empty_on(kFirst, DType::f32, {2, 4}),
               shared = Tensor::empty_on(kFirst, DType::f32, {1, 2});
  AttentionOptions options;
  options.q_descale = factors;
  options.v_descale = shared;
  const FakeLaunch& launch = launch_of(call, options);
  EXPECT_EQ(text_of(launch.maps[0]), "[128, 150, 4, 2] in steps of [144, 21600, 86400] bytes, boxes [128, 64, 1, 1]");
  EXPECT_THAT(text_of(launch.maps[2]),
              testing::StartsWith("[48, 130, 2, 2] in steps of [64, 8320, 16640] bytes, boxes [128, "));
  EXPECT_THAT(text_of(launch.maps[3]), testing::HasSubstr("bytes, boxes [64, 64, 1, 1]"));
  for (int i = 0; i < 3; ++i) EXPECT_EQ(launch.maps[i].type, static_cast<int>(CUtensorMapDataType::uint8));
  EXPECT_EQ(launch.maps[3].type, static_cast<int>(CUtensorMapDataType::bfloat16));
  const shared::ForwardSm90Params& params = launch.params;
  EXPECT_EQ(params.descales.q.factors, factors.data());
  EXPECT_EQ(params.descales.q.stride[0], 4);
  EXPECT_EQ(params.descales.q.stride[1], 1);
  EXPECT_EQ(params.descales.k.factors, nullptr);
  EXPECT_EQ(params.descales.v.factors, shared.data());
  EXPECT_EQ(params.descales.v.stride[0], 0);
  EXPECT_EQ(params.descales.v.stride[1], 1);
}

// An o of q's type is then one of those: products of 8 bits store bf16.
TEST_F(LaunchMaps, OutputsOfEightBitsHaveNoMap) {
  const CallTensors call({.dim = 128, .dtype = DType::e4m3, .o_dtype = DType::e4m3});
  AttentionTensors tensors = call.tensors();
  const AttentionPlan plan(tensors, {});
  EXPECT_THAT(plan.explain(), testing::HasSubstr(" o e4m3"));
  plan.run(tensors);
  EXPECT_EQ(last_launch().maps[3].rank, 0);
  EXPECT_EQ(last_launch().params.outputs.o, tensors.o.data);
}

// Threads store it: no map, and less of its address is asked.
TEST_F(LaunchMaps, OutputsOfOtherTypesHaveNoMap) {
  for (const DType o_dtype : {DType::f32, DType::e4m3}) {
    const CallTensors call({.o_dtype = o_dtype});
    AttentionTensors tensors = call.tensors();
    const AttentionPlan plan(tensors, {});
    EXPECT_THAT(plan.explain(), testing::HasSubstr(fmt::format(" o {}", name(o_dtype))));
    const auto* start = static_cast<const std::byte*>(tensors.o.data);
    tensors.o.data = const_cast<std::byte*>(start + 2 * size_of(o_dtype));
    plan.run(tensors);
    const FakeLaunch& launch = last_launch();
    EXPECT_EQ(launch.maps[3].rank, 0);
    EXPECT_EQ(launch.maps[2].rank, 4);
    EXPECT_EQ(launch.params.outputs.o, tensors.o.data);
    for (int axis = 0; axis < 3; ++axis)
      EXPECT_EQ(launch.params.outputs.o_stride[axis], tensors.o.strides[axis]) << axis;
  }
}

TEST_F(LaunchMaps, FollowLayoutsGroupsAndSharedBatches) {
  for (const bool rows_first : {false, true}) {
    for (const Call& call : {Call{}, Call{.batch = 3, .q_heads = 5, .kv_heads = 5}, Call{.q_heads = 6, .kv_heads = 1},
                             Call{.batch = 1}, Call{.q_heads = 1, .kv_heads = 1}, Call{.q_rows = 1}, Call{.kv_rows = 1},
                             Call{.batch = 1, .q_heads = 1, .kv_heads = 1, .q_rows = 1}, Call{.q_shared = true},
                             Call{.k_shared = true}, Call{.v_shared = true}}) {
      Call laid = call;
      laid.rows_first = rows_first;
      SCOPED_TRACE(fmt::format("B {}, H {} / {}, S {} x {}{}", call.batch, call.q_heads, call.kv_heads, call.q_rows,
                               call.kv_rows, rows_first ? ", rows first" : ""));
      const CallTensors own(laid);
      expect_launch(own.tensors(), own.workspace());
    }
  }
}

// TMA takes none of these.
TEST_F(LaunchMaps, StridesOfAxesWithOneElementMayBeAnything) {
  const CallTensors call({.batch = 1, .q_heads = 1, .kv_heads = 1, .q_rows = 1, .kv_rows = 1});
  for (const std::int64_t stride : {std::int64_t{0}, std::int64_t{3}, std::int64_t{-128}, std::int64_t{1} << 50}) {
    AttentionTensors tensors = call.tensors();
    for (int axis = 0; axis < 3; ++axis) {
      for (ConstTensorView* view : {&tensors.q, &tensors.k, &tensors.v}) view->strides[axis] = stride;
      tensors.o.strides[axis] = stride;
    }
    expect_launch(tensors, call.workspace());
  }
}

// The plan keeps nothing of the tensors that it was made with, nor of an earlier run's.
TEST_F(LaunchMaps, FollowTheTensorsOfEachRun) {
  const CallTensors first, second;
  const AttentionPlan plan(first.tensors(), {});
  for (const CallTensors* call : {&first, &second, &first}) {
    plan.run(call->tensors());
    const FakeLaunch& launch = last_launch();
    const AttentionTensors& tensors = call->tensors();
    const void* const data[] = {tensors.q.data, tensors.k.data, tensors.v.data, tensors.o.data};
    for (int i = 0; i < 4; ++i) EXPECT_EQ(launch.maps[i].address, reinterpret_cast<std::uintptr_t>(data[i])) << i;
    EXPECT_EQ(launch.params.outputs.o, tensors.o.data);
    EXPECT_EQ(launch.params.outputs.lse, tensors.lse->data);
  }
}

/// The list of sequences, as it lies in the device's memory: "q_begin + q_len, kv_begin + kv_len, q_start".
std::vector<std::string> sequences_of(const FakeLaunch& launch, std::size_t count) {
  EXPECT_EQ(location_of(launch.params.mod.sequences).device, launch.device);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(launch.params.mod.sequences) % 16, 0U);
  std::vector<std::string> texts;
  for (const shared::SequenceSpan& at : std::span(launch.params.mod.sequences, count)) {
    texts.push_back(fmt::format("{} + {}, {} + {}, {}", at.q_begin, at.q_len, at.kv_begin, at.kv_len, at.q_start));
  }
  return texts;
}

// A map of five axes: rows before an end, and the ends.
TEST_F(LaunchMaps, MapsEndWhereASequenceDoes) {
  const CallTensors call;  // 2 x 4 heads x 150 queries, 2 x 2 heads x 130 keys, of 128 columns
  const std::int32_t q_lengths[] = {140, 7}, kv_lengths[] = {0, 129}, starts[] = {3, -5};
  AttentionOptions options;
  options.q_lengths = ConstTensorView(q_lengths, DType::i32, {2});
  options.kv_lengths = ConstTensorView(kv_lengths, DType::i32, {2});
  options.q_start = ConstTensorView(starts, DType::i32, {2});
  const AttentionPlan plan(call.tensors(), options);  // has the list
  plan.run(call.tensors());
  const FakeLaunch& launch = last_launch();
  EXPECT_THAT(sequences_of(launch, 2), testing::ElementsAre("0 + 140, 0 + 0, 3", "0 + 7, 0 + 129, -5"));
  EXPECT_EQ(launch.params.tensors.q_len, 140);
  EXPECT_EQ(launch.params.tensors.kv_len, 129);
  const FakeTensorMap &q = launch.maps[0], &k = launch.maps[1];
  EXPECT_EQ(text_of(q), "[128, 140, 151, 4, 2] in steps of [256, 256, 38400, 153600] bytes, boxes [64, 64, 1, 1, 1]");
  EXPECT_THAT(text_of(k), testing::StartsWith("[128, 129, 131, 2, 2] in steps of [256, 256, 33280, 66560] bytes"));
  EXPECT_EQ(q.address, reinterpret_cast<std::uintptr_t>(call.tensors().q.data) - 140 * 256);
  EXPECT_EQ(k.address, reinterpret_cast<std::uintptr_t>(call.tensors().k.data) - 129 * 256);
  EXPECT_EQ(launch.params.outputs.lse_stride[0], call.tensors().lse->strides[0]);
  EXPECT_EQ(launch.params.outputs.o_stride[0], call.tensors().o.strides[0]);
}

TEST_F(LaunchMaps, PackedSequencesAreABatchWithoutSteps) {
  const CallTensors call({.batch = 1});
  const std::int32_t q_ends[] = {0, 100, 100, 150}, kv_ends[] = {0, 5, 30, 130};
  AttentionOptions options;
  options.cu_seqlens_q = ConstTensorView(q_ends, DType::i32, {4});
  options.cu_seqlens_kv = ConstTensorView(kv_ends, DType::i32, {4});
  const AttentionPlan plan(call.tensors(), options);  // has the lists
  plan.run(call.tensors());
  const FakeLaunch& launch = last_launch();
  EXPECT_THAT(sequences_of(launch, 3),
              testing::ElementsAre("0 + 100, 0 + 5, 0", "100 + 0, 5 + 25, 0", "100 + 50, 30 + 100, 0"));
  EXPECT_EQ(text_of(launch.maps[0]),
            "[128, 100, 151, 4, 3] in steps of [256, 256, 38400, 0] bytes, boxes [64, 64, 1, 1, 1]");
  EXPECT_EQ(launch.params.tensors.q_batched + launch.params.tensors.k_batched + launch.params.tensors.v_batched, 0);
  EXPECT_EQ(launch.params.outputs.lse_stride[0], 0);
  EXPECT_EQ(launch.params.outputs.o_stride[0], 0);
  EXPECT_EQ(launch.params.fills.count, 0);
  for (int i = 0; i < launch.params.tiles.item_count; ++i) EXPECT_NE(launch.params.tiles.items[i].batch, 1);
}

TEST_F(LaunchMaps, MapsOfSequencesHaveTheTrueHeadDims) {
  const CallTensors call({.batch = 1, .dim = 100, .v_dim = 20, .column_gap = 4});
  const std::int32_t q_ends[] = {0, 100, 150}, kv_ends[] = {0, 30, 130};
  AttentionOptions options;
  options.cu_seqlens_q = ConstTensorView(q_ends, DType::i32, {3});
  options.cu_seqlens_kv = ConstTensorView(kv_ends, DType::i32, {3});
  const FakeLaunch launch = launch_of(call, options);
  EXPECT_THAT(text_of(launch.maps[1]), testing::StartsWith("[100, 100, 131, 2, 2] in steps of [208, 208, 27040, 0] "));
  EXPECT_THAT(text_of(launch.maps[2]), testing::StartsWith("[20, 100, 131, 2, 2] in steps of [48, 48, 6240, 0] "));
  EXPECT_EQ(launch.maps[3].rank, 0);  // threads store it
  EXPECT_EQ(launch.params.outputs.o_stride[0], 0);
  EXPECT_EQ(launch.params.outputs.o_stride[2], 24);
}

}  // namespace
}  // namespace heddle::cuda
