// Reads of captures over tiles: every storage type, stride and kind of index, at and past the edges of tensors whose
// neighbouring pages must not be touched.
#include <sys/mman.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tile_evaluator/tile_runs.h"
#include "heddle/error.h"

namespace heddle::cpu {
namespace {

using expr::Precision;
using test::GuardedCopy;
using test::OnTarget;
using test::Setting;

constexpr DType kReadable[] = {DType::f64,  DType::f32, DType::f16, DType::bf16, DType::e4m3,
                               DType::e5m2, DType::i64, DType::i32, DType::i16,  DType::i8,
                               DType::u64,  DType::u32, DType::u16, DType::u8,   DType::boolean};

/// Different elements, special values among the reals.
Tensor numbers(DType dtype, const Dims& shape) {
  const Tensor wide = Tensor::empty(DType::f64, shape);
  auto* data = static_cast<double*>(wide.data());
  for (std::int64_t i = 0; i < wide.count(); ++i) data[i] = static_cast<double>(i % 251) - 100;
  if (is_floating(dtype)) {
    data[1] = std::numeric_limits<double>::infinity();
    data[2] = std::numeric_limits<double>::quiet_NaN();
    data[3] = 1e-6;
  }
  return wide.to(dtype);
}

Setting tile(std::int64_t q_first, std::int64_t kv_first, int rows, int columns) {
  Setting setting;
  setting.at.sequence = {.q_len = 100, .kv_len = 100};
  setting.at.q_first = q_first;
  setting.at.kv_first = kv_first;
  setting.at.h = 1;
  setting.at.rows = rows;
  setting.at.columns = columns;
  setting.scores.assign(static_cast<std::size_t>(rows * columns), 0.5);
  return setting;
}

/// The tile against the scalar interpreter, element by element, exactly, on all targets and in both precisions.
void expect_as_interpreted(const Expr& e, const Bindings& bindings, const Setting& setting) {
  const TilePosition& at = setting.at;
  for (const Precision precision : {Precision::f32, Precision::f64}) {
    const expr::Interpreter interpreter(e, bindings, precision);
    for (const std::int64_t target : test::targets()) {
      const OnTarget on(target);
      const std::vector<expr::Value> values = test::run_tile(e, precision, bindings, setting);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const int r = static_cast<int>(i) / at.columns, c = static_cast<int>(i) % at.columns;
        const expr::Value want = interpreter(test::element_of(at, r, c, setting.scores[i]));
        ASSERT_TRUE(test::close(values[i], want, 0, precision))
            << print(e) << " at row " << r << ", column " << c << " of " << at.rows << " x " << at.columns << " on "
            << hwy::TargetName(target) << (precision == Precision::f32 ? ", f32" : ", f64");
      }
    }
  }
}

/// Reads `view` as rows along kv_idx and in other ways, in tiles inside it, at its edges and outside.
void expect_reads(const ConstTensorView& view) {
  const Capture bias("bias", view.dtype, 2);
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const Expr fill = view.dtype == DType::boolean ? (q == 7) : is_floating(view.dtype) ? to_f32(q) * 0.5 : q - 1000;
  const std::vector<Expr> reads = {bias(q, kv),
                                   bias(q, kv - q + 20),
                                   bias(kv, q),
                                   bias(q, kv - 1),
                                   bias(q - 1, kv),
                                   bias.at({q, kv}, fill),
                                   bias.at({q - 2, kv - 3}, fill),
                                   bias.at({q, kv - 1}, fill),
                                   bias((q * kv) % 23, kv),
                                   bias.at({kv, abs(q - kv)}, fill)};
  for (const bool at_end : {true, false}) {
    const GuardedCopy copy(view, at_end);
    const Bindings bindings{.captures = {{"bias", copy.view()}}, .params = {}};
    for (const Expr& e : reads) {
      expect_as_interpreted(e, bindings, tile(0, 0, 5, 37));
      expect_as_interpreted(e, bindings, tile(20, 25, 9, 16));
      expect_as_interpreted(e, bindings, tile(3, 1, 1, 1));
    }
  }
}

TEST(TileReads, EveryStorageType) {
  for (const DType dtype : kReadable) {
    SCOPED_TRACE(name(dtype));
    expect_reads(numbers(dtype, {23, 40}).view());
  }
}

TEST(TileReads, Strides) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i64}) {
    SCOPED_TRACE(name(dtype));
    const Tensor tensor = numbers(dtype, {40, 23});
    expect_reads(permute(ConstTensorView(tensor), {1, 0}));
    const Tensor wide = numbers(dtype, {23, 120});
    const std::int64_t size = size_of(dtype);
    // Every third element; backwards in both axes; one row for all.
    expect_reads(ConstTensorView(wide.data(), dtype, {23, 40}, {120, 3}));
    expect_reads(
        ConstTensorView(static_cast<std::byte*>(wide.data()) + (22 * 120 + 39) * size, dtype, {23, 40}, {-120, -1}));
    expect_reads(ConstTensorView(wide.data(), dtype, {23, 40}, {0, 1}));
    expect_reads(ConstTensorView(wide.data(), dtype, {1, 40}, {7777, 1}));
  }
}

