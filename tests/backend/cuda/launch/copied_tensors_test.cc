// Tensors q, k and v that TMA does not take: the launch that copies them into the workspace, and the maps of the
// copies.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <vector>

#include "heddle/error.h"
#include "launch_case.h"

namespace heddle::cuda {
namespace {

using shared::CopiedRows;
using shared::CopiedSpan;
using testing::ElementsAre;
using testing::HasSubstr;

class LaunchCopiedTensors : public LaunchCase {};

/// Rows of odd head dims without a gap.
Call odd_call() { return {.dim = 65, .v_dim = 33}; }

TEST_F(LaunchCopiedTensors, ComeBeforeTheKernelThatReadsTheCopies) {
  const CallTensors call(odd_call());
  const AttentionTensors& tensors = call.tensors();
  const AttentionPlan plan(tensors, {});
  const int copyings = fake().copyings, forwards = fake().forwards;
  Tensor workspace;
  const FakeLaunch& launch = run_in(workspace, plan, tensors);
  ASSERT_EQ(fake().copyings, copyings + 1);
  EXPECT_EQ(fake().forwards, forwards + 1);
  const FakeCopiesLaunch& copied = fake().copied;
  EXPECT_EQ(copied.forwards, forwards);
  EXPECT_EQ(copied.config.blockDimX, static_cast<unsigned>(shared::kCopyThreads));
  const ConstTensorView views[] = {tensors.q, tensors.k, tensors.v};
  long long shares = 0;
  for (int i = 0; i < 3; ++i) {
    SCOPED_TRACE(i);
    const CopiedRows& rows = copied.params.tensors[i];
    const ConstTensorView& view = views[i];
    EXPECT_EQ(rows.from, view.data);
    EXPECT_THAT(rows.from_step, ElementsAre(2 * view.strides[0], 2 * view.strides[1], 2 * view.strides[2]));
    EXPECT_EQ(rows.to_row_step, i < 2 ? 144 : 80);
    EXPECT_THAT((std::array{rows.sequences, rows.heads, rows.rows}),
                ElementsAre(view.shape[0], view.shape[1], view.shape[2]));
    EXPECT_EQ(rows.row_bytes, 2 * view.shape[3]);
    EXPECT_EQ(rows.width, 2);
    EXPECT_EQ(rows.paged, 0);
    EXPECT_EQ(rows.shares, rows.sequences * rows.heads * 3);  // of 64 rows, of 150 and of 130
    shares += rows.shares;
    const FakeTensorMap& map = launch.maps[i];
    EXPECT_EQ(map.address, reinterpret_cast<std::uintptr_t>(rows.to));
    EXPECT_THAT(std::span(map.extents, 4), ElementsAre(view.shape[3], view.shape[2], view.shape[1], view.shape[0]));
    EXPECT_THAT(std::span(map.strides, 3),
                ElementsAre(rows.to_row_step, rows.rows * rows.to_row_step, rows.to_row_step * rows.heads * rows.rows));
    // The whole copy lies in the workspace.
    const char* begin = static_cast<const char*>(workspace.data());
    EXPECT_GE(rows.to, begin);
    EXPECT_LE(rows.to + rows.to_row_step * rows.rows * rows.heads * rows.sequences, begin + plan.workspace_bytes());
  }
  EXPECT_EQ(copied.params.shares, shares);
  EXPECT_EQ(copied.params.sequences, nullptr);  // do not differ: all rows
  EXPECT_EQ(copied.config.gridDimX, static_cast<unsigned>(shares));
  EXPECT_THAT(plan.explain(), HasSubstr("copied bytes"));
}

// A head that all share, and a batch: copied once.
TEST_F(LaunchCopiedTensors, StepsOverNothingThatIsShared) {
  Call call = odd_call();
  call.k_shared = true;
  const CallTensors own(call);
  AttentionTensors tensors = own.tensors();
  tensors.v.strides[1] = 0;
  Tensor workspace;
  const FakeLaunch& launch = run_in(workspace, AttentionPlan(tensors, {}), tensors);
  const shared::CopiedRowsParams& params = fake().copied.params;
  EXPECT_EQ(params.tensors[1].sequences, 1);
  EXPECT_EQ(params.tensors[1].from_step[0], 0);
  EXPECT_EQ(launch.params.tensors.k_batched, 0);
  EXPECT_EQ(launch.params.tensors.v_batched, 1);
  EXPECT_EQ(params.tensors[2].heads, 1);
  EXPECT_EQ(launch.maps[2].extents[2], 2U);
  EXPECT_EQ(launch.maps[2].strides[1], 0U);
}

// Padded sequences copy their real rows, known on the host or after place_sequences; packed ones copy all.
TEST_F(LaunchCopiedTensors, FollowTheLengths) {
  const CallTensors call(odd_call());
  const std::int32_t host[] = {100, 7};
  const Tensor device = Tensor::empty_on(kFirst, DType::i32, {2});
  for (const bool on_device : {false, true}) {
    AttentionOptions options;
    options.kv_lengths = on_device ? ConstTensorView(device) : ConstTensorView(host, DType::i32, {2});
    const AttentionPlan plan(call.tensors(), options);
    const int placings = fake().placings;
    Tensor workspace;
    const FakeLaunch& launch = run_in(workspace, plan, call.tensors());
    const FakeCopiesLaunch& copied = fake().copied;
    EXPECT_EQ(copied.placings, placings + (on_device ? 1 : 0));
    EXPECT_NE(copied.params.sequences, nullptr);
    EXPECT_EQ(copied.params.sequences, launch.params.mod.sequences);
    EXPECT_EQ(copied.params.tensors[0].span, CopiedSpan::queries);
    EXPECT_EQ(copied.params.tensors[1].span, CopiedSpan::keys);
    EXPECT_EQ(copied.params.tensors[2].span, CopiedSpan::keys);
    EXPECT_EQ(launch.maps[1].rank, 5);
  }
  Call one = odd_call();
  one.batch = 1;
  const CallTensors packed(one);
  const std::int32_t ends[] = {0, 50, 130};
  AttentionOptions options;
  options.cu_seqlens_q = options.cu_seqlens_kv = ConstTensorView(ends, DType::i32, {3});
  AttentionTensors tensors = packed.tensors();
  tensors.q = slice(tensors.q, 2, 0, 130);
  tensors.o = slice(tensors.o, 2, 0, 130);
  tensors.lse = slice(*tensors.lse, 2, 0, 130);
  Tensor workspace;
  const FakeLaunch& launch = run_in(workspace, AttentionPlan(tensors, options), tensors);
  for (const CopiedRows& rows : std::span(fake().copied.params.tensors).first<3>()) {
    EXPECT_EQ(rows.span, CopiedSpan::all);
    EXPECT_EQ(rows.sequences, 1);
    EXPECT_EQ(rows.rows, 130);
  }
  EXPECT_EQ(launch.maps[1].extents[4], 2U);  // sequences, which begin at the same address
  EXPECT_EQ(launch.maps[1].strides[3], 0U);
}

// Pages become sequences, each with its own rows; by the table of each run.
TEST_F(LaunchCopiedTensors, PagesBecomeSequences) {
  for (const bool packed : {false, true}) {
    const CallTensors call({.batch = packed ? 1 : 2}), pages({.batch = 200, .kv_rows = 16, .column_gap = 4});
    AttentionTensors tensors = call.tensors();
    tensors.k = pages.tensors().k;
    tensors.v = pages.tensors().v;
    const Tensor table = Tensor::empty_on(kFirst, DType::i32, {2, 5});
    const std::int32_t ends[] = {0, 50, 150}, lengths[] = {77, 1};
    AttentionOptions options;
    options.page_table = table.view();
    options.kv_lengths = ConstTensorView(lengths, DType::i32, {2});
    if (packed) options.cu_seqlens_q = ConstTensorView(ends, DType::i32, {3});
    const AttentionPlan plan(tensors, options);
    EXPECT_THAT(plan.explain(), HasSubstr("the pages of k and v are copied into the workspace by each run, sequence "
                                          "by sequence"));
    Tensor workspace;
    const FakeLaunch& launch = run_in(workspace, plan, tensors);
    const shared::CopiedRowsParams& params = fake().copied.params;
    EXPECT_EQ(params.page_rows, 16);
    EXPECT_EQ(params.page_table.data, table.data());
    EXPECT_EQ(params.page_table.pages, 200);
    EXPECT_THAT(params.page_table.stride, ElementsAre(5, 1));
    EXPECT_EQ(params.sequences, launch.params.mod.sequences);
    for (int i = 0; i < 2; ++i) {
      const CopiedRows& rows = params.tensors[i];
      const ConstTensorView& view = i == 0 ? tensors.k : tensors.v;
      EXPECT_EQ(rows.paged, 1);
      EXPECT_EQ(rows.span, CopiedSpan::keys);
      EXPECT_EQ(rows.from, view.data);
      EXPECT_THAT(rows.from_step, ElementsAre(2 * view.strides[0], 2 * view.strides[1], 2 * view.strides[2]));
      EXPECT_THAT((std::array{rows.sequences, rows.heads, rows.rows}), ElementsAre(2, 2, 77));
      EXPECT_EQ(rows.width, 8);
      const FakeTensorMap& map = launch.maps[1 + i];
      EXPECT_EQ(map.address, reinterpret_cast<std::uintptr_t>(rows.to) - 77UL * 256);
      EXPECT_THAT(std::span(map.extents, 5), ElementsAre(128, 77, 78, 2, 2));
      EXPECT_THAT(std::span(map.strides, 4), ElementsAre(256, 256, 77 * 256, 2 * 77 * 256));
    }
    EXPECT_EQ(launch.params.tensors.k_batched, 1);
    EXPECT_EQ(launch.maps[0].strides[3] == 0, packed);
  }
}

// Pages that many sequences read stay pages: all of them are copied, where the table finds them.
TEST_F(LaunchCopiedTensors, PagesMayStayPages) {
  for (const std::int64_t rows : {128, 3}) {
    const std::int64_t batch = rows == 3 ? 64 : 2;
    const CallTensors call({.batch = batch, .q_heads = 2, .q_rows = 16});
    const CallTensors pages({.batch = 2, .kv_rows = rows, .column_gap = 4});
    AttentionTensors tensors = call.tensors();
    tensors.k = pages.tensors().k;
    tensors.v = pages.tensors().v;
    const Tensor table = Tensor::empty_on(kFirst, DType::i32, {batch, 700});
    const std::vector<std::int32_t> lengths(static_cast<std::size_t>(batch), 2000);
    AttentionOptions options;
    options.page_table = table.view();
    options.kv_lengths = ConstTensorView(lengths.data(), DType::i32, {batch});
    const AttentionPlan plan(tensors, options);
    EXPECT_THAT(plan.explain(), HasSubstr("all pages of k are copied into the workspace by each run: its strides are"));
    Tensor workspace;
    const FakeLaunch& launch = run_in(workspace, plan, tensors);
    EXPECT_EQ(launch.params.pages.table.pages, 2);
    for (int i = 0; i < 2; ++i) {
      const CopiedRows& copied = fake().copied.params.tensors[i];
      EXPECT_EQ(copied.paged, 0);
      EXPECT_EQ(copied.span, CopiedSpan::all);
      EXPECT_THAT((std::array{copied.sequences, copied.heads, copied.rows}), ElementsAre(2, 2, rows));
      if (rows == 128) {
        EXPECT_EQ(launch.maps[1 + i].address, reinterpret_cast<std::uintptr_t>(copied.to) - 128UL * 256);
        EXPECT_THAT(std::span(launch.maps[1 + i].extents, 5), ElementsAre(128, 128, 129, 2, 2));
      } else {
        EXPECT_EQ(launch.params.pages.gathered[i].data, copied.to);
        EXPECT_THAT(launch.params.pages.gathered[i].stride, ElementsAre(2 * 3 * 128, 3 * 128, 128));
      }
    }
  }
}

/// Four sequences of four heads, and a bias that they share.
struct Biased {
  CallTensors call{{.batch = 6, .q_rows = 131, .kv_rows = 131, .dim = 64}};
  AttentionOptions options;
  explicit Biased(const ConstTensorView& planned) {
    options.score_mod = leaf::score() + Capture("bias", DType::bf16, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
    options.bindings.captures["bias"] = planned;
  }
  void run(const AttentionPlan& plan, const Tensor& workspace, const ConstTensorView& bias) const {
    Bindings bindings = options.bindings;
    bindings.captures["bias"] = bias;
    plan.run(call.tensors(), {.workspace = workspace.data(), .bindings = &bindings});
  }
};

// A bias whose rows TMA does not take: of each run its own, wherever that lies, as far as queries and keys go.
TEST_F(LaunchCopiedTensors, ACaptureThatIsStreamed) {
  const Tensor first = Tensor::empty_on(kFirst, DType::bf16, {4, 131, 131}),
               second = Tensor::empty_on(kFirst, DType::bf16, {4, 131, 140}),
               longer = Tensor::empty_on(kFirst, DType::bf16, {4, 140, 133});
  ConstTensorView one_head = first;
  one_head.strides[0] = 0;
  const Biased biased(first);
  const AttentionPlan plan(biased.call.tensors(), biased.options);
  EXPECT_THAT(plan.explain(),
              HasSubstr("a capture is copied into the workspace by each run: capture 'bias': its strides"));
  const Tensor workspace = Tensor::empty_on(kFirst, DType::u8, {plan.workspace_bytes()});
  for (const ConstTensorView& bias :
       {ConstTensorView(first), ConstTensorView(slice(second.view(), 2, 1, 132)), ConstTensorView(longer), one_head}) {
    biased.run(plan, workspace, bias);
    const CopiedRows& rows = fake().copied.params.tensors[0];
    const bool shared = bias.strides[0] == 0;
    EXPECT_EQ(rows.from, bias.data);
    EXPECT_THAT(rows.from_step, ElementsAre(0, 2 * bias.strides[0], 2 * bias.strides[1]));
    EXPECT_THAT((std::array{rows.sequences, rows.heads, rows.rows, rows.row_bytes}),
                ElementsAre(1, shared ? 1 : 4, 131, 262));
    EXPECT_EQ(fake().copied.params.shares, shared ? 3 : 12);
    EXPECT_EQ(rows.to_row_step, 272);
    EXPECT_EQ(rows.width, 2);
    EXPECT_EQ(rows.span, CopiedSpan::all);
    const FakeTensorMap& map = last_launch().streamed;
    EXPECT_EQ(map.address, reinterpret_cast<std::uintptr_t>(rows.to));
    EXPECT_THAT(std::span(map.extents, 4), ElementsAre(131, 131, 4, 1));
    EXPECT_EQ(map.strides[1], shared ? 0U : 131U * 272);
  }
}

// A copy that has no room, and one that cannot be made: before anything is enqueued.
TEST_F(LaunchCopiedTensors, ACaptureThatThePlanHasNoRoomFor) {
  const Tensor all = Tensor::empty_on(kFirst, DType::bf16, {4, 131, 131}),
               more = Tensor::empty_on(kFirst, DType::bf16, {5, 131, 131});
  ConstTensorView one_head = all;
  one_head.strides[0] = 0;
  const Biased biased(one_head);
  const AttentionPlan plan(biased.call.tensors(), biased.options);
  const Tensor workspace = Tensor::empty_on(kFirst, DType::u8, {plan.workspace_bytes()});
  biased.run(plan, workspace, one_head);
  const int launches = fake().launches;
  const auto expect_refused = [&](const ConstTensorView& bias, const auto& sentence) {
    try {
      biased.run(plan, workspace, bias);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), sentence);
    }
    EXPECT_EQ(fake().launches, launches);
  };
  expect_refused(all, testing::StartsWith("capture 'bias' is [4, 131, 131] with strides [17161, 131, 1], of which a "
                                          "copy takes 142528 bytes; up to 35632 are accepted (the plan copies it"));
  expect_refused(more, HasSubstr("of which a copy takes 178160 bytes"));
}

// Behind copies of q, k and v.
TEST_F(LaunchCopiedTensors, ACaptureBesideTensors) {
  const Tensor bias = Tensor::empty_on(kFirst, DType::bf16, {4, 131, 131});
  Biased biased(bias);
  const CallTensors odd({.batch = 6, .q_rows = 131, .kv_rows = 131, .dim = 65, .v_dim = 33});
  const AttentionPlan plan(odd.tensors(), biased.options);
  Tensor workspace;
  const FakeLaunch& launch = run_in(workspace, plan, odd.tensors());
  const CopiedRows* const rows = fake().copied.params.tensors;
  EXPECT_EQ(rows[3].from, bias.data());
  for (int i = 0; i < 3; ++i) {
    EXPECT_LE(rows[i].to + rows[i].to_row_step * rows[i].rows * rows[i].heads * rows[i].sequences, rows[i + 1].to);
  }
  EXPECT_LE(rows[3].to + 4L * 131 * 272, static_cast<const char*>(workspace.data()) + plan.workspace_bytes());
  EXPECT_EQ(launch.streamed.address, reinterpret_cast<std::uintptr_t>(rows[3].to));
}

// No more CTAs than the device keeps busy.
TEST_F(LaunchCopiedTensors, LargeOnesHaveFewCtas) {
  Call call = odd_call();
  call.batch = 60;
  const CallTensors own(call);
  Tensor workspace;
  run_in(workspace, AttentionPlan(own.tensors(), {}), own.tensors());
  EXPECT_GT(fake().copied.params.shares, fake().copied.config.gridDimX);
  EXPECT_EQ(fake().copied.config.gridDimX % shared::kCopyCtas, 0U);
}

}  // namespace
}  // namespace heddle::cuda
