// The scalar interpreter against ops.def, operation by operation.
#include "expr/interpret.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <bit>
#include <cmath>
#include <limits>
#include <set>

#include "heddle/error.h"
#include "shared/philox.h"

namespace heddle::expr {
namespace {

using ::testing::HasSubstr;

constexpr std::int32_t kIntMin = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kIntMax = std::numeric_limits<std::int32_t>::max();
const double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kFloatMax = std::numeric_limits<float>::max();

std::string text(const Value& value) {
  if (const double* x = std::get_if<double>(&value)) return fmt::format("{}", *x);
  if (const std::int32_t* x = std::get_if<std::int32_t>(&value)) return fmt::format("{}i", *x);
  return std::get<bool>(value) ? "True" : "False";
}

/// NaN is NaN; zeros have a sign.
bool identical(const Value& x, const Value& y) {
  const double* dx = std::get_if<double>(&x);
  const double* dy = std::get_if<double>(&y);
  if (dx == nullptr || dy == nullptr) return x == y;
  if (std::isnan(*dx) || std::isnan(*dy)) return std::isnan(*dx) && std::isnan(*dy);
  return std::bit_cast<std::uint64_t>(*dx) == std::bit_cast<std::uint64_t>(*dy);
}

ExprType type_of(const Value& value) {
  return std::holds_alternative<double>(value)         ? ExprType::f32
         : std::holds_alternative<std::int32_t>(value) ? ExprType::i32
                                                       : ExprType::boolean;
}

struct Case {
  Op op;
  std::vector<Value> operands;
  Value expected;
};

std::vector<Case> integer_cases() {
  return {
      {Op::add, {kIntMax, 1}, kIntMin},
      {Op::add, {-5, 3}, -2},
      {Op::sub, {kIntMin, 1}, kIntMax},
      {Op::sub, {3, 5}, -2},
      {Op::mul, {1 << 30, 4}, 0},
      {Op::mul, {kIntMin, -1}, kIntMin},
      {Op::mul, {65537, 65537}, 131073},
      {Op::floor_div, {7, 0}, 0},
      {Op::floor_div, {kIntMin, -1}, kIntMin},
      {Op::mod, {7, 0}, 0},
      {Op::mod, {kIntMin, -1}, 0},
      {Op::neg, {kIntMin}, kIntMin},
      {Op::neg, {5}, -5},
      {Op::abs, {kIntMin}, kIntMin},
      {Op::abs, {-5}, 5},
      {Op::abs, {5}, 5},
      {Op::min, {-3, 2}, -3},
      {Op::max, {-3, 2}, 2},
      {Op::sign, {kIntMin}, -1},
      {Op::sign, {0}, 0},
      {Op::bit_and, {-4, 7}, 4},
      {Op::bit_or, {-4, 3}, -1},
      {Op::bit_xor, {-1, 5}, -6},
      {Op::bit_not, {kIntMin}, kIntMax},
      {Op::shift_left, {3, 31}, kIntMin},
      {Op::shift_left, {3, 32}, 0},
      {Op::shift_left, {3, -1}, 0},
      {Op::shift_left, {-1, 4}, -16},
      {Op::shift_right, {-5, 1}, -3},
      {Op::shift_right, {-5, 31}, -1},
      {Op::shift_right, {-5, 32}, -1},
      {Op::shift_right, {5, -1}, 0},
      {Op::shift_right, {kIntMin, kIntMin}, -1},
      {Op::lt, {kIntMin, kIntMax}, true},
      {Op::lt, {3, 3}, false},
      {Op::le, {3, 3}, true},
      {Op::le, {4, 3}, false},
      {Op::gt, {4, 3}, true},
      {Op::gt, {3, 3}, false},
      {Op::ge, {3, 3}, true},
      {Op::ge, {kIntMin, kIntMax}, false},
      {Op::eq, {3, 3}, true},
      {Op::eq, {3, 4}, false},
      {Op::ne, {3, 4}, true},
      {Op::ne, {3, 3}, false},
      {Op::to_f32, {7}, 7.0},
      {Op::to_f32, {kIntMin}, -2147483648.0},
      {Op::to_i32, {true}, 1},
      {Op::to_i32, {false}, 0},
      {Op::where, {true, 1, 2}, 1},
      {Op::where, {false, 1, 2}, 2},
  };
}

std::vector<Case> boolean_cases() {
  std::vector<Case> cases = {
      {Op::logical_not, {true}, false},
      {Op::logical_not, {false}, true},
      {Op::to_f32, {true}, 1.0},
      {Op::to_f32, {false}, 0.0},
      {Op::where, {true, true, false}, true},
      {Op::where, {false, true, false}, false},
  };
  for (const bool x : {false, true}) {
    for (const bool y : {false, true}) {
      cases.push_back({Op::logical_and, {x, y}, x && y});
      cases.push_back({Op::logical_or, {x, y}, x || y});
      cases.push_back({Op::logical_xor, {x, y}, x != y});
    }
  }
  return cases;
}

std::vector<Case> real_cases() {
  return {
      {Op::add, {kInf, -kInf}, kNan},
      {Op::add, {-0.0, 0.0}, 0.0},
      {Op::sub, {kInf, kInf}, kNan},
      {Op::sub, {1.0, 0.25}, 0.75},
      {Op::mul, {0.0, kInf}, kNan},
      {Op::mul, {-0.0, 3.0}, -0.0},
      {Op::div, {1.0, 0.0}, kInf},
      {Op::div, {1.0, -0.0}, -kInf},
      {Op::div, {0.0, 0.0}, kNan},
      {Op::div, {3.0, kInf}, 0.0},
      {Op::floor_div, {1.0, 0.0}, kInf},
      {Op::floor_div, {-1.0, 0.0}, -kInf},
      {Op::floor_div, {0.0, 0.0}, kNan},
      {Op::floor_div, {5.0, kInf}, 0.0},
      {Op::mod, {5.0, 0.0}, kNan},
      {Op::mod, {5.0, kInf}, 5.0},
      {Op::mod, {-5.0, kInf}, kInf},
      {Op::mod, {kInf, 3.0}, kNan},
      {Op::neg, {0.0}, -0.0},
      {Op::neg, {kInf}, -kInf},
      {Op::neg, {kNan}, kNan},
      {Op::abs, {-0.0}, 0.0},
      {Op::abs, {-kInf}, kInf},
      {Op::abs, {kNan}, kNan},
      {Op::min, {kNan, 1.0}, kNan},
      {Op::min, {1.0, kNan}, kNan},
      {Op::min, {-kInf, 1.0}, -kInf},
      {Op::min, {2.0, 1.0}, 1.0},
      {Op::max, {kNan, 1.0}, kNan},
      {Op::max, {1.0, kNan}, kNan},
      {Op::max, {kInf, 1.0}, kInf},
      {Op::max, {2.0, 1.0}, 2.0},
      {Op::lt, {kNan, 1.0}, false},
      {Op::lt, {-0.0, 0.0}, false},
      {Op::lt, {1.0, kInf}, true},
      {Op::le, {kNan, kNan}, false},
      {Op::le, {0.0, -0.0}, true},
      {Op::gt, {1.0, kNan}, false},
      {Op::gt, {kInf, 1.0}, true},
      {Op::ge, {kNan, 1.0}, false},
      {Op::ge, {-0.0, 0.0}, true},
      {Op::eq, {kNan, kNan}, false},
      {Op::eq, {0.0, -0.0}, true},
      {Op::ne, {kNan, kNan}, true},
      {Op::ne, {1.0, 1.0}, false},
      {Op::where, {true, kNan, 1.0}, kNan},
      {Op::where, {false, kNan, 1.0}, 1.0},
      {Op::to_i32, {2.9}, 2},
      {Op::to_i32, {-2.9}, -2},
      {Op::to_i32, {kNan}, 0},
      {Op::to_i32, {kInf}, kIntMax},
      {Op::to_i32, {-kInf}, kIntMin},
      {Op::to_i32, {2147483648.0}, kIntMax},
      {Op::to_i32, {-2147483648.0}, kIntMin},
      {Op::to_i32, {-2147483904.0}, kIntMin},
      {Op::to_i32, {2147483520.0}, 2147483520},
      {Op::floor, {-1.5}, -2.0},
      {Op::floor, {-0.0}, -0.0},
      {Op::floor, {-kInf}, -kInf},
      {Op::floor, {kNan}, kNan},
      {Op::ceil, {-1.5}, -1.0},
      {Op::ceil, {-0.5}, -0.0},
      {Op::ceil, {0.25}, 1.0},
      {Op::ceil, {kInf}, kInf},
      {Op::ceil, {kNan}, kNan},
      {Op::round, {0.5}, 0.0},
      {Op::round, {1.5}, 2.0},
      {Op::round, {2.5}, 2.0},
      {Op::round, {-0.5}, -0.0},
      {Op::round, {-3.5}, -4.0},
      {Op::round, {8388609.0}, 8388609.0},
      {Op::round, {-kInf}, -kInf},
      {Op::round, {kNan}, kNan},
      {Op::trunc, {1.75}, 1.0},
      {Op::trunc, {-1.75}, -1.0},
      {Op::trunc, {-0.75}, -0.0},
      {Op::trunc, {kInf}, kInf},
      {Op::trunc, {kNan}, kNan},
      {Op::sign, {1e-45}, 1.0},
      {Op::sign, {-kInf}, -1.0},
      {Op::sign, {0.0}, 0.0},
      {Op::sign, {-0.0}, -0.0},
      {Op::sign, {kNan}, kNan},
      {Op::isnan, {kNan}, true},
      {Op::isnan, {kInf}, false},
      {Op::isnan, {0.0}, false},
      {Op::isinf, {kInf}, true},
      {Op::isinf, {-kInf}, true},
      {Op::isinf, {kNan}, false},
      {Op::isinf, {1e30}, false},
  };
}

/// Infinities, zeros, NaN and poles of the functions.
std::vector<Case> function_cases() {
  std::vector<Case> cases = {
      {Op::sqrt, {-1.0}, kNan},       {Op::sqrt, {-0.0}, -0.0},       {Op::sqrt, {kInf}, kInf},
      {Op::sqrt, {2.25}, 1.5},        {Op::rsqrt, {0.0}, kInf},       {Op::rsqrt, {-0.0}, -kInf},
      {Op::rsqrt, {-1.0}, kNan},      {Op::rsqrt, {kInf}, 0.0},       {Op::rsqrt, {0.25}, 2.0},
      {Op::exp, {-kInf}, 0.0},        {Op::exp, {kInf}, kInf},        {Op::exp, {0.0}, 1.0},
      {Op::exp2, {-kInf}, 0.0},       {Op::exp2, {kInf}, kInf},       {Op::exp2, {-3.0}, 0.125},
      {Op::exp2, {-149.0}, 0x1p-149}, {Op::log, {0.0}, -kInf},        {Op::log, {-0.0}, -kInf},
      {Op::log, {-1.0}, kNan},        {Op::log, {kInf}, kInf},        {Op::log, {1.0}, 0.0},
      {Op::log2, {0.0}, -kInf},       {Op::log2, {-1.0}, kNan},       {Op::log2, {kInf}, kInf},
      {Op::log2, {0x1p-149}, -149.0}, {Op::tanh, {kInf}, 1.0},        {Op::tanh, {-kInf}, -1.0},
      {Op::tanh, {-0.0}, -0.0},       {Op::sigmoid, {kInf}, 1.0},     {Op::sigmoid, {-kInf}, 0.0},
      {Op::sigmoid, {0.0}, 0.5},      {Op::sin, {kInf}, kNan},        {Op::sin, {-0.0}, -0.0},
      {Op::cos, {-kInf}, kNan},       {Op::cos, {0.0}, 1.0},          {Op::erf, {kInf}, 1.0},
      {Op::erf, {-kInf}, -1.0},       {Op::erf, {-0.0}, -0.0},        {Op::pow, {kNan, 0.0}, 1.0},
      {Op::pow, {1.0, kNan}, 1.0},    {Op::pow, {0.0, 0.0}, 1.0},     {Op::pow, {-2.0, 0.5}, kNan},
      {Op::pow, {-2.0, 3.0}, -8.0},   {Op::pow, {-0.0, -1.0}, -kInf}, {Op::pow, {0.0, -2.0}, kInf},
      {Op::pow, {-1.0, kInf}, 1.0},   {Op::pow, {0.5, kInf}, 0.0},    {Op::pow, {-kInf, 3.0}, -kInf},
      {Op::pow, {2.0, kNan}, kNan},   {Op::expm1, {-kInf}, -1.0},     {Op::expm1, {kInf}, kInf},
      {Op::expm1, {-0.0}, -0.0},      {Op::log1p, {-1.0}, -kInf},     {Op::log1p, {-1.5}, kNan},
      {Op::log1p, {kInf}, kInf},      {Op::log1p, {-0.0}, -0.0},      {Op::tan, {kInf}, kNan},
      {Op::tan, {-0.0}, -0.0},        {Op::atan, {-0.0}, -0.0},       {Op::erfc, {kInf}, 0.0},
      {Op::erfc, {-kInf}, 2.0},       {Op::erfc, {0.0}, 1.0},
  };
  for (const Op op : {Op::sqrt, Op::rsqrt, Op::exp, Op::exp2, Op::log, Op::log2, Op::tanh, Op::sigmoid, Op::sin,
                      Op::cos, Op::erf, Op::erfc, Op::expm1, Op::log1p, Op::tan, Op::atan}) {
    cases.push_back({op, {kNan}, kNan});
  }
  return cases;
}

/// Where f32 and f64 differ: overflow, rounding.
std::vector<Case> rounding_cases(Precision precision) {
  const bool f32 = precision == Precision::f32;
  return {
      {Op::add, {16777216.0, 1.0}, f32 ? 16777216.0 : 16777217.0},
      {Op::sub, {-16777216.0, 1.0}, f32 ? -16777216.0 : -16777217.0},
      {Op::add, {kFloatMax, kFloatMax}, f32 ? kInf : 2 * kFloatMax},
      {Op::mul, {kFloatMax, -2.0}, f32 ? -kInf : -2 * kFloatMax},
      {Op::mul, {0x1p-149, 0.5}, f32 ? 0.0 : 0x1p-150},
      {Op::div, {1.0, 3.0}, f32 ? double{1.0F / 3.0F} : 1.0 / 3.0},
      {Op::sqrt, {2.0}, f32 ? double{1.41421354F} : 1.4142135623730951},
      // 0.1F * 10 rounds to 1 before the floor; the remainder is exact.
      {Op::floor_div, {1.0, double{0.1F}}, f32 ? 10.0 : 9.0},
      {Op::mod, {1.0, double{0.1F}}, 0x1.9999960000000p-4},
      {Op::to_f32, {16777217}, f32 ? 16777216.0 : 16777217.0},
      {Op::to_f32, {kIntMax}, f32 ? 2147483648.0 : 2147483647.0},
      {Op::exp, {89.0}, f32 ? kInf : 4.4896128191743455e+38},
      {Op::pow, {10.0, 39.0}, f32 ? kInf : 1e39},
      {Op::exp2, {128.0}, f32 ? kInf : 0x1p128},
      {Op::exp2, {-151.0}, f32 ? 0.0 : 0x1p-151},
  };
}

void expect_cases(const std::vector<Case>& cases, Precision precision, std::set<Op>& seen) {
  for (const Case& c : cases) {
    const Value got = apply(c.op, type_of(c.expected), c.operands, precision);
    std::string operands;
    for (const Value& x : c.operands) operands += " " + text(x);
    EXPECT_TRUE(identical(got, c.expected)) << info(c.op).name << operands << " gave " << text(got) << ", expected "
                                            << text(c.expected) << (precision == Precision::f32 ? " (f32)" : " (f64)");
    seen.insert(c.op);
  }
}

TEST(Interpret, EveryOperationAtItsEdges) {
  for (const Precision precision : {Precision::f32, Precision::f64}) {
    std::set<Op> seen;
    expect_cases(integer_cases(), precision, seen);
    expect_cases(boolean_cases(), precision, seen);
    expect_cases(real_cases(), precision, seen);
    expect_cases(function_cases(), precision, seen);
    expect_cases(rounding_cases(precision), precision, seen);
    for (int i = 0; i < kOpCount; ++i) {
      const auto op = static_cast<Op>(i);
      if (info(op).arity <= 0 || op == Op::random_uniform) continue;
      EXPECT_TRUE(seen.contains(op)) << info(op).name << " has no case";
    }
  }
}

TEST(Interpret, RandomUniformTakesItsArgumentsModulo2To32) {
  const std::array<Value, 5> operands = {-1, 2, 3, 4, kIntMin};
  EXPECT_EQ(std::get<double>(apply(Op::random_uniform, ExprType::f32, operands, Precision::f64)),
            double{shared::random_uniform(0xFFFFFFFFU, 2, 3, 4, 0x80000000U)});
}

Element at(std::int32_t q_idx, std::int32_t kv_idx, double score = 0) {
  Element element;
  element.score = score;
  element[Leaf::q_idx] = q_idx;
  element[Leaf::kv_idx] = kv_idx;
  return element;
}

Value evaluate(const Expr& e, const Bindings& bindings, const Element& element, Precision precision = Precision::f32) {
  return Interpreter(e, bindings, precision)(element);
}

TEST(Interpret, LeavesAreTheElements) {
  Element element;
  for (int i = 0; i < kLeafCount; ++i) element.index[static_cast<std::size_t>(i)] = 10 + i;
  element.score = 0.1;
  EXPECT_TRUE(identical(evaluate(leaf::score(), {}, element), double{0.1F}));
  EXPECT_TRUE(identical(evaluate(leaf::score(), {}, element, Precision::f64), 0.1));
  const std::vector<Expr> leaves = {leaf::b(),        leaf::h(),     leaf::q_idx(),  leaf::kv_idx(),  leaf::q_token(),
                                    leaf::kv_token(), leaf::q_len(), leaf::kv_len(), leaf::q_start(), leaf::kv_start()};
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(identical(evaluate(leaves[i], {}, element), 11 + static_cast<std::int32_t>(i))) << print(leaves[i]);
  }
}

TEST(Interpret, ConstantsAndParamsAreRoundedToThePrecision) {
  Bindings bindings;
  bindings.params = {{"x", 0.1}, {"n", 7}, {"on", true}};
  for (const Expr& e : {Expr(0.1), param("x", ExprType::f32)}) {
    EXPECT_TRUE(identical(evaluate(e, bindings, {}), double{0.1F}));
    EXPECT_TRUE(identical(evaluate(e, bindings, {}, Precision::f64), 0.1));
  }
  const Expr chosen = where(param("on", ExprType::boolean), param("n", ExprType::i32), 0);
  EXPECT_TRUE(identical(evaluate(chosen, bindings, {}), 7));
  EXPECT_EQ(print(bind_params(chosen, bindings)), "where(True, 7, 0)");
  EXPECT_EQ(print(bind_params(param("x", ExprType::f32) * leaf::score(), bindings)), "0.1 * score");
}

/// 2 by 3 elements, read through a transposed view.
struct Grid {
  std::array<float, 6> data = {0, 1, 2, 10, 11, 12};
  ConstTensorView view{data.data(), DType::f32, Dims{3, 2}, Dims{1, 3}};
};

TEST(Interpret, ReadsAreClampedAndAtIsFilled) {
  const Grid grid;
  Bindings bindings;
  bindings.captures["grid"] = grid.view;
  const Capture capture("grid", DType::f32, 2);
  const Expr read = capture(leaf::q_idx(), leaf::kv_idx());
  const Expr filled = capture.at({leaf::q_idx(), leaf::kv_idx()}, -5);
  struct Row {
    std::int32_t i, j;
    double read, filled;
  };
  for (const auto& [i, j, clamped, with_fill] : std::vector<Row>{{0, 0, 0, 0},
                                                                 {2, 1, 12, 12},
                                                                 {1, 0, 1, 1},
                                                                 {3, 1, 12, -5},
                                                                 {-1, 1, 10, -5},
                                                                 {1, 2, 11, -5},
                                                                 {1, -1, 1, -5},
                                                                 {kIntMin, kIntMax, 10, -5},
                                                                 {kIntMax, kIntMin, 2, -5}}) {
    EXPECT_TRUE(identical(evaluate(read, bindings, at(i, j)), clamped)) << i << " " << j;
    EXPECT_TRUE(identical(evaluate(filled, bindings, at(i, j)), with_fill)) << i << " " << j;
  }
}

TEST(Interpret, AnEmptyTensorReadsAsZero) {
  Bindings bindings;
  bindings.captures["none"] = ConstTensorView(nullptr, DType::i32, Dims{4, 0});
  const Capture capture("none", DType::i32, 2);
  EXPECT_TRUE(identical(evaluate(capture(1, leaf::q_idx()), bindings, {}), 0));
  EXPECT_TRUE(identical(evaluate(capture.at({1, leaf::q_idx()}, 9), bindings, {}), 9));
}

template <class T>
Value read_one(DType dtype, T stored, Precision precision = Precision::f32) {
  Bindings bindings;
  bindings.captures["x"] = ConstTensorView(&stored, dtype, Dims{});
  return evaluate(Capture("x", dtype, 0)(), bindings, {}, precision);
}

TEST(Interpret, EveryStorageTypeIsRead) {
  EXPECT_TRUE(identical(read_one(DType::f64, 0.1), double{0.1F}));
  EXPECT_TRUE(identical(read_one(DType::f64, 0.1, Precision::f64), 0.1));
  EXPECT_TRUE(identical(read_one(DType::f32, -2.5F), -2.5));
  EXPECT_TRUE(identical(read_one(DType::f16, f16{0x3E00}), 1.5));
  EXPECT_TRUE(identical(read_one(DType::bf16, bf16{0xC040}), -3.0));
  EXPECT_TRUE(identical(read_one(DType::e4m3, e4m3{0x3C}), 1.5));
  EXPECT_TRUE(identical(read_one(DType::e4m3, e4m3{0x7F}), kNan));
  EXPECT_TRUE(identical(read_one(DType::e5m2, e5m2{0x7C}), kInf));
  EXPECT_TRUE(identical(read_one(DType::i32, kIntMin), kIntMin));
  EXPECT_TRUE(identical(read_one(DType::i64, (std::int64_t{7} << 32) | 0xFFFFFFFE), -2));
  EXPECT_TRUE(identical(read_one(DType::i64, std::int64_t{(std::int64_t{1} << 53) + 1}), 1));
  EXPECT_TRUE(identical(read_one(DType::boolean, std::uint8_t{2}), true));
  EXPECT_TRUE(identical(read_one(DType::boolean, std::uint8_t{0}), false));
}

TEST(Interpret, ASharedNodeIsEvaluatedOnce) {
  Expr e = leaf::score();
  for (int i = 0; i < 60; ++i) e = e + e;
  EXPECT_TRUE(identical(evaluate(e, {}, at(0, 0, 1.0)), 0x1p60));
}

std::string refusal(const Expr& e, const Bindings& bindings) {
  try {
    const Interpreter interpreter(e, bindings, Precision::f32);
    return "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
}

TEST(Interpret, WrongBindingsAreRefused) {
  const Grid grid;
  Bindings bindings;
  bindings.captures["grid"] = grid.view;
  bindings.captures["lost"] = ConstTensorView(nullptr, DType::f32, Dims{2});
  bindings.params["n"] = 3;
  EXPECT_EQ(refusal(Capture("grid", DType::f32, 2)(0, 0), bindings), "accepted");
  EXPECT_EQ(refusal(Capture("other", DType::f32, 1)(0), bindings), "capture 'other' was given no tensor");
  EXPECT_EQ(refusal(Capture("grid", DType::f32, 1)(0), bindings),
            "capture 'grid' must be f32 of rank 1, but was given f32 of rank 2");
  EXPECT_EQ(refusal(Capture("grid", DType::f16, 2)(0, 0), bindings),
            "capture 'grid' must be f16 of rank 2, but was given f32 of rank 2");
  EXPECT_EQ(refusal(Capture("lost", DType::f32, 1)(0), bindings), "capture 'lost' was given a null pointer");
  EXPECT_EQ(refusal(param("m", ExprType::i32), bindings), "param 'm' was given no value");
  EXPECT_EQ(refusal(param("n", ExprType::f32), bindings), "param 'n' must be f32, but was given i32");
  EXPECT_EQ(refusal(Expr(), bindings), "an empty expression cannot be evaluated");
  EXPECT_THROW(bind_params(param("n", ExprType::f32), bindings), Error);
  EXPECT_THROW(bind_params(param("m", ExprType::i32), bindings), Error);
}

TEST(Interpret, ApplyRefusesWhatIsNoOperationOnValues) {
  const std::array<Value, 1> operands = {1.0};
  EXPECT_THROW(apply(Op::leaf, ExprType::f32, {}, Precision::f32), Error);
  EXPECT_THROW(apply(Op::read, ExprType::f32, operands, Precision::f32), Error);
  EXPECT_THROW(apply(Op::neg, ExprType::i32, operands, Precision::f32), Error);
}

}  // namespace
}  // namespace heddle::expr
