// The text of mods means what the interpreter computes: the cases, for whatever compiles and runs the text (Program:
// HostProgram, DeviceProgram).
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "backend/device_text/expression_text.h"
#include "expr/random_expression.h"
#include "expr/simplify.h"
#include "heddle/mods.h"
#include "shared/mod_values.h"
#include "tile_evaluator/tile_runs.h"

namespace heddle::device_text::test {

using expr::Element;
using expr::Leaf;
using expr::Op;
using expr::Precision;
using expr::Value;
using heddle::test::RandomExpressions;

constexpr std::int32_t kIntMax = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kIntMin = std::numeric_limits<std::int32_t>::min();

inline std::string text(const Value& value) {
  return std::visit([](auto x) { return fmt::format("{}", x); }, value);
}

/// Whether two numbers are equal, zeros told apart; any NaN equals any other.
inline bool same_value(const Value& x, const Value& y) {
  if (x.index() != y.index()) return false;
  const double* real = std::get_if<double>(&x);
  if (real == nullptr) return x == y;
  const double other = std::get<double>(y);
  return std::isnan(*real) ? std::isnan(other) : *real == other && std::signbit(*real) == std::signbit(other);
}

/// Mods compiled together and compared with the interpreter at elements.
template <class Program>
class Comparison {
 public:
  /// Number of the mod. `ulp` is how far a real result may be off, equal zeros being equal; -1: bits are equal.
  std::size_t add(const Expr& mod, const Bindings& bindings, int ulp = -1) {
    const ModLayout layout = layout_of({mod}, Program::kReals);
    entries_.push_back({mod, layout, &bindings, program_.add(mod, layout), ulp, {}});
    return entries_.size() - 1;
  }
  std::size_t size() const { return entries_.size(); }
  /// In a batch that is not packed, a token's row follows from its position.
  void at(std::size_t mod, Element element) {
    element[Leaf::q_token] =
        static_cast<std::int32_t>(static_cast<std::int64_t>(element[Leaf::q_idx]) - element[Leaf::q_start]);
    element[Leaf::kv_token] = element[Leaf::kv_idx];
    entries_[mod].elements.push_back(element);
  }
  void at_all(const Element& element) {
    for (std::size_t i = 0; i < size(); ++i) at(i, element);
  }
  /// Compiles, runs, and expects what the interpreter gives.
  void run() {
    program_.compile();
    for (const Entry& entry : entries_) {
      const std::vector<Value> got =
          program_.values(entry.number, program_.bind(entry.layout, *entry.bindings), entry.elements);
      const expr::Interpreter interpreter(entry.mod, *entry.bindings, Program::kReals);
      ASSERT_EQ(got.size(), entry.elements.size());
      for (std::size_t i = 0; i < got.size(); ++i) {
        const Element& element = entry.elements[i];
        const Value want = interpreter(element);
        ASSERT_TRUE(entry.ulp < 0 ? same_value(got[i], want)
                                  : cpu::test::close(got[i], want, entry.ulp, Program::kReals))
            << print(entry.mod) << ": got " << text(got[i]) << ", want " << text(want) << " at score " << element.score
            << ", b " << element[Leaf::b] << ", h " << element[Leaf::h] << ", q_idx " << element[Leaf::q_idx]
            << ", kv_idx " << element[Leaf::kv_idx] << "\n"
            << mod_text("mod", entry.mod, entry.layout, TakesScore::yes);
      }
    }
  }

