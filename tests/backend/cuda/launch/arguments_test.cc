// A launch's arguments: tensor maps, parameters, lists, the values of the mask.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <span>
#include <tuple>

#include "backend/cuda/jit/cuda_jit.h"
#include "heddle/mods.h"
#include "launch_case.h"
#include "scoped_environment.h"

namespace heddle::cuda {
namespace {

class LaunchArguments : public LaunchCase {};

std::string text_of(const FakeTensorMap& map) {
  if (map.rank == 0) return "none";
  return fmt::format("{} in steps of {} bytes, boxes {}", std::span(map.extents, map.rank),
                     std::span(map.strides, map.rank - 1), std::span(map.box, map.rank));
}

/// Strides of axes with one element are the library's to choose: that the fake took them is enough.
void expect_map(const FakeTensorMap& map, const ConstTensorView& view, int box_rows) {
  EXPECT_EQ(map.address, reinterpret_cast<std::uintptr_t>(view.data));
  ASSERT_EQ(map.rank, 4);
  for (int axis = 0; axis < 4; ++axis) {
    EXPECT_EQ(map.extents[axis], view.shape[3 - axis]) << axis;
    EXPECT_EQ(map.element_strides[axis], 1) << axis;
    EXPECT_EQ(map.box[axis], axis == 0 ? 64 : axis == 1 ? box_rows : 1) << axis;
    if (axis > 0 && view.shape[3 - axis] > 1) {
      EXPECT_EQ(map.strides[axis - 1], 2 * view.strides[3 - axis]) << axis;
    }
  }
  const auto type = view.dtype == DType::f16 ? CUtensorMapDataType::float16 : CUtensorMapDataType::bfloat16;
  EXPECT_EQ(map.type, static_cast<int>(type));
  EXPECT_EQ(map.interleave, static_cast<int>(CUtensorMapInterleave::none));
  EXPECT_EQ(map.swizzle, static_cast<int>(CUtensorMapSwizzle::bytes128));
  EXPECT_EQ(map.fill, static_cast<int>(CUtensorMapFloatOOBfill::zeros));
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

TEST_F(LaunchArguments, MapsAreWrittenInnermostFirst) {
  const CallTensors heads, rows({.rows_first = true});
  const FakeLaunch launch = launch_of(heads);
  EXPECT_EQ(text_of(launch.maps[0]), "[128, 150, 4, 2] in steps of [256, 38400, 153600] bytes, boxes [64, 64, 1, 1]");
  EXPECT_THAT(text_of(launch.maps[1]), testing::StartsWith("[128, 130, 2, 2] in steps of [256, 33280, 66560] bytes"));
  EXPECT_EQ(text_of(launch_of(rows).maps[3]),
            "[128, 150, 4, 2] in steps of [1024, 256, 159744] bytes, boxes [64, 64, 1, 1]");
}

// Boxes of 64 columns, whatever the tensors have: TMA fills what is missing, and knows by the extents what is.
TEST_F(LaunchArguments, MapsHaveTheTrueHeadDims) {
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
TEST_F(LaunchArguments, MapsAndFactorsOfEightBits) {
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
TEST_F(LaunchArguments, OutputsOfEightBitsHaveNoMap) {
  const CallTensors call({.dim = 128, .dtype = DType::e4m3, .o_dtype = DType::e4m3});
  AttentionTensors tensors = call.tensors();
  const AttentionPlan plan(tensors, {});
  EXPECT_THAT(plan.explain(), testing::HasSubstr(" o e4m3"));
  plan.run(tensors);
  EXPECT_EQ(last_launch().maps[3].rank, 0);
  EXPECT_EQ(last_launch().params.outputs.o, tensors.o.data);
}

// Threads store it: no map, and less of its address is asked.
TEST_F(LaunchArguments, OutputsOfOtherTypesHaveNoMap) {
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

TEST_F(LaunchArguments, FollowLayoutsGroupsAndSharedBatches) {
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
TEST_F(LaunchArguments, StridesOfAxesWithOneElementMayBeAnything) {
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
TEST_F(LaunchArguments, FollowTheTensorsOfEachRun) {
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

TEST_F(LaunchArguments, ScaleStartAndWorkspace) {
  const CallTensors call(many_tiles());
  AttentionOptions options;
  EXPECT_FLOAT_EQ(launch_of(call).params.scale_log2, static_cast<float>(1 / std::sqrt(128.0) / std::log(2.0)));
  EXPECT_EQ(last_launch().params.mod.q_start, 0);
  options.scale = 0.3;
  const std::int32_t starts[] = {7, 7, 7};
  options.q_start = ConstTensorView(starts, DType::i32, {3});
  EXPECT_FLOAT_EQ(launch_of(call, options).params.scale_log2, static_cast<float>(0.3 / std::log(2.0)));
  const shared::ForwardSm90Params& params = last_launch().params;
  EXPECT_EQ(params.mod.q_start, 7);
  EXPECT_EQ(params.mod.q_len, 150);
  EXPECT_EQ(params.mod.kv_len, 130);
  EXPECT_EQ(static_cast<void*>(params.tiles.tickets), call.workspace());
}

/// The value behind kv_start, where starts are these: a word, or a vector on the device.
TEST_F(LaunchArguments, KvStartIsAValueOfTheMods) {
  const CallTensors call;
  AttentionOptions options;
  options.mask_mod = mods::causal();
  const std::int32_t same[] = {70, 70}, other[] = {70, -3};
  options.kv_start = ConstTensorView(same, DType::i32, {2});
  EXPECT_EQ(launch_of(call, options).params.mod.params[0], 70U);
  options.kv_start = ConstTensorView(other, DType::i32, {2});
  const AttentionPlan plan(call.tensors(), options);
  plan.run(call.tensors());
  const shared::ModCapture& starts = last_launch().params.mod.captures[0];
  EXPECT_EQ(location_of(starts.data).device, last_launch().device);
  EXPECT_TRUE(std::ranges::equal(std::span(static_cast<const std::int32_t*>(starts.data), 2), other));
  EXPECT_EQ(std::tuple(starts.extent[0], starts.stride[0]), std::tuple(2, 1));
}

/// Tiles of all queries and heads, each once, as they lie in the device's memory.
void expect_items(const FakeLaunch& launch, const Call& call, int rows) {
  const shared::ForwardSm90Params& params = launch.params;
  const std::int64_t q_tiles = (call.q_rows + rows - 1) / rows;
  EXPECT_EQ(params.tiles.item_count, call.batch * call.q_heads * q_tiles);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(params.tiles.items) % 16, 0U);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(params.tiles.runs) % 16, 0U);
  EXPECT_EQ(location_of(params.tiles.items).device, launch.device);
  EXPECT_EQ(location_of(params.tiles.runs).device, launch.device);
  std::set<std::tuple<int, int, int>> seen;
  for (const shared::WorkItem& item :
       std::span(params.tiles.items, static_cast<std::size_t>(params.tiles.item_count))) {
    seen.emplace(item.q_tile, item.head, item.batch);
    EXPECT_EQ(item.kv_head, item.head / (call.q_heads / call.kv_heads));
    EXPECT_LT(item.q_tile, q_tiles);
    EXPECT_LT(item.batch, call.batch);
    const shared::KvRun& run = params.tiles.runs[item.first_run];
    EXPECT_EQ(run.begin, item.run.begin);
    EXPECT_EQ(run.end, item.run.end);
  }
  EXPECT_EQ(std::ssize(seen), params.tiles.item_count);
}

TEST_F(LaunchArguments, ListsLieOnTheDevice) {
  for (Call call : {Call{}, many_tiles()}) {
    for (const Device& device : {kFirst, kSecond}) {
      call.device = device;
      const CallTensors own(call);
      const AttentionPlan plan(own.tensors(), {});
      plan.run(own.tensors(), {.workspace = own.workspace()});
      EXPECT_EQ(last_launch().device, device.index);
      EXPECT_EQ(last_launch().params.fills.count, 0);
      expect_items(last_launch(), call, planned(plan).rows);
    }
  }
}

TEST_F(LaunchArguments, WithoutKeysThereAreFillsAlone) {
  const CallTensors call({.kv_rows = 0});
  const AttentionPlan plan(call.tensors(), {});
  plan.run(call.tensors());
  const shared::ForwardSm90Params& params = last_launch().params;
  EXPECT_EQ(params.tiles.item_count, 0);
  EXPECT_EQ(location_of(params.fills.fills).device, 0);
  ASSERT_EQ(params.fills.count, 2 * 4 * 3);
  std::set<std::tuple<int, int, int>> seen;
  for (int i = 0; i < params.fills.count; ++i) {
    seen.emplace(params.fills.fills[i].row, params.fills.fills[i].head, params.fills.fills[i].batch);
    EXPECT_EQ(params.fills.fills[i].rows, params.fills.fills[i].row == 128 ? 22 : 64);
  }
  EXPECT_EQ(std::ssize(seen), params.fills.count);
  EXPECT_EQ(*seen.rbegin(), std::tuple(128, 3, 1));
  for (const FakeTensorMap& map : last_launch().maps) EXPECT_EQ(map.rank, 0);
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
TEST_F(LaunchArguments, MapsEndWhereASequenceDoes) {
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

TEST_F(LaunchArguments, PackedSequencesAreABatchWithoutSteps) {
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

TEST_F(LaunchArguments, MapsOfSequencesHaveTheTrueHeadDims) {
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

// One sequence that is the whole tensor takes the kernel of whole sequences.
TEST_F(LaunchArguments, WholeSequencesHaveNoList) {
  const CallTensors call({.batch = 1});
  const std::int32_t q_ends[] = {0, 150}, kv_ends[] = {0, 130};
  AttentionOptions options;
  options.cu_seqlens_q = ConstTensorView(q_ends, DType::i32, {2});
  options.cu_seqlens_kv = ConstTensorView(kv_ends, DType::i32, {2});
  EXPECT_EQ(launch_of(call, options).params.mod.sequences, nullptr);
  EXPECT_EQ(last_launch().maps[0].rank, 4);
}

TEST_F(LaunchArguments, ValuesOfTheMask) {
  const ScopedVariable unstored("HEDDLE_MASK_BYTES", "0");
  const Call call{.dim = 64, .with_lse = false, .dtype = DType::f16};
  const CallTensors own(call);
  // [B, S] with the batch innermost.
  const Tensor ids = Tensor::zeros(DType::i32, {150, 2}).to(kFirst),
               others = Tensor::zeros(DType::i32, {150, 2}).to(kFirst);
  const AttentionOptions options = masked_options(permute(ids.view(), {1, 0}));
  const AttentionPlan plan(own.tensors(), options);
  Bindings bindings = options.bindings;
  bindings.captures["ids"].data = others.data();
  for (const auto& [given, data] :
       {std::pair<const Bindings*, const void*>(nullptr, ids.data()), {&bindings, others.data()}}) {
    plan.run(own.tensors(), {.bindings = given});
    const FakeLaunch& launch = last_launch();
    expect_map(launch.maps[0], own.tensors().q, 64);
    EXPECT_EQ(launch.params.outputs.lse, nullptr);
    const shared::ModValues& mod = launch.params.mod;
    EXPECT_EQ(std::bit_cast<float>(mod.params[0]), 100.5F);  // limit
    EXPECT_EQ(mod.params[1], 3U);                            // shift
    const shared::ModCapture& capture = mod.captures[0];
    EXPECT_EQ(capture.data, data);
    EXPECT_EQ(capture.extent[0], 2);
    EXPECT_EQ(capture.extent[1], 150);
    EXPECT_EQ(capture.stride[0], 1);
    EXPECT_EQ(capture.stride[1], 2);
  }
}

// Found when the plan is made, by a launch that has the mask's values; runs have none of them. A tile's place is that
// of its words, of which all heads and both sequences share one where the mask does.
TEST_F(LaunchArguments, StoredMasks) {
  const CallTensors call({.dim = 64, .with_lse = false, .dtype = DType::f16});
  const Tensor ids = Tensor::zeros(DType::i32, {2, 150}).to(kFirst),
               others = Tensor::zeros(DType::i32, {2, 150}).to(kFirst);
  AttentionOptions options = masked_options(ids);
  const int storings = fake().storings;
  AttentionPlan plan(call.tensors(), options);
  ASSERT_EQ(fake().storings, storings + 1);
  EXPECT_THAT(plan.explain(),
              testing::AllOf(testing::HasSubstr("masked by stored bits"),
                             testing::HasSubstr("partial blocks are stored: "), testing::HasSubstr("mask bits: ")));
  const auto expect_stored = [&](const void* data, float limit) {
    const FakeStoredLaunch& stored = fake().stored;
    EXPECT_EQ(stored.params.mod.captures[0].data, data);
    EXPECT_EQ(stored.params.mod.captures[0].extent[1], 150);
    EXPECT_EQ(std::bit_cast<float>(stored.params.mod.params[0]), limit);
    EXPECT_EQ(stored.params.mod.q_len, 150);
    EXPECT_EQ(stored.params.mod.kv_len, 130);
    plan.run(call.tensors(), {.workspace = call.workspace()});
    const shared::ForwardSm90Params& params = last_launch().params;
    const Planned expected = planned(plan);
    EXPECT_EQ(stored.config.blockDimX, static_cast<unsigned>(2 * expected.rows));
    EXPECT_EQ(stored.params.kv_block, expected.kv_block);
    EXPECT_EQ(stored.params.warpgroups * 64, expected.rows);
    EXPECT_EQ(params.mask_words.words, stored.params.words);
    EXPECT_EQ(location_of(params.mask_words.words).device, 0);
    EXPECT_EQ(location_of(params.mask_words.words_at).device, 0);
    EXPECT_EQ(params.mod.captures[0].data, nullptr) << "the kernel reads none";
    for (int i = 0; i < params.tiles.item_count; ++i) {
      EXPECT_GE(params.mask_words.words_at[i] + params.tiles.items[i].run.begin, 0) << i;
    }
  };
  expect_stored(ids.data(), 100.5F);
  const jit::Counts before = jit::counts();
  options.bindings.captures["ids"] = others;
  options.bindings.params["limit"] = 1000.0;
  plan.update(options.bindings);
  EXPECT_EQ(fake().storings, storings + 2);
  EXPECT_EQ(jit::counts().compiled, before.compiled) << "values are no part of kernels";
  expect_stored(others.data(), 1000.0F);
}

// Bits of other masks need no other forward kernel.
TEST_F(LaunchArguments, StoredMasksShareTheKernel) {
  const CallTensors call({.dim = 64, .with_lse = false, .dtype = DType::f16});
  const Tensor ids = Tensor::zeros(DType::i32, {2, 150}).to(kFirst);
  const auto key_of = [&](const AttentionOptions& options) {
    const std::string text = AttentionPlan(call.tensors(), options).explain();
    const std::size_t at = text.find("cache key: ");
    return text.substr(at, text.find('\n', at) - at);
  };
  const AttentionOptions documents = masked_options(ids);
  AttentionOptions other;
  other.mask_mod = leaf::kv_idx() % (leaf::q_idx() + 3) != 1;
  EXPECT_EQ(key_of(documents), key_of(other));
  EXPECT_THAT(key_of(other), testing::StartsWith("cache key: "));
}

// Where they are and how far apart: the plan's own, whichever tensors a run brings. Fills that are queries come first.
TEST_F(LaunchArguments, SinksAndWhichFillsHaveThem) {
  const CallTensors call;  // 2 x 4 heads of 150 queries
  const Tensor sinks = Tensor::empty_on(kFirst, DType::f32, {4, 3});
  const std::int32_t q_lengths[] = {140, 7}, kv_lengths[] = {0, 129};
  AttentionOptions options;
  options.sinks = ConstTensorView(static_cast<const float*>(sinks.data()) + 1, DType::f32, {4}, {3}, kFirst);
  options.q_lengths = ConstTensorView(q_lengths, DType::i32, {2});
  options.kv_lengths = ConstTensorView(kv_lengths, DType::i32, {2});
  const AttentionPlan plan(call.tensors(), options);  // has the lists
  plan.run(call.tensors());
  const shared::ForwardSm90Params& params = last_launch().params;
  EXPECT_EQ(params.sinks.data, options.sinks->data);
  EXPECT_EQ(params.sinks.stride, 3);
  EXPECT_EQ(params.fills.unattending, 4 * 3);  // of the first sequence
  EXPECT_EQ(params.fills.count, 4 * 3 + 4 * (1 + 3));
  for (int i = 0; i < params.fills.count; ++i) {
    const shared::RowFill& fill = params.fills.fills[i];
    EXPECT_EQ(fill.row < q_lengths[fill.batch], i < params.fills.unattending) << i;
  }
  EXPECT_EQ(launch_of(call).params.sinks.data, nullptr);
}

// The weights of normalizer none are t itself, no powers of two.
TEST_F(LaunchArguments, ScalesOfNormalizers) {
  const CallTensors call({.with_lse = false});
  AttentionOptions options;
  options.scale = 0.3;
  for (const auto& [normalizer, unit] : {std::pair(Normalizer::none, 1.0), {Normalizer::sigmoid, std::log(2.0)}}) {
    options.normalizer = normalizer;
    EXPECT_FLOAT_EQ(launch_of(call, options).params.scale_log2, static_cast<float>(0.3 / unit));
  }
}

}  // namespace
}  // namespace heddle::cuda
