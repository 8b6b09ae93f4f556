// The text of mods means what the interpreter computes. The host compiles it, with the interpreter's transcendentals in
// place of the device's, so results are equal bit for bit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/emit/host_program.h"
#include "backend/tile_runs.h"
#include "expr/random_expression.h"
#include "heddle/mods.h"

namespace heddle::cuda::emit {
namespace {

using expr::Element;
using expr::Leaf;
using expr::Precision;
using expr::Value;
using heddle::test::RandomExpressions;
using test::HostProgram;

constexpr std::int32_t kIntMax = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kIntMin = std::numeric_limits<std::int32_t>::min();

std::string text(const Value& value) {
  return std::visit([](auto x) { return fmt::format("{}", x); }, value);
}

/// The element of a batch that is not packed: a token's row follows from its position.
Element with_tokens(Element element) {
  element[Leaf::q_token] =
      static_cast<std::int32_t>(static_cast<std::int64_t>(element[Leaf::q_idx]) - element[Leaf::q_start]);
  element[Leaf::kv_token] = element[Leaf::kv_idx];
  return element;
}

/// The same number, zeros told apart; any NaN is any other.
bool same_value(const Value& x, const Value& y) {
  if (x.index() != y.index()) return false;
  const double* real = std::get_if<double>(&x);
  if (real == nullptr) return x == y;
  const double other = std::get<double>(y);
  return std::isnan(*real) ? std::isnan(other) : *real == other && std::signbit(*real) == std::signbit(other);
}

/// Mods with their values, compiled together and compared with the interpreter at elements.
class Comparison {
 public:
  int add(const Expr& mod, const Bindings& bindings) {
    const ModLayout layout = layout_of({mod});
    entries_.push_back({mod, &bindings, test::mod_values(layout, bindings), program_.add(mod, layout)});
    return entries_.back().number;
  }
  std::size_t size() const { return entries_.size(); }
  void compile() { program_.compile(); }
  /// ulp 0: equal, signs of zeros too.
  void expect_equal(std::size_t i, Element element, int ulp = 0) const {
    const Entry& entry = entries_[i];
    element = with_tokens(element);
    const expr::Interpreter interpreter(entry.mod, *entry.bindings, Precision::f32);
    const Value want = interpreter(element), got = program_.value(entry.number, entry.values, element);
    EXPECT_TRUE(ulp == 0 ? same_value(got, want) : cpu::test::close(got, want, ulp, Precision::f32))
        << print(entry.mod) << ": got " << text(got) << ", want " << text(want) << " at score " << element.score
        << ", q_idx " << element[Leaf::q_idx] << ", kv_idx " << element[Leaf::kv_idx];
  }