 private:
  struct Entry {
    Expr mod;
    ModLayout layout;
    const Bindings* bindings;
    int number, ulp;
    std::vector<Element> elements;
  };
  Program program_;
  std::vector<Entry> entries_;
};

inline Element element_at(std::int32_t q_idx, std::int32_t kv_idx, double score = 0) {
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

/// Every bit pattern of a storage type.
inline Tensor all_numbers(DType dtype) {
  const std::int64_t width = size_of(dtype), count = std::int64_t{1} << (8 * width);
  Tensor tensor = Tensor::empty(dtype, {count});
  auto* bytes = static_cast<unsigned char*>(tensor.data());
  for (std::int64_t i = 0; i < count * width; ++i)
    bytes[i] = static_cast<unsigned char>(i / width >> (8 * (i % width)));
  return tensor;
}

/// The reals of a program, and their bits.
template <class Program>
using RealOf = std::conditional_t<Program::kReals == Precision::f64, double, float>;
template <class Real>
using BitsOf = std::conditional_t<sizeof(Real) == 8, std::uint64_t, std::uint32_t>;

/// Pairs of operands: all pairs of edges; then any bits, ordinary numbers, and pairs whose powers spread over all
/// exponents.
template <class Real>
std::vector<std::array<Real, 2>> operand_pairs(int count) {
  using Limits = std::numeric_limits<Real>;
  const Real infinity = Limits::infinity(), whole = std::ldexp(Real(1), Limits::digits);
  std::vector<Real> edges = {0.5F, 1.0F, 2.0F, 3.0F, infinity, whole, whole - 1, Limits::max(), Limits::denorm_min()};
  for (const Real x : std::vector(edges)) edges.push_back(-x);
  for (const double x : {0.0, -0.0, 2.5, -149.0, -1074.0, 1e6, 2147483648.0, -2147483649.0, 1e-42, -1e-42}) {
    edges.push_back(static_cast<Real>(x));
  }
  edges.insert(edges.end(), {Limits::quiet_NaN(), 2 * whole, Limits::min(), 1 - Limits::epsilon() / 2,
                             1 + Limits::epsilon(), Limits::min() / 8});
  std::vector<std::array<Real, 2>> pairs;
  for (const Real x : edges) {
    for (const Real y : edges) pairs.push_back({x, y});
  }
  std::mt19937_64 random(3);
  const auto any = [&] { return std::bit_cast<Real>(static_cast<BitsOf<Real>>(random())); };
  const auto unit = [&] { return static_cast<double>(random()) * 0x1p-64 - 0.5; };
  for (int i = 0; i < count; ++i) {
    const Real x = i % 4 == 0 ? any() : static_cast<Real>(unit() * (i % 4 == 1 ? 8 : 1.7 * Limits::max_exponent));
    const double spread = unit() * 2.4 * Limits::max_exponent / std::log2(std::abs(x));
    pairs.push_back({x, i % 3 == 0 ? any() : static_cast<Real>(i % 3 == 1 ? spread : std::round(unit() * 40))});
  }
  return pairs;
}

template <class Program>
class ModValues : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = Program::missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }
};
TYPED_TEST_SUITE_P(ModValues);

TYPED_TEST_P(ModValues, ExpressionsDrawnAtRandom) {
  // Put together on the device otherwise than by the interpreter: see EveryRealOperation.
  heddle::test::Vocabulary vocabulary;
  vocabulary.without = {Op::sigmoid, Op::pow};
  if (!TypeParam::kAsInterpreter) {
    vocabulary.without.insert(vocabulary.without.end(), {Op::min, Op::max});  // of two zeros either one
    for (int op = 0; op < expr::kOpCount; ++op) {
      if (expr::info(static_cast<Op>(op)).ulp > 0) vocabulary.without.push_back(static_cast<Op>(op));
    }
  }
  RandomExpressions random(40813, vocabulary);
  std::array<int, expr::kOpCount> seen{};
  Comparison<TypeParam> comparison;
  const auto seen_enough = [&](int op) {
    return seen[static_cast<std::size_t>(op)] >= 20 ||
           std::count(vocabulary.without.begin(), vocabulary.without.end(), static_cast<Op>(op)) > 0;
  };
  const auto all_seen_enough = [&] {
    for (int op = 0; op < expr::kOpCount; ++op) {
      if (!seen_enough(op)) return false;
    }
    return true;
  };
  while (comparison.size() < (TypeParam::kAsInterpreter ? 500 : 150) ||
         (comparison.size() < 500 && !all_seen_enough())) {
    const Expr mod = random.draw(comparison.size() % 8 == 0 ? 40 : 14);
    if (symbols_of(mod).captures.size() > static_cast<std::size_t>(shared::kModCaptures)) continue;
    const std::size_t number = comparison.add(mod, random.bindings());
    for (int k = 0; k < 60; ++k) comparison.at(number, random.element());
    for (const expr::Node* node : expr::post_order(mod)) ++seen[static_cast<std::size_t>(node->op)];
  }
  for (int op = 0; op < expr::kOpCount; ++op) {
    EXPECT_TRUE(seen_enough(op)) << expr::info(static_cast<Op>(op)).name << " " << seen[static_cast<std::size_t>(op)];
  }
  comparison.run();
}

