// Block masks whose rows are found elsewhere: what is asked, what is remembered.
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "expect_error.h"
#include "heddle/mods.h"
#include "mask/build.h"

namespace heddle::mask {
namespace {

/// A capture in a GPU's memory, which must not be read here.
Bindings on_gpu() {
  Bindings bindings;
  bindings.captures["doc"] = {reinterpret_cast<const void*>(std::uintptr_t{4096}), DType::i32, Dims{64}};
  bindings.captures["doc"].device = {DeviceKind::cuda, 0};
  bindings.params["window"] = 8;
  return bindings;
}

Expr documents_in_window() {
  return mods::documents(Capture("doc", DType::i32, 1)) &
         (leaf::q_idx() - leaf::kv_idx() <= param("window", ExprType::i32));
}

/// Two rows a matrix, of one partial run each.
Rows two_rows(std::span<const Matrix> matrices) {
  Rows rows;
  for (std::size_t i = 0; i < 2 * matrices.size(); ++i) {
    rows.runs.push_back({0, 2, RunKind::partial});
    rows.offset.push_back(static_cast<std::int64_t>(rows.runs.size()));
  }
  return rows;
}

TEST(RowsFoundElsewhere, AreAskedForOncePerMatrixThatTheMaskCanTellApart) {
  std::size_t asked = 0;
  const auto find = [&](const Expr& mask, const MaskShape&, BlockSize, std::span<const Matrix> matrices,
                        const Bindings&) {
    EXPECT_TRUE(symbols_of(mask).params.contains("window")) << "params stay params: " << print(mask);
    asked = matrices.size();
    return two_rows(matrices);
  };
  const MaskShape shape = MaskShape::uniform(3, 4, 64, 64);
  const BlockMask mask = build_elsewhere(documents_in_window(), shape, {32, 32}, on_gpu(), find);
  EXPECT_EQ(asked, 1U);
  EXPECT_TRUE(mask.shared_by_batch() && mask.shared_by_heads());
  EXPECT_EQ(mask.row(2, 3, 1)[0], (heddle::Run{0, 2, RunKind::partial}));
  build_elsewhere(documents_in_window() & (leaf::h() > 1), shape, {32, 32}, on_gpu(), find);
  EXPECT_EQ(asked, 4U);
}

TEST(RowsFoundElsewhere, RememberParamsAndNotWhatAGpuHolds) {
  const auto find = [](const Expr&, const MaskShape&, BlockSize, std::span<const Matrix> matrices, const Bindings&) {
    return two_rows(matrices);
  };
  const BlockMask mask =
      build_elsewhere(documents_in_window(), MaskShape::uniform(1, 1, 64, 64), {32, 32}, on_gpu(), find);
  const std::vector<std::int32_t> ids(64, 7);
  Bindings here = on_gpu();
  here.captures["doc"] = {ids.data(), DType::i32, Dims{64}};
  mask.check_current(here);
  here.params["window"] = 9;
  expect_error([&] { mask.check_current(here); }, ErrorCode::invalid_argument,
               testing::HasSubstr("param 'window' is 9"));
}

TEST(RowsFoundElsewhere, ReadsAreInsideForAllValuesOrNot) {
  const Capture doc("doc", DType::i32, 1);
  const MaskShape shape = MaskShape::uniform(1, 1, 64, 64);
  EXPECT_TRUE(reads_inside_for_all_values(documents_in_window(), shape, on_gpu()));
  EXPECT_FALSE(reads_inside_for_all_values(doc(doc(leaf::q_idx())) > 1, shape, on_gpu()));
  EXPECT_FALSE(reads_inside_for_all_values(doc(leaf::q_idx() + 1) > 1, shape, on_gpu()));
}

}  // namespace
}  // namespace heddle::mask