 private:
  struct Entry {
    Expr mod;
    const Bindings* bindings;
    shared::ModValues values;
    int number;
  };
  HostProgram program_;
  std::vector<Entry> entries_;
};

Element at(std::int32_t q_idx, std::int32_t kv_idx, double score = 0) {
  Element element;
  element.score = score;
  element[Leaf::b] = 1;
  element[Leaf::h] = 2;
  element[Leaf::q_idx] = q_idx;
  element[Leaf::kv_idx] = kv_idx;
  element[Leaf::q_len] = 50;
  element[Leaf::kv_len] = 60;
  element[Leaf::q_start] = 7;
  return element;
}

TEST(ExpressionValues, RandomExpressionsEqualTheInterpreter) {
  heddle::test::Vocabulary vocabulary;
  vocabulary.without = {expr::Op::sigmoid, expr::Op::pow};  // put together otherwise on the device: see below
  RandomExpressions random(40813, vocabulary);
  std::array<int, expr::kOpCount> seen{};
  Comparison comparison;
  while (comparison.size() < 500) {
    const Expr mod = random.draw(comparison.size() % 8 == 0 ? 40 : 14);
    if (symbols_of(mod).captures.size() > static_cast<std::size_t>(shared::kModCaptures)) continue;
    comparison.add(mod, random.bindings());
    for (const expr::Node* node : expr::post_order(mod)) ++seen[static_cast<std::size_t>(node->op)];
  }
  for (int op = 0; op < expr::kOpCount; ++op) {
    const bool left_out =
        std::count(vocabulary.without.begin(), vocabulary.without.end(), static_cast<expr::Op>(op)) > 0;
    EXPECT_GE(seen[static_cast<std::size_t>(op)], left_out ? 0 : 20) << expr::info(static_cast<expr::Op>(op)).name;
  }
  comparison.compile();
  for (std::size_t i = 0; i < comparison.size(); ++i) {
    for (int k = 0; k < 60; ++k) comparison.expect_equal(i, random.element());
    if (HasFailure()) return;
  }
}

TEST(ExpressionValues, SigmoidIsWithinItsBound) {
  Comparison comparison;
  const Bindings none;
  comparison.add(sigmoid(leaf::score()), none);
  comparison.compile();
  const int ulp = expr::info(expr::Op::sigmoid).ulp;
  for (double x = -120; x <= 120; x += 0.01171875) comparison.expect_equal(0, at(0, 0, static_cast<float>(x)), ulp);
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double x : {infinity, -infinity, std::nan(""), 0.0, -0.0, 3e38, -3e38, 1e-42}) {
    comparison.expect_equal(0, at(0, 0, static_cast<float>(x)), ulp);
  }
}

// The operands in bits: score, and a param for the exponent.
TEST(ExpressionValues, PowIsWithinItsBound) {
  const Tensor exponents = Tensor::empty(DType::f32, {4096});
  const Bindings bindings{.captures = {{"y", exponents}}, .params = {}};
  Comparison comparison;
  comparison.add(pow(leaf::score(), Capture("y", DType::f32, 1)(leaf::kv_idx())), bindings);
  comparison.compile();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> edges = {
      0.0F,         -0.0F,       1.0F,        -1.0F, kInfinity, -kInfinity, std::nanf(""),  2.0F,         -2.0F,
      3.0F,         -3.0F,       0.5F,        -0.5F, 1e-42F,    -1e-42F,    3e38F,          -3e38F,       16777215.0F,
      -16777215.0F, 16777216.0F, 33554432.0F, 2.5F,  -149.0F,   1.5e-45F,   0x1.fffffep-1F, 0x1.000002p0F};
  auto* y = static_cast<float*>(exponents.data());
  std::copy(edges.begin(), edges.end(), y);
  const auto edge_count = static_cast<std::int32_t>(edges.size());
  const int ulp = expr::info(expr::Op::pow).ulp;
  for (const float x : edges) {
    for (std::int32_t i = 0; i < edge_count; ++i) comparison.expect_equal(0, at(0, i, x), ulp);
  }
  // Any bits for x; y so that results spread over all exponents, or small whole numbers, or any bits.
  std::mt19937 random(3);
  for (int i = 0; i < 200000; ++i) {
    const auto bits = static_cast<std::uint32_t>(random());
    const float x = std::bit_cast<float>(i % 2 == 0 ? bits : (bits & 0x80FFFFFFU) + 0x3F000000U);
    const double spread = (static_cast<double>(random()) * 0x1p-32 - 0.5) * 310 / std::log2(std::fabs(x));
    y[0] = i % 3 == 0   ? static_cast<float>(spread)
           : i % 3 == 1 ? static_cast<float>(static_cast<int>(random() % 41) - 20)
                        : std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    comparison.expect_equal(0, at(0, 0, x), ulp);
    if (HasFailure()) return;
  }
}

// Divisors that are constants have texts of their own.
TEST(ExpressionValues, IntegerDivisions) {
  const std::vector<std::int32_t> numbers = {0,       1,       -1,          2,       -2,         3,       -3,
                                             7,       -7,      64,          100,     128,        1000003, -1000003,
                                             kIntMax, kIntMin, kIntMin + 1, 1 << 30, -(1 << 30), 49,      98};
  const Bindings none;
  Comparison comparison;
  for (const std::int32_t y : numbers) {
    comparison.add(expr::build(expr::Op::floor_div, std::array<Expr, 2>{leaf::q_idx(), Expr(y)}), none);
    comparison.add(expr::build(expr::Op::mod, std::array<Expr, 2>{leaf::q_idx(), Expr(y)}), none);
  }
  const std::size_t constants = comparison.size();
  comparison.add(floor_div(leaf::q_idx(), leaf::kv_idx()), none);
  comparison.add(leaf::q_idx() % leaf::kv_idx(), none);
  comparison.compile();
  for (const std::int32_t x : numbers) {
    for (std::size_t i = 0; i < constants; ++i) comparison.expect_equal(i, at(x, 5));
    for (const std::int32_t y : numbers) {
      comparison.expect_equal(constants, at(x, y));
      comparison.expect_equal(constants + 1, at(x, y));
    }
  }
}

/// Every bit pattern of a storage type.
Tensor all_numbers(DType dtype) {
  const std::int64_t width = size_of(dtype), count = std::int64_t{1} << (8 * width);
  Tensor tensor = Tensor::empty(dtype, {count});
  auto* bytes = static_cast<unsigned char*>(tensor.data());
  for (std::int64_t i = 0; i < count * width; ++i)
    bytes[i] = static_cast<unsigned char>(i / width >> (8 * (i % width)));
  return tensor;
}

TEST(ExpressionValues, EveryNumberOfTheSmallStorageTypes) {
  Comparison comparison;
  std::vector<Tensor> tensors;
  Bindings bindings;
  for (const DType dtype : {DType::f16, DType::bf16, DType::e4m3, DType::e5m2}) {
    tensors.push_back(all_numbers(dtype));
    const std::string capture(name(dtype));
    bindings.captures["x_" + capture] = tensors.back();
    comparison.add(Capture("x_" + capture, dtype, 1)(leaf::kv_idx()), bindings);
  }
  comparison.compile();
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::int32_t k = 0; k < tensors[i].count(); ++k) comparison.expect_equal(i, at(0, k));
    if (HasFailure()) return;
  }
}

