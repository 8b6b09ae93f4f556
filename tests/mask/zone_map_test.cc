// Zone maps: bounds of any box contain every element of it, and are exact where that is promised.
#include "mask/zone_map.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "expr/interpret.h"

namespace heddle::mask {
namespace {

using expr::Precision;
using expr::Range;

constexpr std::array<DType, 15> kReadable{DType::f64,  DType::f32, DType::f16, DType::bf16, DType::e4m3,
                                          DType::e5m2, DType::i64, DType::i32, DType::i16,  DType::i8,
                                          DType::u64,  DType::u32, DType::u16, DType::u8,   DType::boolean};

class Random {
 public:
  explicit Random(std::uint64_t seed) : rng_(seed) {}
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(rng_() % static_cast<std::uint64_t>(bound));
  }

  /// Random bits make every kind of number, with few NaN among the wide types; `step` keeps neighbours alike.
  Tensor tensor(DType dtype, const Dims& shape) {
    Tensor result = Tensor::zeros(dtype, shape);
    auto* bytes = static_cast<std::uint8_t*>(result.data());
    const std::int64_t size = result.count() * size_of(dtype);
    for (std::int64_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(rng_());
    if (dtype == DType::boolean) {
      for (std::int64_t i = 0; i < size; ++i) bytes[i] = static_cast<std::uint8_t>(i / 50 % 2 == 0 ? 0 : below(3));
    }
    return result;
  }

 private:
  std::mt19937_64 rng_;
};

/// The interpreter's value at an index.
double value_at(const expr::Interpreter& read) {
  const expr::Value value = read(expr::Element{});
  return std::visit([](auto x) { return static_cast<double>(x); }, value);
}

/// The range over a box by reading all of it.
Range scanned(const ConstTensorView& view, Precision precision, const std::vector<Range>& box) {
  Range range{std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()};
  Dims index;
  for (const Range& axis : box) index.push_back(static_cast<std::int64_t>(axis.lo));
  while (true) {
    double x = get_element(view, index);
    if (size_of(view.dtype) == 8 && !is_floating(view.dtype)) {
      std::int64_t offset = 0;
      for (int axis = 0; axis < view.rank(); ++axis) offset += index[axis] * view.strides[axis];
      x = static_cast<std::int32_t>(static_cast<const std::int64_t*>(view.data)[offset]);
    }
    if (view.dtype == DType::u32) x = static_cast<std::int32_t>(static_cast<std::uint32_t>(x));
    if (view.dtype == DType::f64 && precision == Precision::f32) x = static_cast<float>(x);
    if (std::isnan(x)) {
      range.nan = true;
    } else {
      range.lo = std::min(range.lo, x);
      range.hi = std::max(range.hi, x);
    }
    int axis = view.rank() - 1;
    while (axis >= 0 && index[axis] == static_cast<std::int64_t>(box[static_cast<std::size_t>(axis)].hi)) {
      index[axis] = static_cast<std::int64_t>(box[static_cast<std::size_t>(axis)].lo);
      --axis;
    }
    if (axis < 0) return range;
    ++index[axis];
  }
}

bool covers(const Range& wide, const Range& exact) {
  return wide.lo <= exact.lo && exact.hi <= wide.hi && (wide.nan || !exact.nan);
}

Expr read_of(const ConstTensorView& view) {
  return Capture("x", view.dtype, view.rank()).read(std::vector<Expr>(static_cast<std::size_t>(view.rank()), Expr(0)));
}

struct Mapped {
  Mapped(const ConstTensorView& view_, Precision precision_)
      : view(view_), precision(precision_), map(read_of(view), bindings(), precision) {}
  Bindings bindings() const {
    Bindings bindings;
    bindings.captures["x"] = view;
    return bindings;
  }
  Range bounds(const std::vector<Range>& box) const { return map.bounds({"x", view.dtype, view.rank()}, box); }