TYPED_TEST_P(ModValues, EveryRealOperation) {
  using Real = RealOf<TypeParam>;
  constexpr DType kReals = sizeof(Real) == 8 ? DType::f64 : DType::f32;
  const std::vector<std::array<Real, 2>> pairs = operand_pairs<Real>(TypeParam::kAsInterpreter ? 20000 : 200000);
  const Tensor seconds = Tensor::empty(kReals, {static_cast<std::int64_t>(pairs.size())});
  const Bindings bindings{.captures = {{"y", seconds}}, .params = {}};
  const Expr y = Capture("y", kReals, 1)(leaf::kv_idx());
  Comparison<TypeParam> comparison;
  for (int i = 0; i < expr::kOpCount; ++i) {
    const expr::OpInfo& info = expr::info(static_cast<Op>(i));
    const bool of_reals =
        info.kind == expr::Kind::num || info.kind == expr::Kind::real || info.kind == expr::Kind::test;
    if (!of_reals || info.arity < 1) continue;
    const std::vector<Expr> operands = info.arity == 1 ? std::vector{leaf::score()} : std::vector{leaf::score(), y};
    comparison.add(expr::build(static_cast<Op>(i), operands), bindings, info.ulp);
  }
  EXPECT_GT(comparison.size(), 20U);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    static_cast<Real*>(seconds.data())[i] = pairs[i][1];
    comparison.at_all(element_at(0, static_cast<std::int32_t>(i), pairs[i][0]));
  }
  comparison.run();
}

// Divisors that are constants have texts of their own.
TYPED_TEST_P(ModValues, IntegerDivisions) {
  const std::vector<std::int32_t> numbers = {0,       1,       -1,          2,       -2,         3,       -3,
                                             7,       -7,      64,          100,     128,        1000003, -1000003,
                                             kIntMax, kIntMin, kIntMin + 1, 1 << 30, -(1 << 30), 49,      98};
  const Bindings none;
  Comparison<TypeParam> comparison;
  for (const std::int32_t y : numbers) {
    comparison.add(expr::build(Op::floor_div, std::array<Expr, 2>{leaf::q_idx(), Expr(y)}), none);
    comparison.add(expr::build(Op::mod, std::array<Expr, 2>{leaf::q_idx(), Expr(y)}), none);
  }
  comparison.add(floor_div(leaf::q_idx(), leaf::kv_idx()), none);
  comparison.add(leaf::q_idx() % leaf::kv_idx(), none);
  for (const std::int32_t x : numbers) {
    for (const std::int32_t y : numbers) comparison.at_all(element_at(x, y));
  }
  comparison.run();
}

TYPED_TEST_P(ModValues, Bits) {
  const std::vector<std::int32_t> numbers = {0,  1,  -1, 2,   -2,  5,   -7,      15,      16,          30,
                                             31, 32, 33, -31, -32, 100, kIntMax, kIntMin, -1000000007, 0x55555555};
  const Expr x = leaf::q_idx(), y = leaf::kv_idx();
  const Bindings none;
  Comparison<TypeParam> comparison;
  for (const Expr& e : {x & y, x | y, x ^ y, ~x, x << y, x >> y, sign(x), (x << 7) ^ (x >> 3), x & 255, y >> 40}) {
    comparison.add(e, none);
    comparison.add(expr::simplify(e, Precision::f32), none);
  }
  for (const std::int32_t i : numbers) {
    for (const std::int32_t j : numbers) comparison.at_all(element_at(i, j));
  }
  comparison.run();
}

