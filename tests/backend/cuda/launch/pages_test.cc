// Keys and values in pages: what a launch hands over of them and of their table, where they are read in place.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <span>

#include "launch_case.h"
#include "scoped_environment.h"

namespace heddle::cuda {
namespace {

class LaunchPages : public LaunchCase {};

/// Two sequences, one of at most five pages and one of one key, in seven pages of `rows` rows.
struct PagedCall {
  CallTensors call, pages;
  Tensor table = Tensor::empty_on(kFirst, DType::i32, {2, 5});
  std::int32_t lengths[2];
  AttentionTensors tensors = call.tensors();
  AttentionOptions options;

  PagedCall(std::int64_t rows, DType dtype)
      : call({.batch = 2, .kv_rows = rows, .dtype = dtype}),
        pages({.batch = 7, .kv_rows = rows, .dtype = dtype}),
        lengths{static_cast<std::int32_t>(4 * rows + 1), 1} {
    tensors.k = pages.tensors().k;
    tensors.v = pages.tensors().v;
    options.page_table = table.view();
    options.kv_lengths = ConstTensorView(lengths, DType::i32, {2});
  }
};

// Pages of 8 bits: as many elements as bytes.
TEST_F(LaunchPages, OfEightBits) {
  const ScopedVariable nothing("HEDDLE_COPY_BYTES", "0");
  for (const std::int64_t rows : {64, 3}) {
    PagedCall paged(rows, DType::e4m3);
    const AttentionTensors& tensors = paged.tensors;
    const Tensor factors = Tensor::empty_on(kFirst, DType::f32, {2, 2});
    paged.options.k_descale = factors;
    const AttentionPlan plan(tensors, paged.options);
    plan.run(tensors);
    const FakeLaunch& launch = last_launch();
    EXPECT_EQ(launch.params.pages.table.data, paged.table.data());
    EXPECT_EQ(launch.params.descales.k.factors, factors.data());  // of a sequence, not of a page
    EXPECT_EQ(launch.params.descales.k.stride[0], 2);
    for (const int tensor : {shared::kGatherK, shared::kGatherV}) {
      const ConstTensorView& view = tensor == shared::kGatherK ? tensors.k : tensors.v;
      if (rows == 64) {
        const FakeTensorMap& map = launch.maps[1 + tensor];
        EXPECT_EQ(map.address, reinterpret_cast<std::uintptr_t>(view.data) - 64 * 128);
        EXPECT_THAT(std::span(map.box, 2), testing::ElementsAre(128, std::gcd(64, planned(plan).kv_block)));
        EXPECT_THAT(std::span(map.extents, 5), testing::ElementsAre(128, 64, 65, 2, 7));
      } else {
        EXPECT_EQ(launch.maps[1 + tensor].rank, 0);
        EXPECT_EQ(launch.params.pages.gathered[tensor].data, view.data);
        EXPECT_EQ(launch.params.pages.gathered[tensor].stride[2], view.strides[2]);
      }
    }
    EXPECT_EQ(launch.maps[3].type, static_cast<int>(CUtensorMapDataType::bfloat16));
  }
}

// Pages of 64 rows come by TMA, in boxes of what a block of keys has of them, of a map that ends inside of a page;
// pages of 3 rows are gathered.
TEST_F(LaunchPages, AndTheirTable) {
  const ScopedVariable nothing("HEDDLE_COPY_BYTES", "0");
  for (const std::int64_t rows : {64, 3}) {
    const PagedCall paged(rows, DType::bf16);
    const AttentionTensors& tensors = paged.tensors;
    const AttentionPlan plan(tensors, paged.options);
    plan.run(tensors);
    const FakeLaunch& launch = last_launch();
    EXPECT_EQ(launch.params.pages.table.data, paged.table.data());
    EXPECT_EQ(launch.params.pages.table.stride[0], 5);
    EXPECT_EQ(launch.params.pages.table.stride[1], 1);
    EXPECT_EQ(launch.params.pages.table.pages, 7);
    EXPECT_EQ(launch.params.tensors.kv_len, 4 * rows + 1);
    for (const int tensor : {shared::kGatherK, shared::kGatherV}) {
      const ConstTensorView& view = tensor == shared::kGatherK ? tensors.k : tensors.v;
      if (rows == 64) {
        const FakeTensorMap& map = launch.maps[1 + tensor];
        ASSERT_EQ(map.rank, 5);
        EXPECT_EQ(map.address, reinterpret_cast<std::uintptr_t>(view.data) - 64 * 256);
        EXPECT_EQ(std::gcd(64, planned(plan).kv_block), map.box[1]);
        EXPECT_THAT(std::span(map.extents, 5), testing::ElementsAre(128, 64, 65, 2, 7));
      } else {
        EXPECT_EQ(launch.maps[1 + tensor].rank, 0);
        EXPECT_EQ(launch.params.pages.gathered[tensor].data, view.data);
        EXPECT_EQ(launch.params.pages.gathered[tensor].stride[0], view.strides[0]);
      }
    }
    EXPECT_EQ(launch.maps[0].rank, 5);
    if (rows == 64) continue;
    EXPECT_THAT(plan.explain(),
                testing::HasSubstr("the rows of k and v are gathered by threads, 16 bytes at a time, from their pages: "
                                   "they have 3 rows"));
  }
}

// A list's starts are uploaded with the plan if they are on the host, else each run's are read.
TEST_F(LaunchPages, InAList) {
  const ScopedVariable nothing("HEDDLE_COPY_BYTES", "0");
  for (const bool there : {false, true}) {
    PagedCall paged(64, DType::bf16);
    const Tensor list = Tensor::empty_on(kFirst, DType::i32, {9});
    const std::int32_t on_host[] = {1, 6, 7};
    const ConstTensorView starts(on_host, DType::i32, {3});
    const Tensor starts_there = Tensor::empty_on(kFirst, DType::i32, {3}),
                 lengths_there = Tensor::empty_on(kFirst, DType::i32, {2});
    paged.options.page_table = list;
    paged.options.page_starts = starts;
    if (there) {
      paged.options.page_starts = starts_there;
      paged.options.kv_lengths = lengths_there;
      paged.options.max_kv_len = 300;
    }
    const AttentionPlan plan(paged.tensors, paged.options);
    const Tensor workspace = Tensor::empty_on(kFirst, DType::u8, {plan.workspace_bytes() + 64});
    plan.run(paged.tensors, {.workspace = workspace.data()});
    const shared::PageTable& table = last_launch().params.pages.table;
    EXPECT_EQ(table.data, list.data());
    EXPECT_EQ(table.stride[0], 0);
    EXPECT_EQ(table.stride[1], 1);
    EXPECT_EQ(table.starts.entries, 9);
    EXPECT_EQ(table.starts.stride, 1);
    if (there) {
      EXPECT_EQ(table.starts.data, starts_there.data());
    } else {
      EXPECT_NE(table.starts.data, nullptr);
      EXPECT_NE(table.starts.data, on_host);
    }
  }
}

}  // namespace
}  // namespace heddle::cuda