  ConstTensorView view;
  Precision precision;
  ZoneMap map;
};

std::vector<Range> random_box(Random& random, const Dims& shape) {
  std::vector<Range> box;
  const std::int64_t kind = random.below(3);
  for (const std::int64_t extent : shape) {
    std::int64_t begin = random.below(extent), size = 1 + random.below(kind == 0 ? 8 : extent);
    if (kind == 2) begin &= ~std::int64_t{63};
    if (random.below(6) == 0) size = 1;
    if (random.below(6) == 0) begin = 0, size = extent;
    box.push_back({static_cast<double>(begin), static_cast<double>(std::min(extent, begin + size) - 1)});
  }
  return box;
}

TEST(ZoneMap, ReadsAnAxisOfOneElementOnce) {
  std::array<std::int32_t, 3> values = {4, -2, 9};
  const Dims shape = {std::int64_t{1} << 30, 3, std::int64_t{1} << 30};
  const Capture capture("x", DType::i32, 3);
  const Bindings bindings = {.captures = {{"x", ConstTensorView(values.data(), DType::i32, shape, {0, 1, 0})}},
                             .params = {}};
  const ZoneMap zones(capture(leaf::b(), leaf::h(), leaf::q_idx()), bindings, Precision::f32);
  const Range all = {0, static_cast<double>((std::int64_t{1} << 30) - 1), false};
  const auto bounds = [&](const Range& middle) {
    const std::array<Range, 3> box = {all, middle, all};
    return zones.bounds({"x", DType::i32, 3}, box);
  };
  EXPECT_EQ(bounds({0, 2, false}), (Range{-2, 9, false}));
  EXPECT_EQ(bounds({0, 1, false}), (Range{-2, 4, false}));
  EXPECT_EQ(bounds({2, 2, false}), Range::point(9));
}

TEST(ZoneMap, BoxesContainTheirElements) {
  const std::vector<Dims> shapes{{1},        {63},     {64},        {65},        {1000},       {3, 200},     {200, 3},
                                 {130, 150}, {64, 64}, {2, 3, 300}, {300, 2, 3}, {70, 5, 140}, {2, 2, 3, 90}};
  Random random(1);
  for (const DType dtype : kReadable) {
    for (const Dims& shape : shapes) {
      const Tensor tensor = random.tensor(dtype, shape);
      const Mapped mapped(tensor, random.below(2) == 0 ? Precision::f32 : Precision::f64);
      for (int i = 0; i < 30; ++i) {
        const std::vector<Range> box = random_box(random, shape);
        const Range found = mapped.bounds(box), exact = scanned(mapped.view, mapped.precision, box);
        EXPECT_TRUE(covers(found, exact)) << name(dtype) << " " << to_string(shape) << ": [" << found.lo << ", "
                                          << found.hi << "] is not around [" << exact.lo << ", " << exact.hi << "]";
        std::int64_t elements = 1;
        for (const Range& axis : box) elements *= static_cast<std::int64_t>(axis.hi - axis.lo) + 1;
        EXPECT_TRUE(elements > 64 || found == exact) << "a small box is exact";
      }
    }
  }
}

TEST(ZoneMap, RangesOfOneAxisAreExact) {
  Random random(2);
  for (const DType dtype : kReadable) {
    const Tensor line = random.tensor(dtype, {5000});
    const Mapped mapped(line, Precision::f32);
    for (int i = 0; i < 200; ++i) {
      const std::int64_t size = std::int64_t{1} << random.below(13), begin = random.below(5000) / size * size;
      const std::vector<Range> aligned{
          {static_cast<double>(begin), static_cast<double>(std::min<std::int64_t>(5000, begin + size) - 1)}};
      EXPECT_EQ(mapped.bounds(aligned), scanned(mapped.view, Precision::f32, aligned)) << name(dtype);
      const std::vector<Range> any = random_box(random, Dims{5000});
      EXPECT_EQ(mapped.bounds(any), scanned(mapped.view, Precision::f32, any)) << name(dtype);
    }
    // Along the longest axis of a tensor whose other axes stand still, wherever that axis is.
    const Dims shape{3, 700, 4, 2};
    const Tensor table = random.tensor(dtype, shape);
    const Mapped deep(table, Precision::f32);
    for (int i = 0; i < 50; ++i) {
      std::vector<Range> box = random_box(random, shape);
      box[0].hi = box[0].lo;
      box[2].hi = box[2].lo;
      box[3].hi = box[3].lo;
      EXPECT_EQ(deep.bounds(box), scanned(deep.view, Precision::f32, box)) << name(dtype);
    }
  }
}

TEST(ZoneMap, NotAnElementMoreThanTheRange) {
  // On a ramp every element too many, or too few, is a new bound.
  std::vector<std::int32_t> ramp(5000);
  for (std::size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<std::int32_t>(i);
  const Mapped mapped({ramp.data(), DType::i32, Dims{5000}}, Precision::f32);
  for (std::int32_t size = 1; size <= 4096; size *= 2) {
    for (const std::int32_t begin : {0, 1, 63, 64, 65, size / 2, size, 3 * size}) {
      for (std::int32_t end = begin + size - 1; end <= begin + size + 1 && end <= 5000; ++end) {
        if (end <= begin) continue;
        const Range range{static_cast<double>(begin), static_cast<double>(end - 1)};
        EXPECT_EQ(mapped.bounds({range}), range) << begin << " to " << end;
      }
    }
  }
}

TEST(ZoneMap, AlignedBlocksOfAMatrixAreExact) {
  Random random(3);
  const Tensor matrix = random.tensor(DType::i32, {1000, 1200});
  const Mapped mapped(matrix, Precision::f32);
  for (double r = 0; r < 1000; r += 128) {
    for (double c = 0; c < 1200; c += 128) {
      const std::vector<Range> box{{r, std::min(r + 127, 999.0)}, {c, std::min(c + 127, 1199.0)}};
      EXPECT_EQ(mapped.bounds(box), scanned(mapped.view, Precision::f32, box));
    }
  }
  const std::vector<Range> all{{0, 999}, {0, 1199}};
  EXPECT_EQ(mapped.bounds(all), scanned(mapped.view, Precision::f32, all));
}

TEST(ZoneMap, StridedReversedAndBroadcastViewsReadTheirOwnElements) {
  Random random(4);
  const Tensor whole = random.tensor(DType::i32, {300, 200});
  const auto* data = static_cast<const std::int32_t*>(whole.data());
  const std::vector<ConstTensorView> views{
      permute(ConstTensorView(whole), {1, 0}),
      {data + 299 * 200, DType::i32, Dims{300, 100}, Dims{-200, 2}},
      {data, DType::i32, Dims{300, 150}, Dims{0, 1}},
      {data, DType::i32, Dims{150, 300}, Dims{1, 0}},
  };
  for (const ConstTensorView& view : views) {
    const Mapped mapped(view, Precision::f32);
    for (int i = 0; i < 100; ++i) {
      const std::vector<Range> box = random_box(random, view.shape);
      EXPECT_TRUE(covers(mapped.bounds(box), scanned(view, Precision::f32, box)));
    }
  }
}

TEST(ZoneMap, ReadsWhatTheInterpreterReads) {
  Random random(5);
  for (const DType dtype : kReadable) {
    const Tensor line = random.tensor(dtype, {300});
    for (const Precision precision : {Precision::f32, Precision::f64}) {
      const Mapped mapped(line, precision);
      for (std::int32_t i = 0; i < 300; ++i) {
        const Expr read = Capture("x", dtype, 1)(i);
        const double x = value_at(expr::Interpreter(read, mapped.bindings(), precision));
        const Range found = mapped.bounds({Range::point(i)});
        EXPECT_TRUE(std::isnan(x) ? found.nan : found == Range::point(x)) << name(dtype) << " " << i << ": " << x;
      }
    }
  }
}

TEST(ZoneMap, NanIsAFlagBesideTheOthersBounds) {
  std::vector<float> values(200, 1.0F);
  values[70] = -2.0F;
  values[130] = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t i = 140; i < 200; ++i) values[i] = std::numeric_limits<float>::quiet_NaN();
  const Mapped mapped({values.data(), DType::f32, Dims{200}}, Precision::f32);
  EXPECT_EQ(mapped.bounds({{0, 127}}), (Range{-2, 1, false}));
  EXPECT_EQ(mapped.bounds({{0, 130}}), (Range{-2, 1, true}));
  EXPECT_EQ(mapped.bounds({{71, 131}}), (Range{1, 1, true}));
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(mapped.bounds({{140, 199}}), (Range{kInfinity, -kInfinity, true}));
}

TEST(ZoneMap, AnIndexPastTheEndCountsAsTheLast) {
  const std::vector<std::int32_t> values{5, 3, 9};
  const Mapped mapped({values.data(), DType::i32, Dims{3}}, Precision::f32);
  EXPECT_EQ(mapped.bounds({{-10, 100}}), (Range{3, 9, false}));
  EXPECT_EQ(mapped.bounds({{7, 8}}), Range::point(9));
}

TEST(ZoneMap, AnEmptyTensorIsAnyValue) {
  const Mapped integers({nullptr, DType::i64, Dims{0}}, Precision::f32);
  EXPECT_EQ(integers.bounds({{0, 0}}), Range::any(ExprType::i32));
  const Mapped flags({nullptr, DType::boolean, Dims{0}}, Precision::f32);
  EXPECT_EQ(flags.bounds({{0, 0}}), Range::any(ExprType::boolean));
}

TEST(ZoneMap, ScalarsAreTensorsOfNoAxis) {
  const double x = 0.1;
  const Mapped mapped({&x, DType::f64, Dims{}}, Precision::f32);
  EXPECT_EQ(mapped.bounds({}), Range::point(static_cast<double>(0.1F)));
}

TEST(ZoneMap, ThreadsMayAskAtOnce) {
  Random random(6);
  const Tensor line = random.tensor(DType::i32, {100000});
  const Mapped mapped(line, Precision::f32);
  const std::vector<Range> all{{0, 99999}};
  std::vector<Range> found(4);
  {
    std::vector<std::jthread> threads;
    for (Range& mine : found) threads.emplace_back([&] { mine = mapped.bounds(all); });
  }
  for (const Range& range : found) EXPECT_EQ(range, scanned(mapped.view, Precision::f32, all));
}

}  // namespace
}  // namespace heddle::mask
