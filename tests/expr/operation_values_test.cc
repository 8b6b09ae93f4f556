// Values of operations that come from elsewhere: quotients and remainders from Python, functions from mpmath.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "expr/differentiate.h"
#include "expr/interpret.h"

namespace heddle::expr {
namespace {

constexpr std::int32_t kIntMin = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kIntMax = std::numeric_limits<std::int32_t>::max();

struct Divisions {
  std::int32_t dividend;
  std::vector<std::array<std::int32_t, 3>> by;  // divisor, x // y, x % y
};

TEST(OperationValues, IntegerDivisionIsPythons) {
  const std::vector<Divisions> table = {
      {-7,
       {{-3, 2, -1},
        {-2, 3, -1},
        {-1, 7, 0},
        {1, -7, 0},
        {2, -4, 1},
        {3, -3, 2},
        {7, -1, 0},
        {kIntMin, 0, -7},
        {kIntMax, -1, 2147483640}}},
      {-6,
       {{-3, 2, 0},
        {-2, 3, 0},
        {-1, 6, 0},
        {1, -6, 0},
        {2, -3, 0},
        {3, -2, 0},
        {7, -1, 1},
        {kIntMin, 0, -6},
        {kIntMax, -1, 2147483641}}},
      {-1,
       {{-3, 0, -1},
        {-2, 0, -1},
        {-1, 1, 0},
        {1, -1, 0},
        {2, -1, 1},
        {3, -1, 2},
        {7, -1, 6},
        {kIntMin, 0, -1},
        {kIntMax, -1, 2147483646}}},
      {0,
       {{-3, 0, 0},
        {-2, 0, 0},
        {-1, 0, 0},
        {1, 0, 0},
        {2, 0, 0},
        {3, 0, 0},
        {7, 0, 0},
        {kIntMin, 0, 0},
        {kIntMax, 0, 0}}},
      {1,
       {{-3, -1, -2},
        {-2, -1, -1},
        {-1, -1, 0},
        {1, 1, 0},
        {2, 0, 1},
        {3, 0, 1},
        {7, 0, 1},
        {kIntMin, -1, -2147483647},
        {kIntMax, 0, 1}}},
      {6,
       {{-3, -2, 0},
        {-2, -3, 0},
        {-1, -6, 0},
        {1, 6, 0},
        {2, 3, 0},
        {3, 2, 0},
        {7, 0, 6},
        {kIntMin, -1, -2147483642},
        {kIntMax, 0, 6}}},
      {7,
       {{-3, -3, -2},
        {-2, -4, -1},
        {-1, -7, 0},
        {1, 7, 0},
        {2, 3, 1},
        {3, 2, 1},
        {7, 1, 0},
        {kIntMin, -1, -2147483641},
        {kIntMax, 0, 7}}},
      {kIntMin,
       {{-3, 715827882, -2},
        {-2, 1073741824, 0},
        {-1, kIntMin, 0},
        {1, kIntMin, 0},
        {2, -1073741824, 0},
        {3, -715827883, 1},
        {7, -306783379, 5},
        {kIntMin, 1, 0},
        {kIntMax, -2, 2147483646}}},
      {kIntMax,
       {{-3, -715827883, -2},
        {-2, -1073741824, -1},
        {-1, -2147483647, 0},
        {1, kIntMax, 0},
        {2, 1073741823, 1},
        {3, 715827882, 1},
        {7, 306783378, 1},
        {kIntMin, -1, -1},
        {kIntMax, 1, 0}}},
  };
  for (const auto& [x, rows] : table) {
    for (const auto& [y, quotient, remainder] : rows) {
      const std::array<Value, 2> operands = {x, y};
      EXPECT_EQ(std::get<std::int32_t>(apply(Op::floor_div, ExprType::i32, operands, Precision::f32)), quotient)
          << x << " // " << y;
      EXPECT_EQ(std::get<std::int32_t>(apply(Op::mod, ExprType::i32, operands, Precision::f32)), remainder)
          << x << " % " << y;
    }
  }
}

// By Python, whose results of << were taken modulo 2^32; of counts outside 0 to 31 what ops.def says.
TEST(OperationValues, BitsArePythons) {
  struct Row {
    std::int32_t x, y, both, either, differ, left, right;
  };
  const std::vector<Row> rows = {
      {0, 0, 0, 0, 0, 0, 0},
      {12, 10, 8, 14, 6, 12288, 0},
      {-12, 10, 0, -2, -2, -12288, -1},
      {-12, -10, -12, -10, 2, 0, -1},
      {12, -10, 4, -2, -6, 0, 0},
      {kIntMax, 1, 1, kIntMax, 2147483646, -2, 1073741823},
      {kIntMin, 1, 0, -2147483647, -2147483647, 0, -1073741824},
      {kIntMin, kIntMax, 0, -1, -1, 0, -1},
      {3, 31, 3, 31, 28, kIntMin, 0},
      {-3, 31, 29, -1, -30, kIntMin, -1},
      {3, 32, 0, 35, 35, 0, 0},
      {-3, 32, 32, -3, -35, 0, -1},
      {kIntMax, 33, 33, kIntMax, 2147483614, 0, 0},
      {-1, kIntMin, kIntMin, -1, kIntMax, 0, -1},
      {123456789, 7, 5, 123456791, 123456786, -1377400192, 964506},
  };
  for (const Row& row : rows) {
    const auto value = [&](Op op) {
      const std::array<Value, 2> operands = {row.x, row.y};
      return std::get<std::int32_t>(apply(op, ExprType::i32, operands, Precision::f32));
    };
    EXPECT_EQ(value(Op::bit_and), row.both) << row.x << " & " << row.y;
    EXPECT_EQ(value(Op::bit_or), row.either) << row.x << " | " << row.y;
    EXPECT_EQ(value(Op::bit_xor), row.differ) << row.x << " ^ " << row.y;
    EXPECT_EQ(value(Op::shift_left), row.left) << row.x << " << " << row.y;
    EXPECT_EQ(value(Op::shift_right), row.right) << row.x << " >> " << row.y;
    const std::array<Value, 1> alone = {row.x};
    EXPECT_EQ(std::get<std::int32_t>(apply(Op::bit_not, ExprType::i32, alone, Precision::f32)), -1 - row.x);
    EXPECT_EQ(std::get<std::int32_t>(apply(Op::sign, ExprType::i32, alone, Precision::f32)),
              row.x == 0 ? 0 : row.x / std::abs(static_cast<double>(row.x)));
  }
}

TEST(OperationValues, RealDivisionHasPythonsSigns) {
  const std::vector<std::pair<double, std::vector<std::array<double, 3>>>> table = {
      {-7.5, {{-2.0, 3.0, -1.5}, {-0.5, 15.0, -0.0}, {0.5, -15.0, 0.0}, {2.0, -4.0, 0.5}}},
      {-7.0, {{-2.0, 3.0, -1.0}, {-0.5, 14.0, -0.0}, {0.5, -14.0, 0.0}, {2.0, -4.0, 1.0}}},
      {-0.25, {{-2.0, 0.0, -0.25}, {-0.5, 0.0, -0.25}, {0.5, -1.0, 0.25}, {2.0, -1.0, 1.75}}},
      {0.0, {{-2.0, -0.0, -0.0}, {-0.5, -0.0, -0.0}, {0.5, 0.0, 0.0}, {2.0, 0.0, 0.0}}},
      {0.25, {{-2.0, -1.0, -1.75}, {-0.5, -1.0, -0.25}, {0.5, 0.0, 0.25}, {2.0, 0.0, 0.25}}},
      {7.0, {{-2.0, -4.0, -1.0}, {-0.5, -14.0, -0.0}, {0.5, 14.0, 0.0}, {2.0, 3.0, 1.0}}},
      {7.5, {{-2.0, -4.0, -0.5}, {-0.5, -15.0, -0.0}, {0.5, 15.0, 0.0}, {2.0, 3.0, 1.5}}},
  };
  for (const Precision precision : {Precision::f32, Precision::f64}) {
    for (const auto& [x, rows] : table) {
      for (const auto& [y, quotient, remainder] : rows) {
        const std::array<Value, 2> operands = {x, y};
        EXPECT_EQ(std::get<double>(apply(Op::floor_div, ExprType::f32, operands, precision)), quotient)
            << x << " // " << y;
        EXPECT_EQ(std::get<double>(apply(Op::mod, ExprType::f32, operands, precision)), remainder) << x << " % " << y;
      }
    }
  }
}

TEST(OperationValues, RealRemaindersHavePythonsSignsEverywhere) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  struct Row {
    double x, y, f32, f64;
  };
  // By Python, in f32 by exact fractions rounded once. Python raises an error where these are NaN.
  const std::vector<Row> rows = {
      {-1, kInf, kInf, kInf},
      {1, -kInf, -kInf, -kInf},
      {1, kInf, 1, 1},
      {-1, -kInf, -1, -1},
      {0, -kInf, -0.0, -0.0},
      {3e38F, 0.75F, 0.5, 0.5},
      {-0x1p100, 3, 2, 2},
      {0x1p100, -3, -2, -2},
      {0x1.fffffcp127, 0x1.8p-140, 0x1p-141, 0x1p-141},
      {-0x1.fffffcp127, 0x1.8p-140, 0x1p-140, 0x1p-140},
      {16777217.0F * 3, 5, 3, 3},
      {-1e-20F, 1, 1, 1},
      {-0x1p-60, 3, 3, 3},
      {1e-20F, -1, -1, -1},
      {-0x1p-149, 0x1p-149, 0.0, 0.0},
      {4, -2, -0.0, -0.0},
      {-4, 2, 0.0, 0.0},
      {-0.0, 2, 0.0, 0.0},
      {1, 0, NAN, NAN},
      {kInf, 2, NAN, NAN},
      {-kInf, kInf, NAN, NAN},
      {NAN, 2, NAN, NAN},
      {2, NAN, NAN, NAN},
  };
  for (const Row& row : rows) {
    for (const Precision precision : {Precision::f32, Precision::f64}) {
      const std::array<Value, 2> operands = {row.x, row.y};
      const double found = std::get<double>(apply(Op::mod, ExprType::f32, operands, precision));
      const double expected = precision == Precision::f32 ? row.f32 : row.f64;
      EXPECT_TRUE(std::isnan(expected) ? std::isnan(found) : found == expected)
          << row.x << " % " << row.y << ": " << found;
      if (expected != 0) continue;
      EXPECT_EQ(std::signbit(found), std::signbit(expected)) << row.x << " % " << row.y;
    }
  }
}

// Values by mpmath with 50 digits.
TEST(OperationValues, FunctionsAreRoundedOnce) {
  struct Row {
    Op op;
    std::vector<double> x;
    double exact;
  };
  const std::vector<Row> table = {
      {Op::exp, {1.0}, 2.7182818284590452354},
      {Op::exp, {-1.0}, 0.3678794411714423216},
      {Op::exp, {0.5}, 1.6487212707001281468},
      {Op::exp, {-87.25}, 1.2817592313147442053e-38},
      {Op::exp, {88.5}, 2.7230878250681116121e+38},
      {Op::exp, {-100.5}, 2.2563401359170363132e-44},
      {Op::exp2, {0.5}, 1.4142135623730950488},
      {Op::exp2, {-1.5}, 0.3535533905932737622},
      {Op::exp2, {127.75}, 2.8614222251786632759e+38},
      {Op::exp2, {-140.25}, 6.0331358993985222144e-43},
      {Op::log, {2.0}, 0.69314718055994530942},
      {Op::log, {0.5}, -0.69314718055994530942},
      {Op::log, {10.0}, 2.302585092994045684},
      {Op::log, {1.0000001192092896}, 1.1920928244535445709e-7},
      {Op::log, {1.0000000150474662e+30}, 69.077552804868836627},
      {Op::log2, {3.0}, 1.5849625007211561815},
      {Op::log2, {0.699999988079071}, -0.51457319739870857289},
      {Op::log2, {1.0000000031710769e-30}, -99.657842842045973596},
      {Op::tanh, {0.5}, 0.4621171572600097585},
      {Op::tanh, {-1.0}, -0.76159415595576488812},
      {Op::tanh, {9.999999747378752e-05}, 0.000099999997140454209618},
      {Op::tanh, {5.0}, 0.99990920426259513121},
      {Op::sigmoid, {0.5}, 0.62245933120185456464},
      {Op::sigmoid, {-1.0}, 0.26894142136999512075},
      {Op::sigmoid, {-20.0}, 2.0611536181902035814e-9},
      {Op::sigmoid, {10.0}, 0.99995460213129756561},
      {Op::rsqrt, {2.0}, 0.7071067811865475244},
      {Op::rsqrt, {3.0}, 0.57735026918962576451},
      {Op::rsqrt, {0.10000000149011612}, 3.1622776366075750184},
      {Op::sin, {1.0}, 0.84147098480789650665},
      {Op::sin, {-2.0}, -0.9092974268256816954},
      {Op::sin, {100.0}, -0.50636564110975879366},
      {Op::sin, {1000000.0}, -0.34999350217129295212},
      {Op::cos, {1.0}, 0.5403023058681397174},
      {Op::cos, {-2.0}, -0.416146836547142387},
      {Op::cos, {100.0}, 0.8623188722876839341},
      {Op::cos, {1000000.0}, 0.93675212753314478694},
      {Op::expm1, {0.5}, 0.64872127070012814685},
      {Op::expm1, {9.999999747378752e-05}, 0.0001000049976402057159},
      {Op::expm1, {-3.0}, -0.95021293163213605702},
      {Op::expm1, {9.999999682655225e-21}, 9.999999682655225389e-21},
      {Op::expm1, {60.25}, 1.4663665145685640327e+26},
      {Op::log1p, {0.5}, 0.40546510810816438198},
      {Op::log1p, {9.999999747378752e-05}, 0.000099994997807348447674},
      {Op::log1p, {-0.9990000128746033}, -6.9077681536682869525},
      {Op::log1p, {9.999999682655225e-21}, 9.9999996826552253889e-21},
      {Op::log1p, {1.0000000150474662e+30}, 69.077552804868836627},
      {Op::tan, {1.0}, 1.5574077246549022305},
      {Op::tan, {-2.0}, 2.1850398632615189916},
      {Op::tan, {100.0}, -0.58721391515692907668},
      {Op::tan, {1000000.0}, -0.37362445398759902917},
      {Op::tan, {9.999999747378752e-05}, 0.00009999999780712082576},
      {Op::atan, {1.0}, 0.78539816339744830962},
      {Op::atan, {-0.5}, -0.46364760900080611621},
      {Op::atan, {100.0}, 1.560796660108231381},
      {Op::atan, {9.999999747378752e-05}, 0.000099999997140454210284},
      {Op::atan, {1.0000000150474662e+30}, 1.5707963267948966192},
      {Op::erf, {0.5}, 0.52049987781304653768},
      {Op::erf, {-1.0}, -0.84270079294971486934},
      {Op::erf, {9.999999747378752e-05}, 0.00011283791348289935979},
      {Op::erf, {3.0}, 0.99997790950300141456},
      {Op::erfc, {0.5}, 0.47950012218695346232},
      {Op::erfc, {-1.0}, 1.8427007929497148693},
      {Op::erfc, {3.0}, 0.000022090496998585441373},
      {Op::erfc, {9.5}, 3.7692144856548799417e-41},
      {Op::pow, {2.0, 0.5}, 1.4142135623730950488},
      {Op::pow, {1.5, -3.25}, 0.26773392699550957984},
      {Op::pow, {10.0, -30.5}, 3.162277660168379332e-31},
      {Op::pow, {0.8999999761581421, 1000.0}, 1.7478249495597476633e-46},
  };
  for (const auto& [op, x, exact] : table) {
    const std::vector<Value> operands(x.begin(), x.end());
    EXPECT_EQ(std::get<double>(apply(op, ExprType::f32, operands, Precision::f32)), double{static_cast<float>(exact)})
        << info(op).name << " " << x[0];
    EXPECT_DOUBLE_EQ(std::get<double>(apply(op, ExprType::f32, operands, Precision::f64)), exact)
        << info(op).name << " " << x[0];
  }
}

// Values by mpmath with 30 digits.
TEST(OperationValues, ActivationsAreTheirFormulas) {
  struct Row {
    double x, softplus, gelu, gelu_tanh, silu;
  };
  const std::vector<Row> rows = {
      {-20.0, 2.0611536203143807032e-9, 0.0, 0.0, -4.1223072363804071629e-8},
      {-3.0, 0.048587351573742058759, -0.00404969409489028358, -0.0036373920817730188378, -0.14227761953270034264},
      {-0.5, 0.47407698418010668087, -0.15426876936299344818, -0.15428599017485607796, -0.18877033439907271768},
      {0.0, 0.69314718055994530942, 0.0, 0.0, 0.0},
      {0.25, 0.82593941987884356221, 0.14967658142073093106, 0.14967535070168500023, 0.14054412522144952601},
      {1.0, 1.313261687518222834, 0.84134474606854294859, 0.84119199060827670478, 0.73105857863000487925},
      {4.0, 4.0181499279178097404, 3.9998733150326675203, 3.9999297540518076273, 3.9280551601516337679},
      {30.0, 30.000000000000093576, 30.0, 30.0, 29.999999999997192713},
  };
  const Expr x = leaf::score();
  const auto near = [&](const Expr& e, double at, double exact) {
    Element element;
    element.score = at;
    EXPECT_NEAR(Interpreter(e, {}, Precision::f64).real(element), exact, 1e-15 * std::max(1.0, std::abs(exact)))
        << print(e) << " at " << at;
  };
  for (const Row& row : rows) {
    near(softplus(x), row.x, row.softplus);
    near(gelu(x), row.x, row.gelu);
    near(gelu_tanh(x), row.x, row.gelu_tanh);
    near(silu(x), row.x, row.silu);
    near(relu(x), row.x, std::max(row.x, 0.0));
  }
  near(softplus(x), 1000, 1000);
  near(softplus(x), -1000, 0);
  near(d_score(softplus(x), Precision::f64), 0, 0.5);
}

}  // namespace
}  // namespace heddle::expr