TEST(TileReads, IndicesAtTheEndsOfI32) {
  const Capture table("table", DType::f32, 1);
  const Tensor data = numbers(DType::f32, {29});
  const GuardedCopy copy(data, true);
  const Bindings bindings{.captures = {{"table", copy.view()}}, .params = {{"far", std::int32_t{2147483600}}}};
  const Expr far = param("far", ExprType::i32);
  // The index wraps inside the tile.
  for (const Expr& index : {leaf::kv_idx() + far, leaf::kv_idx() - far, leaf::kv_idx() * far, leaf::q_idx() + far}) {
    expect_as_interpreted(table(index), bindings, tile(0, 20, 3, 40));
    expect_as_interpreted(table.at({index}, -1.5), bindings, tile(0, 20, 3, 40));
  }
}

TEST(TileReads, OffsetsBeyond32Bits) {
  // Three rows 4 GiB apart: address space that is mostly never touched.
  constexpr std::int64_t kRow = (std::int64_t{1} << 32) + 5;
  const std::size_t bytes = 2 * kRow + 64;
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space for 8 GiB";
  auto* flags = static_cast<std::uint8_t*>(memory);
  for (std::int64_t r = 0; r < 3; ++r) {
    for (std::int64_t c = 0; c < 64; ++c) flags[r * kRow + c] = (r * 5 + c * 3) % 7 < 3;
  }
  const Capture mask("mask", DType::boolean, 2);
  const Bindings bindings{.captures = {{"mask", ConstTensorView(memory, DType::boolean, {3, 64}, {kRow, 1})}},
                          .params = {}};
  expect_as_interpreted(mask(leaf::q_idx(), leaf::kv_idx()), bindings, tile(0, 10, 4, 60));
  expect_as_interpreted(mask(leaf::q_idx(), leaf::kv_idx() * leaf::q_idx()), bindings, tile(0, 10, 4, 60));
  expect_as_interpreted(mask.at({leaf::q_idx() - 1, 63 - leaf::kv_idx()}, true), bindings, tile(0, 10, 4, 60));
  expect_as_interpreted(mask(leaf::kv_idx() - 10, leaf::kv_idx()), bindings, tile(0, 10, 4, 60));
  munmap(memory, bytes);
}

TEST(TileReads, EmptyTensors) {
  const Bindings bindings{.captures = {{"none", ConstTensorView(nullptr, DType::f32, {0})},
                                       {"rows", ConstTensorView(nullptr, DType::i32, {4, 0})}},
                          .params = {}};
  const Capture none("none", DType::f32, 1), rows("rows", DType::i32, 2);
  expect_as_interpreted(none(leaf::kv_idx()), bindings, tile(0, 0, 3, 20));
  expect_as_interpreted(none.at({leaf::kv_idx()}, 2.5), bindings, tile(0, 0, 3, 20));
  expect_as_interpreted(none(leaf::h()) + leaf::score(), bindings, tile(0, 0, 3, 20));
  expect_as_interpreted(rows.at({leaf::q_idx(), leaf::kv_idx()}, leaf::q_idx()), bindings, tile(0, 0, 3, 20));
}

TEST(TileReads, ScalarsRowsColumnsAndDiagonals) {
  const Tensor reals = numbers(DType::f32, {60}), integers = numbers(DType::i32, {60});
  const Bindings bindings{.captures = {{"x", reals.view()}, {"i", integers.view()}}, .params = {}};
  const Capture x("x", DType::f32, 1), i("i", DType::i32, 1);
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx(), h = leaf::h();
  for (const Expr& e :
       {x(h), x(q), x(kv), x(kv - q + 30), x(i(kv - q + 30)), x.at({i(q)}, x(kv)), to_f32(i(h) + i(q))}) {
    expect_as_interpreted(leaf::score() * e, bindings, tile(5, 2, 300, 45));
  }
}

}  // namespace
}  // namespace heddle::cpu
