// A launch's arguments beside its tensor maps: parameters, lists, the values of the mask.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <span>
#include <tuple>

#include "backend/cuda/jit/cuda_jit.h"
#include "expect_map.h"
#include "heddle/mods.h"
#include "launch_case.h"
#include "scoped_environment.h"

namespace heddle::cuda {
namespace {

class LaunchArguments : public LaunchCase {};

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