// CUDA 13.0 loses the sign of an operand where it joins two minima into one instruction.
TYPED_TEST_P(ModValues, LeastAndMostOfThreeWithSigns) {
  const Bindings none;
  Comparison<TypeParam> comparison;
  const Expr x = leaf::q_idx(), y = leaf::kv_idx(), z = leaf::kv_len() - 3;
  const Expr three[] = {x, y, z};
  for (int signs = 0; signs < 8; ++signs) {
    const auto of = [&](int i) { return (signs >> i & 1) != 0 ? -three[i] : three[i]; };
    comparison.add(min(min(of(0), of(1)), of(2)), none);
    comparison.add(max(max(of(0), of(1)), of(2)), none);
    comparison.add(max(min(of(0), of(1)), of(2)), none);
    comparison.add(min(abs(of(0)), min(of(1), 0 - of(2))), none);
    comparison.add(max(abs(of(0)), max(of(1) * -1, of(2))), none);
  }
  for (const std::int32_t i : {0, 1, 7, 57, 90, -1, -60}) {
    for (const std::int32_t j : {0, 2, 7, 56, 80, -3, -70}) comparison.at_all(element_at(i, j));
  }
  comparison.run();
}

TYPED_TEST_P(ModValues, EveryNumberOfTheSmallStorageTypes) {
  Comparison<TypeParam> comparison;
  std::vector<Tensor> tensors;
  Bindings bindings;
  for (const DType dtype :
       {DType::f16, DType::bf16, DType::e4m3, DType::e5m2, DType::i16, DType::u16, DType::i8, DType::u8}) {
    tensors.push_back(all_numbers(dtype));
    const std::string capture = fmt::format("x_{}", name(dtype));
    bindings.captures[capture] = tensors.back();
    const std::size_t number = comparison.add(Capture(capture, dtype, 1)(leaf::kv_idx()), bindings);
    for (std::int32_t k = 0; k < tensors.back().count(); ++k) comparison.at(number, element_at(0, k));
  }
  comparison.run();
}

TYPED_TEST_P(ModValues, ReadsOfEveryRankInsideAndOutside) {
  Comparison<TypeParam> comparison;
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
  for (const std::int32_t q : {0, 1, 2, 3, 4, -1, 1000, kIntMax, kIntMin}) {
    for (const std::int32_t kv : {0, 1, 2, 3, 4, 5, -1, kIntMax, kIntMin}) comparison.at_all(element_at(q, kv, 0.5));
  }
  comparison.run();
}

// The low 32 bits of what is wide, with and without a sign.
TYPED_TEST_P(ModValues, WideIntegers) {
  const std::vector<std::uint64_t> words = {0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x100000000, 0x1FFFFFFFE, ~0ULL};
  const std::vector<std::uint32_t> halves(words.begin(), words.end());
  const Dims shape{static_cast<std::int64_t>(words.size())};
  Bindings bindings;
  Comparison<TypeParam> comparison;
  for (const DType dtype : {DType::i64, DType::u64, DType::i32, DType::u32}) {
    const std::string capture(name(dtype) == "i32" ? "x32" : name(dtype) == "u32" ? "y32" : name(dtype));
    const void* data = size_of(dtype) == 8 ? static_cast<const void*>(words.data()) : halves.data();
    bindings.captures[capture] = ConstTensorView(data, dtype, shape);
    comparison.add(Capture(capture, dtype, 1)(leaf::kv_idx()), bindings);
    comparison.add(Capture(capture, dtype, 1).at({leaf::kv_idx()}, -9), bindings);
  }
  for (std::int32_t k = -1; k <= shape[0]; ++k) comparison.at_all(element_at(0, k));
  comparison.run();
}