TEST(ExpressionValues, ReadsOfEveryRankInsideAndOutside) {
  Comparison comparison;
  const std::int64_t shape[] = {2, 3, 4, 5};
  std::vector<Tensor> tensors;
  std::vector<Bindings> bindings(5);
  const std::vector<Expr> indices = {leaf::kv_idx() - leaf::q_idx(), leaf::q_idx(), leaf::b(), leaf::kv_idx()};
  for (int rank = 0; rank <= 4; ++rank) {
    const Tensor tensor = Tensor::empty(DType::f32, Dims(std::span(shape).first(static_cast<std::size_t>(rank))));
    for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = static_cast<float>(i + 1);
    tensors.push_back(tensor);
    ConstTensorView view = tensor;
    if (rank > 0) {  // the last axis backwards
      view.data = static_cast<const float*>(view.data) + view.shape[rank - 1] - 1;
      view.strides[rank - 1] = -1;
    }
    Bindings& here = bindings[static_cast<std::size_t>(rank)];
    here.captures["x"] = view;
    const Capture x("x", DType::f32, rank);
    const std::vector<Expr> given(indices.end() - rank, indices.end());
    comparison.add(x.read(given), here);
    comparison.add(x.at(given, leaf::score()), here);
    comparison.add(x.at(given, -5.0), here);
  }
  comparison.compile();
  for (std::size_t i = 0; i < comparison.size(); ++i) {
    for (const std::int32_t q : {0, 1, 2, 3, 4, -1, 1000, kIntMax, kIntMin}) {
      for (const std::int32_t kv : {0, 1, 2, 3, 4, 5, -1, kIntMax, kIntMin}) comparison.expect_equal(i, at(q, kv, 0.5));
    }
  }
}

// An address of nothing must not be read.
TEST(ExpressionValues, EmptyTensorsReadAsZero) {
  Bindings bindings;
  bindings.captures["none"] = ConstTensorView(nullptr, DType::i32, {4, 0});
  bindings.captures["flags"] = ConstTensorView(nullptr, DType::boolean, {0});
  const Capture none("none", DType::i32, 2), flags("flags", DType::boolean, 1);
  Comparison comparison;
  comparison.add(none(leaf::q_idx(), leaf::kv_idx()), bindings);
  comparison.add(none.at({leaf::q_idx(), leaf::kv_idx()}, 77), bindings);
  comparison.add(flags(leaf::kv_idx()), bindings);
  comparison.add(flags.at({leaf::kv_idx()}, leaf::q_idx() > 2), bindings);
  comparison.compile();
  for (std::size_t i = 0; i < comparison.size(); ++i) {
    for (const std::int32_t index : {0, 3, -1, 4000}) comparison.expect_equal(i, at(index, index));
  }
}

TEST(ExpressionValues, DrawsAreThoseOfPhilox) {
  const Bindings bindings{.captures = {}, .params = {{"seed", std::int32_t{-5}}}};
  const Expr seed = param("seed", ExprType::i32);
  Comparison comparison;
  comparison.add(random_uniform(seed, leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx()), bindings);
  comparison.add(random_uniform(leaf::kv_idx(), leaf::q_idx(), 3, leaf::kv_idx() - leaf::q_idx(), seed), bindings);
  comparison.add(mods::dropout(0.3, seed), bindings);
  comparison.compile();
  for (std::size_t i = 0; i < comparison.size(); ++i) {
    for (std::int32_t kv = 0; kv < 64; ++kv) comparison.expect_equal(i, at(11, kv));
    for (const std::int32_t kv : {kIntMax, kIntMin, -1, 100000}) comparison.expect_equal(i, at(kv, kv));
  }
}

}  // namespace
}  // namespace heddle::cuda::emit
