// Lengths on the device: what the kernels before a run are handed, and what the run reads of theirs.
#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <tuple>

#include "backend/cuda/jit/cuda_jit.h"
#include "heddle/error.h"
#include "heddle/mods.h"
#include "launch_case.h"
#include "shared/sequences.h"

namespace heddle::cuda {
namespace {

class LaunchDeviceLengths : public LaunchCase {};

/// 2 x 4 heads x 150 queries, 130 keys, with lengths and starts on the first device.
struct DeviceLengths {
  Tensor q = Tensor::zeros(DType::i32, {2}).to(kFirst), kv = Tensor::zeros(DType::i64, {2, 3}).to(kFirst),
         starts = Tensor::zeros(DType::i32, {2}).to(kFirst);
  AttentionOptions options;
  DeviceLengths() {
    options.q_lengths = q.view();
    options.kv_lengths = ConstTensorView(kv.data(), DType::i64, {2}, {3}, kFirst);
  }
};

void expect_view(const shared::LengthsView& given, const std::optional<ConstTensorView>& view) {
  EXPECT_EQ(given.data, view ? view->data : nullptr);
  if (!view) return;
  EXPECT_EQ(given.stride, view->strides[0]);
  EXPECT_EQ(given.is_i64 != 0, view->dtype == DType::i64);
}

/// Runs it in a workspace of its own.
const FakeLaunch& run(const AttentionPlan& plan, const CallTensors& call, Tensor& workspace, CUstream stream = {}) {
  workspace = Tensor::empty_on(kFirst, DType::u8, {plan.workspace_bytes()});
  plan.run(call.tensors(), {.workspace = workspace.data(), .stream = stream});
  return last_launch();
}

TEST_F(LaunchDeviceLengths, AreReadByAKernelBeforeTheRun) {
  const CallTensors call;
  DeviceLengths lengths;
  lengths.options.q_start = lengths.starts.view();
  lengths.options.max_kv_len = 100;
  const FakeStream stream;
  const AttentionPlan plan(call.tensors(), lengths.options);
  const int rows = planned(plan).rows, tiles = 2 * 4 * ((150 + rows - 1) / rows);
  const shared::SequencesMemory memory = shared::sequences_memory(2, tiles);
  EXPECT_EQ(plan.workspace_bytes(), memory.bytes);
  EXPECT_EQ(memory.bytes, 128 + 32 * 3 + 48 * tiles);
  Tensor workspace;
  const int placings = fake().placings, listings = fake().listings, forwards = fake().forwards;
  const int launches = fake().launches;
  const FakeLaunch& launch = run(plan, call, workspace, stream.handle());
  EXPECT_EQ(fake().launches, launches + 2);
  EXPECT_EQ(std::tuple(fake().placings.load(), fake().listings.load(), fake().forwards.load()),
            std::tuple(placings + 1, listings + 1, forwards + 1));
  for (const FakeSequencesLaunch* before : {&fake().placed, &fake().listed}) {
    EXPECT_EQ(before->config.hStream, stream.handle());
    EXPECT_EQ(before->forwards, forwards) << "not before the run";
    const shared::SequencesParams& params = before->params;
    expect_view(params.q, lengths.options.q_lengths);
    expect_view(params.kv, lengths.options.kv_lengths);
    expect_view(params.q_start, lengths.options.q_start);
    EXPECT_EQ(std::tuple(params.q_packed, params.kv_packed, params.count, params.q_rows, params.kv_rows,
                         params.max_q_len, params.max_kv_len),
              std::tuple(0, 0, 2, 150, 130, 150, 100));
    EXPECT_EQ(params.item_count, tiles);
    EXPECT_EQ(params.kv_block, planned(plan).kv_block);
    EXPECT_EQ(params.tile_queries, rows);
    EXPECT_EQ(params.steps_before[0], 0U);
    const auto* base = static_cast<const char*>(workspace.data());
    EXPECT_EQ(reinterpret_cast<const char*>(params.spans), base + memory.spans);
    EXPECT_EQ(reinterpret_cast<const char*>(params.left), base + memory.items);
    EXPECT_EQ(reinterpret_cast<const char*>(params.left_count), base + memory.count);
    EXPECT_EQ(launch.params.tiles.items, params.left);
    EXPECT_EQ(launch.params.mod.sequences, params.spans);
    EXPECT_EQ(launch.params.listed.item_count, params.left_count);
  }
  EXPECT_EQ(fake().placed.config.gridDimX, 1U);
  EXPECT_EQ(fake().placed.config.blockDimX, 1024U);
  EXPECT_EQ(fake().listed.config.gridDimX, 1U);
  EXPECT_EQ(std::tuple(launch.params.listed.sequence_count, launch.params.listed.q_heads, launch.params.listed.q_rows,
                       launch.params.listed.packed),
            std::tuple(2, 4, 150, 0));
  EXPECT_EQ(launch.params.tensors.q_len, 150);
  EXPECT_EQ(launch.params.tensors.kv_len, 100);
  EXPECT_EQ(launch.params.fills.count, 0);
  EXPECT_EQ(static_cast<void*>(launch.params.tiles.tickets), workspace.data());
  EXPECT_EQ(launch.maps[1].rank, 5);
  EXPECT_EQ(launch.maps[1].extents[1], 100U);
}

TEST_F(LaunchDeviceLengths, OfManyTilesAreReadByTwoKernels) {
  const CallTensors call({.batch = 2, .q_heads = 1100, .kv_heads = 1});
  DeviceLengths lengths;
  const AttentionPlan plan(call.tensors(), lengths.options);
  const int rows = planned(plan).rows, tiles = 2 * 1100 * ((150 + rows - 1) / rows);
  ASSERT_GT(tiles, shared::kListedAtOnce);
  Tensor workspace;
  const int launches = fake().launches;
  run(plan, call, workspace);
  EXPECT_EQ(fake().launches, launches + 3);
  EXPECT_EQ(fake().placed.config.gridDimX, 1U);
  EXPECT_EQ(fake().listed.config.gridDimX, static_cast<unsigned>((tiles + 255) / 256));
  EXPECT_EQ(fake().listed.config.blockDimX, 256U);
}

// The kernel's mods read the caller's vector, in its strides.
TEST_F(LaunchDeviceLengths, KvStartIsReadWhereItIs) {
  const CallTensors call;
  const Tensor starts = Tensor::zeros(DType::i64, {2, 3}).to(kFirst);
  AttentionOptions options;
  options.kv_start = ConstTensorView(starts.data(), DType::i64, {2}, {3}, kFirst);
  options.mask_mod = mods::causal();
  const AttentionPlan plan(call.tensors(), options);
  Tensor workspace;
  const FakeLaunch& launch = run(plan, call, workspace);
  const shared::ModCapture& read = launch.params.mod.captures[0];
  EXPECT_EQ(read.data, starts.data());
  EXPECT_EQ(std::tuple(read.extent[0], read.stride[0]), std::tuple(2, 3));
  expect_view(fake().placed.params.q, {});
  EXPECT_EQ(fake().placed.params.q_start.data, nullptr);
}

// 8 heads that read one, and enough sequences that packed tiles fill the device: a tile has 16 queries of each head.
TEST_F(LaunchDeviceLengths, OfFewQueriesOfHeadsThatArePacked) {
  const CallTensors call({.batch = 40, .q_heads = 16, .kv_heads = 2, .q_rows = 10, .kv_rows = 300});
  const Tensor kv = Tensor::zeros(DType::i32, {40}).to(kFirst);
  AttentionOptions options;
  options.kv_lengths = kv.view();
  const AttentionPlan plan(call.tensors(), options);
  EXPECT_THAT(plan.explain(), testing::HasSubstr(" packed 16 "));
  Tensor workspace;
  const FakeLaunch& launch = run(plan, call, workspace);
  const shared::SequencesParams& params = fake().listed.params;
  EXPECT_EQ(params.tile_queries, 16);
  EXPECT_EQ(params.item_count, 40 * 2);
  EXPECT_EQ(plan.workspace_bytes(), shared::sequences_memory(40, params.item_count).bytes);
  EXPECT_EQ(launch.maps[0].box[1], 16);
  EXPECT_EQ(launch.params.group, 8);
}

TEST_F(LaunchDeviceLengths, OfPackedBatches) {
  const CallTensors call({.batch = 1});
  const Tensor ends = Tensor::zeros(DType::i32, {4}).to(kFirst);
  AttentionOptions options;
  options.cu_seqlens_q = options.cu_seqlens_kv = ends.view();
  options.max_q_len = 70;
  options.max_kv_len = 60;
  options.mask_mod = mods::causal_lower_right();
  const AttentionPlan plan(call.tensors(), options);
  Tensor workspace;
  const FakeLaunch& launch = run(plan, call, workspace);
  const shared::SequencesParams& params = fake().listed.params;
  EXPECT_EQ(std::tuple(params.q_packed, params.kv_packed, params.count, params.q_rows, params.kv_rows, params.max_q_len,
                       params.max_kv_len),
            std::tuple(1, 1, 3, 150, 130, 70, 60));
  expect_view(params.q, options.cu_seqlens_q);
  EXPECT_EQ(params.q_start.data, nullptr);
  EXPECT_EQ(launch.params.listed.packed, 1);
  EXPECT_EQ(launch.maps[0].extents[4], 3U);
  EXPECT_EQ(launch.maps[0].strides[3], 0U);
  EXPECT_THAT(plan.explain(), testing::HasSubstr("every block of keys is partial"));
  EXPECT_THAT(plan.explain(),
              testing::HasSubstr("3 packed sequences, lengths on cuda:0 of up to 70 queries and 60 keys"));
  EXPECT_NE(params.items[0].run.flags & shared::kStepPartial, 0);
}

TEST_F(LaunchDeviceLengths, FillsAloneWithoutKeysOrQueries) {
  for (const bool keys : {false, true}) {
    const CallTensors call;
    DeviceLengths lengths;
    (keys ? lengths.options.max_kv_len : lengths.options.max_q_len) = 0;
    const AttentionPlan plan(call.tensors(), lengths.options);
    Tensor workspace;
    const FakeLaunch& launch = run(plan, call, workspace);
    EXPECT_GT(launch.config.gridDimX, 0U);
    EXPECT_EQ(launch.params.tiles.item_count, 0) << "a map would be prefetched";
    for (const FakeTensorMap& map : launch.maps) EXPECT_EQ(map.rank, 0);
    EXPECT_EQ(launch.params.tensors.kv_len, keys ? 0 : 130) << "by which the kernel knows what its fills are";
    EXPECT_EQ(shared::span_of(fake().placed.params, {0, 150}, {0, 130}, 0).q_len, keys ? 150 : 0);
  }
}

// The thread that loads its tiles reads where the queries begin from the places that the device wrote.
TEST_F(LaunchDeviceLengths, BesideABiasThatIsStreamed) {
  const CallTensors call;
  DeviceLengths lengths;
  const Tensor sinks = Tensor::zeros(DType::f32, {4}).to(kFirst),
               bias = Tensor::zeros(DType::bf16, {4, 150, 136}).to(kFirst);
  AttentionOptions& options = lengths.options;
  options.sinks = sinks.view();
  const Expr read = Capture("bias", DType::bf16, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
  options.score_mod = leaf::score() + read;
  options.bindings.captures["bias"] = bias.view();
  const AttentionPlan plan(call.tensors(), options);
  EXPECT_THAT(plan.explain(), testing::HasSubstr("streamed by sequence device lengths sinks lse"));
  Tensor workspace;
  const FakeLaunch& launch = run(plan, call, workspace);
  EXPECT_EQ(launch.params.mod.sequences, fake().listed.params.spans);
  EXPECT_EQ(launch.params.sinks.data, sinks.data());
  EXPECT_EQ(launch.params.fills.unattending, 0);

  options.q_start = lengths.starts.view();
  try {
    const AttentionPlan nowhere(call.tensors(), options);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("`bias[h, q_idx, kv_idx]`: index 1 ranges over [-2147483648, "));
  }
  options.score_mod = leaf::score() + where((leaf::q_idx() >= 0) & (leaf::q_idx() < 150), read, 0.0);
  const AttentionPlan inside(call.tensors(), options);
  EXPECT_THAT(inside.explain(), testing::HasSubstr("streamed by sequence device lengths sinks lse"));
}

// The pages of an engine: 64 rows or 3 in each, up to 5 a sequence. The device has the number of keys. Packed queries,
// too: their lengths are sums, those of keys are not.
TEST_F(LaunchDeviceLengths, BesideAPageTable) {
  for (const bool packed : {false, true}) {
    for (const std::int64_t rows : {64, 3}) {
      const CallTensors call({.batch = packed ? 1 : 2}), pages({.batch = 7, .kv_rows = rows});
      AttentionTensors tensors = call.tensors();
      tensors.k = pages.tensors().k;
      tensors.v = pages.tensors().v;
      const Tensor table = Tensor::empty_on(kFirst, DType::i32, {2, 5}),
                   ends = Tensor::zeros(DType::i32, {3}).to(kFirst);
      DeviceLengths lengths;
      AttentionOptions& options = lengths.options;
      options.page_table = table.view();
      if (packed) {
        options.q_lengths = {};
        options.cu_seqlens_q = ends.view();
        options.max_q_len = 70;
      }
      const AttentionPlan plan(tensors, options);
      EXPECT_THAT(plan.explain(), testing::HasSubstr(fmt::format("and {} keys, pages of {} rows", 5 * rows, rows)));
      EXPECT_THAT(plan.explain(), testing::HasSubstr("by sequence device lengths"));
      Tensor workspace = Tensor::empty_on(kFirst, DType::u8, {plan.workspace_bytes()});
      plan.run(tensors, {.workspace = workspace.data()});
      const FakeLaunch& launch = last_launch();
      const shared::SequencesParams& params = fake().placed.params;
      expect_view(params.q, packed ? options.cu_seqlens_q : options.q_lengths);
      expect_view(params.kv, options.kv_lengths);
      EXPECT_EQ(std::tuple(params.q_packed, params.kv_packed, params.count, params.q_rows, params.kv_rows,
                           params.max_q_len, params.max_kv_len),
                std::tuple(packed, 0, 2, 150, 5 * rows, packed ? 70 : 150, 5 * rows));
      EXPECT_EQ(launch.params.listed.packed, packed);
      EXPECT_EQ(launch.params.mod.sequences, params.spans);
      EXPECT_EQ(launch.params.pages.table.data, table.data());
      EXPECT_EQ(launch.params.pages.table.pages, 7);
      EXPECT_EQ(launch.params.tensors.kv_len, 5 * rows);
      if (rows == 64) {
        EXPECT_THAT(std::span(launch.maps[1].extents, 5), testing::ElementsAre(128, 64, 65, 2, 7));
      } else {
        EXPECT_EQ(launch.params.pages.gathered[shared::kGatherK].data, tensors.k.data);
      }
    }
  }
}

TEST_F(LaunchDeviceLengths, MustBeWhereTheirViewsSay) {
  const CallTensors call;
  DeviceLengths lengths;
  const Tensor host = Tensor::zeros(DType::i32, {2});
  lengths.options.q_lengths->data = host.data();
  const AttentionPlan plan(call.tensors(), lengths.options);
  Tensor workspace;
  try {
    run(plan, call, workspace);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "q_lengths is on cuda:0, but its data is in host memory; memory of cuda:0 is accepted");
  }
}

/// Kernels that the compiler made since, whatever came from memory.
template <class F>
std::int64_t compiled_by(F&& plan) {
  const std::int64_t before = jit::counts().compiled + jit::counts().from_disk;
  plan();
  return jit::counts().compiled + jit::counts().from_disk - before;
}

// No kernel's text holds values that change from call to call.
TEST_F(LaunchDeviceLengths, LengthsParamsDocumentsAndSizesCompileNothing) {
  const auto planned_with = [](std::int64_t rows, std::int32_t first_length, bool on_device, std::int32_t shift,
                               std::int32_t document) {
    const CallTensors call({.q_rows = rows, .kv_rows = rows + 5});
    Tensor ids = Tensor::empty(DType::i32, {2, rows + 5});
    std::fill_n(static_cast<std::int32_t*>(ids.data()), ids.count(), document);
    static_cast<std::int32_t*>(ids.data())[rows / 2] = 9;
    const Tensor there = ids.to(kFirst);
    AttentionOptions options = masked_options(there.view());
    options.bindings.params["shift"] = shift;
    const std::int32_t lengths[] = {first_length, 3};
    const Tensor on_host = Tensor::adopt(TensorView(const_cast<std::int32_t*>(lengths), DType::i32, {2}), nullptr);
    const Tensor on_first = on_host.to(kFirst);
    options.kv_lengths = on_device ? ConstTensorView(on_first) : ConstTensorView(on_host);
    const AttentionPlan plan(call.tensors(), options);
  };
  for (const bool on_device : {false, true}) {
    EXPECT_GT(compiled_by([&] { planned_with(150, 20, on_device, 3, 0); }), 0);
    EXPECT_EQ(compiled_by([&] { planned_with(150, 90, on_device, 3, 0); }), 0) << "another length";
    EXPECT_EQ(compiled_by([&] { planned_with(150, 20, on_device, -7, 0); }), 0) << "another param";
    EXPECT_EQ(compiled_by([&] { planned_with(150, 20, on_device, 3, 5); }), 0) << "other documents";
    EXPECT_EQ(compiled_by([&] { planned_with(170, 20, on_device, 3, 0); }), 0) << "other sizes";
  }
}

}  // namespace
}  // namespace heddle::cuda