// An address of nothing must not be read.
TYPED_TEST_P(ModValues, EmptyTensorsReadAsZero) {
  Bindings bindings;
  bindings.captures["none"] = ConstTensorView(nullptr, DType::i32, {4, 0});
  bindings.captures["flags"] = ConstTensorView(nullptr, DType::boolean, {0});
  const Capture none("none", DType::i32, 2), flags("flags", DType::boolean, 1);
  Comparison<TypeParam> comparison;
  comparison.add(none(leaf::q_idx(), leaf::kv_idx()), bindings);
  comparison.add(none.at({leaf::q_idx(), leaf::kv_idx()}, 77), bindings);
  comparison.add(flags(leaf::kv_idx()), bindings);
  comparison.add(flags.at({leaf::kv_idx()}, leaf::q_idx() > 2), bindings);
  for (const std::int32_t index : {0, 3, -1, 4000}) comparison.at_all(element_at(index, index));
  comparison.run();
}

TYPED_TEST_P(ModValues, DrawsAreThoseOfPhilox) {
  const Bindings bindings{.captures = {}, .params = {{"seed", std::int32_t{-5}}}};
  const Expr seed = param("seed", ExprType::i32);
  Comparison<TypeParam> comparison;
  comparison.add(random_uniform(seed, leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx()), bindings);
  comparison.add(random_uniform(leaf::kv_idx(), leaf::q_idx(), 3, leaf::kv_idx() - leaf::q_idx(), seed), bindings);
  comparison.add(mods::dropout(0.3, seed), bindings);
  for (std::int32_t kv = 0; kv < 64; ++kv) comparison.at_all(element_at(11, kv));
  for (const std::int32_t kv : {kIntMax, kIntMin, -1, 100000}) comparison.at_all(element_at(kv, kv));
  comparison.run();
}

// Numbers that f32 does not have: of f64 all digits arrive.
TYPED_TEST_P(ModValues, ParamsConstantsAndIntegersAreReals) {
  const std::vector<double> numbers = {0.1, -1e300, 5e-324, 1e-300, 0x1.fffffffffffffp1023};
  const Tensor wide = Tensor::empty(DType::f64, {std::ssize(numbers)});
  std::copy(numbers.begin(), numbers.end(), static_cast<double*>(wide.data()));
  std::vector<Bindings> bindings;
  for (const double x : numbers) bindings.push_back({.captures = {{"wide", wide}}, .params = {{"x", x}, {"n", 7}}});
  Comparison<TypeParam> comparison;
  const Expr x = param("x", ExprType::f32), n = param("n", ExprType::i32), read = Capture("wide", DType::f64, 1)(n - 5);
  for (const Bindings& own : bindings) {
    for (const Expr& e : {x, x * 0.1 + leaf::score(), to_f32(leaf::q_idx()) / 3.0, to_f32(leaf::q_idx() > 4) + x, read,
                          Capture("wide", DType::f64, 1).at({leaf::kv_idx()}, x), to_f32(to_i32(x) + n)}) {
      comparison.add(e, own);
    }
  }
  for (const std::int32_t i : {0, 1, 5, kIntMax, kIntMin, 16777217}) comparison.at_all(element_at(i, i, 0.3F));
  comparison.run();
}

REGISTER_TYPED_TEST_SUITE_P(ModValues, ParamsConstantsAndIntegersAreReals, ExpressionsDrawnAtRandom, EveryRealOperation,
                            IntegerDivisions, Bits, LeastAndMostOfThreeWithSigns, EveryNumberOfTheSmallStorageTypes,
                            WideIntegers, ReadsOfEveryRankInsideAndOutside, EmptyTensorsReadAsZero,
                            DrawsAreThoseOfPhilox);

}  // namespace heddle::device_text::test
