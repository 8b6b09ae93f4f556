// Arguments of a kernel that packs heads: boxes of a head's rows, lists of its tiles, and the group.
#include <nlohmann/json.hpp>
#include <set>

#include "launch_case.h"

namespace heddle::cuda {
namespace {

class LaunchPacked : public LaunchCase {};

/// 8 query heads a kv head. There are fewer packed tiles than CTAs, but more tiles without packing.
Call few_queries() { return {.batch = 40, .q_heads = 16, .kv_heads = 2, .q_rows = 10, .kv_rows = 300}; }

TEST_F(LaunchPacked, BoxesHaveTheRowsOfAHead) {
  const CallTensors call(few_queries());
  const AttentionPlan plan(call.tensors(), {});
  const nlohmann::json json = nlohmann::json::parse(plan.explain_json())["plan"];
  EXPECT_EQ(json["packed_heads"], 8);
  EXPECT_EQ(json["config"]["packed_queries"], 16);
  EXPECT_THAT(plan.explain(), testing::HasSubstr("packs 8 heads a tile, 16 queries of each"));
  EXPECT_THAT(plan.explain(), testing::HasSubstr(" packed 16 "));  // the kernel's name
  plan.run(call.tensors(), {.workspace = call.workspace()});
  const FakeLaunch& launch = last_launch();
  for (const int tensor : {0, 3}) {
    EXPECT_EQ(launch.maps[tensor].rank, 4);
    EXPECT_EQ(launch.maps[tensor].box[1], 16);
    EXPECT_EQ(launch.maps[tensor].extents[1], 10);
  }
  for (const int tensor : {1, 2}) EXPECT_EQ(launch.maps[tensor].box[1], planned(plan).kv_block);
  EXPECT_EQ(launch.params.group, 8);
  EXPECT_EQ(launch.params.tensors.q_len, 10);
  EXPECT_EQ(launch.params.tiles.item_count, 40 * 2);
  std::set<std::pair<int, int>> tiles;
  for (int i = 0; i < launch.params.tiles.item_count; ++i) {
    const shared::WorkItem& item = launch.params.tiles.items[i];
    EXPECT_EQ(item.q_tile, 0);
    EXPECT_EQ(item.head, 8 * item.kv_head);
    tiles.emplace(item.batch, item.head);
  }
  EXPECT_EQ(tiles.size(), 80U);
}

TEST_F(LaunchPacked, TilesOfABiasHaveTheRowsOfAHead) {
  const CallTensors call(few_queries());
  const Tensor bias = Tensor::empty_on(kFirst, DType::f32, {16, 10, 304});
  AttentionOptions options;
  options.score_mod = leaf::score() + Capture("bias", DType::f32, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
  options.bindings.captures["bias"] = bias;
  const AttentionPlan plan(call.tensors(), options);
  EXPECT_THAT(plan.explain(), testing::HasSubstr(" packed 16 "));
  plan.run(call.tensors(), {.workspace = call.workspace()});
  const FakeTensorMap& map = last_launch().streamed;
  EXPECT_EQ(map.address, reinterpret_cast<std::uintptr_t>(bias.data()));
  EXPECT_THAT(std::span(map.box, 2), testing::ElementsAre(32, 16));
  EXPECT_THAT(std::span(map.extents, 3), testing::ElementsAre(304, 10, 16));
}

// Maps that end where a sequence does; and queries that TMA does not take.
TEST_F(LaunchPacked, SequencesAndCopiedQueries) {
  const CallTensors call(few_queries());
  std::vector<std::int64_t> lengths(40, 7);
  lengths[3] = 10;
  AttentionOptions options;
  options.q_lengths = ConstTensorView(lengths.data(), DType::i64, {40});
  const FakeLaunch& launch = launch_of(call, options);
  EXPECT_EQ(launch.maps[0].rank, 5);
  EXPECT_EQ(launch.maps[0].box[1], 16);
  EXPECT_EQ(launch.maps[3].box[1], 16);
  EXPECT_EQ(launch.params.tiles.item_count, 80);

  Call odd = few_queries();
  odd.column_gap = 4;
  const CallTensors copied(odd);
  const AttentionPlan plan(copied.tensors(), {});
  EXPECT_THAT(plan.explain(), testing::HasSubstr("q is copied into the workspace"));
  EXPECT_THAT(plan.explain(), testing::HasSubstr("packs 8 heads a tile"));
  Tensor workspace;
  run_in(workspace, plan, copied.tensors());
  EXPECT_EQ(fake().copied.params.tensors[0].from, copied.tensors().q.data);
  EXPECT_EQ(last_launch().params.tiles.item_count, 80);
}

}  // namespace
}  // namespace heddle::cuda
