// Tiles where a mistake would hide from random expressions: draws, comparisons that wrap, divisions, counts, long tiles
// and wrong use.
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tile_evaluator/tile_runs.h"
#include "heddle/error.h"
#include "heddle/mods.h"
#include "shared/philox.h"

namespace heddle::cpu {
namespace {

using expr::Precision;
using test::OnTarget;
using test::Setting;

constexpr std::int32_t kIntMax = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kIntMin = std::numeric_limits<std::int32_t>::min();

Setting tile(const Sequence& sequence, std::int64_t q_first, std::int64_t kv_first, int rows, int columns) {
  Setting setting;
  setting.at = {
      .b = 2, .h = 3, .sequence = sequence, .q_first = q_first, .kv_first = kv_first, .rows = rows, .columns = columns};
  setting.scores.assign(static_cast<std::size_t>(rows * columns), 0.5);
  return setting;
}
Setting tile(int rows, int columns) { return tile({.q_len = 1000, .kv_len = 1000}, 3, 5, rows, columns); }

void expect_as_interpreted(const Expr& e, const Bindings& bindings, const Setting& setting) {
  for (const Precision precision : {Precision::f32, Precision::f64}) {
    const expr::Interpreter interpreter(e, bindings, precision);
    for (const std::int64_t target : test::targets()) {
      const OnTarget on(target);
      const std::vector<expr::Value> values = test::run_tile(e, precision, bindings, setting);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const int r = static_cast<int>(i) / setting.at.columns, c = static_cast<int>(i) % setting.at.columns;
        const expr::Value want = interpreter(test::element_of(setting.at, r, c, setting.scores[i]));
        ASSERT_TRUE(test::close(values[i], want, 0, precision))
            << print(e) << " at row " << r << ", column " << c << " on " << hwy::TargetName(target)
            << (precision == Precision::f32 ? ", f32" : ", f64");
      }
    }
  }
}

TEST(TileCases, DrawsAreThoseOfPhilox) {
  const Expr seed = param("seed", ExprType::i32);
  const Expr draw = random_uniform(seed, leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx());
  const Bindings bindings{.captures = {}, .params = {{"seed", std::int32_t{-5}}}};
  for (const int columns : {1, 2, 15, 16, 17, 64, 100, 128}) {
    for (const std::int64_t kv_first : {0, 1, 8, 15, 16, 1000}) {
      const Setting setting = tile({.q_len = 50, .kv_len = 2000, .q_start = 7}, 11, kv_first, 3, columns);
      expect_as_interpreted(draw, bindings, setting);
    }
  }
  // One value by hand: b 2, h 3, q_idx 7 + 11, kv_idx 9.
  const std::vector<expr::Value> one =
      test::run_tile(draw, Precision::f32, bindings, tile({.q_len = 50, .kv_len = 50, .q_start = 7}, 11, 9, 1, 1));
  EXPECT_EQ(std::get<double>(one[0]), double{shared::random_uniform(static_cast<unsigned>(-5), 2, 3, 18, 9)});
}

TEST(TileCases, DrawsWithOtherArguments) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx(), h = leaf::h();
  const Bindings bindings{.captures = {}, .params = {{"far", std::int32_t{kIntMax - 20}}}};
  const Expr far = param("far", ExprType::i32);
  for (const Expr& e :
       {random_uniform(q, 1, h, q * 3, kv + far),         // wraps to negative columns, a seed a row
        random_uniform(1, q, 2, h, kv + far + far + 40),  // and through 2^32
        random_uniform(1, 2, h, kv, q), random_uniform(kv, 2, h, q, kv), random_uniform(1, 2, 3, q, kv * 2),
        random_uniform(1, 2, 3, 4, 5), random_uniform(1, 2, 3, q - kv, kv - q)}) {
    expect_as_interpreted(e, bindings, tile(5, 70));
  }
}

TEST(TileCases, DistancesNearTheEndsOfI32) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx(), offset = param("offset", ExprType::i32);
  const std::vector<Expr> masks = {kv + offset <= q, kv <= q + offset,
                                   kv +
                                       offset<q + offset, kv - offset >= q, kv + offset == q, kv + offset != q + offset,
                                              q - kv<offset, abs(q - kv) <= offset, kv * 3 + offset> q * 3, kv + offset>
                                           q +
                                       1,
                                   -kv >= offset - q, to_f32(kv + offset) <= to_f32(q)};
  for (const std::int32_t value : {0, 5, kIntMax - 40, kIntMax, kIntMin, kIntMin + 30, -1, 1 << 30}) {
    const Bindings bindings{.captures = {}, .params = {{"offset", value}}};
    for (const Expr& mask : masks) {
      expect_as_interpreted(mask, bindings, tile({.q_len = 60, .kv_len = 60, .q_start = 2}, 10, 0, 40, 50));
      expect_as_interpreted(where(mask, leaf::score(), to_f32(q)), bindings,
                            tile({.q_len = kIntMax, .kv_len = kIntMax}, kIntMax - 70, kIntMax - 60, 40, 50));
    }
  }
}

TEST(TileCases, IntegerDivisions) {
  // 49 times the double nearest to 1/49 is less than 1; 98 and 103 are like it.
  const std::vector<std::int32_t> numbers = {
      0,   1,  -1,  2,   -2,      3,        -3,  5,   7,       -7,      10,          16,      47,        49,
      -49, 98, 103, 206, 1000003, -1000003, 343, 147, kIntMax, kIntMin, kIntMin + 1, 1 << 30, -(1 << 30)};
  const auto count = static_cast<std::int64_t>(numbers.size());
  const ConstTensorView view(numbers.data(), DType::i32, {count});
  const Capture table("table", DType::i32, 1);
  const Expr x = table(leaf::kv_idx());
  for (const std::int32_t divisor : numbers) {
    const Bindings bindings{.captures = {{"table", view}}, .params = {{"divisor", divisor}}};
    // One divisor; one a row; one an element.
    for (const Expr& y :
         {param("divisor", ExprType::i32), table(leaf::q_idx()), table((leaf::q_idx() + leaf::kv_idx()) % 23)}) {
      expect_as_interpreted(floor_div(x, y), bindings,
                            tile({}, 0, 0, static_cast<int>(count), static_cast<int>(count)));
      expect_as_interpreted(x % y, bindings, tile({}, 0, 0, static_cast<int>(count), static_cast<int>(count)));
    }
    expect_as_interpreted(floor_div(x, Expr(divisor)) + x % Expr(divisor), bindings,
                          tile({}, 0, 0, 2, static_cast<int>(count)));
  }
}

TEST(TileCases, Bits) {
  const std::vector<std::int32_t> numbers = {0,  1,  -1, 2,   -2,  5,       -7,         15,         16,
                                             30, 31, 32, 33,  -31, -32,     100,        kIntMax,    kIntMin,
                                             63, 64, 65, 255, 256, 1 << 30, -(1 << 30), 0x55555555, -1000000007};
  const auto count = static_cast<std::int64_t>(numbers.size());
  const Capture table("table", DType::i32, 1);
  const Expr x = table(leaf::kv_idx());
  const auto all = static_cast<int>(count);
  for (const std::int32_t number : numbers) {
    const Bindings bindings{.captures = {{"table", ConstTensorView(numbers.data(), DType::i32, {count})}},
                            .params = {{"number", number}}};
    // One number; one a row; one an element; a literal.
    for (const Expr& y : {param("number", ExprType::i32), table(leaf::q_idx()),
                          table((leaf::q_idx() + leaf::kv_idx()) % 23), Expr(number)}) {
      const Expr mixed = (x & y) + (x | y) * 3 + (x ^ ~y) * 5;
      for (const Expr& e : {x << y, x >> y, mixed, sign(x - y)})
        expect_as_interpreted(e, bindings, tile({}, 0, 0, 5, all));
    }
  }
}

TEST(TileCases, WholeNumbersKeepTheSignOfZero) {
  Setting setting = tile(1, 16);
  setting.scores = {0.0, -0.0, 0.25, -0.25, 0.5,       -0.5,       0.75, -0.75,
                    1.5, -1.5, 2.5,  -2.5,  8388607.5, -8388607.5, 1e30, -1e30};
  const Expr s = leaf::score();
  for (const Expr& e : {ceil(s), round(s), trunc(s), sign(s), floor(s), floor_div(s, 2.0)}) {
    expect_as_interpreted(e, {}, setting);
    expect_as_interpreted(1.0 / e, {}, setting);  // the sign of a zero shows
  }
  setting.scores[3] = std::numeric_limits<double>::infinity();
  setting.scores[5] = -std::numeric_limits<double>::infinity();
  setting.scores[7] = std::numeric_limits<double>::quiet_NaN();
  for (const Expr& e : {isnan(s), isinf(s), isnan(s / s) | isinf(1.0 / s)}) expect_as_interpreted(e, {}, setting);
}

TEST(TileCases, DivisionsByOneNumberAreRoundedExactly) {
  std::mt19937 random(7);
  const Expr y = param("y", ExprType::f32);
  const TileProgram program(leaf::score() / y, Precision::f32);
  std::vector<float> divisors = {30.0F,
                                 3.0F,
                                 1.0F,
                                 49.0F,
                                 0.1F,
                                 0x1.fffffep0F,
                                 0x1.fffffep-3F,
                                 0x1.000002p5F,
                                 -7.0F,
                                 0.0F,
                                 -0.0F,
                                 1e-40F,
                                 1e38F,
                                 0x1p-60F,
                                 0x1p60F,
                                 std::numeric_limits<float>::infinity(),
                                 std::numeric_limits<float>::quiet_NaN()};
  for (int i = 0; i < 100; ++i)
    divisors.push_back(
        std::ldexp(1 + static_cast<float>(random() >> 9) * 0x1p-23F, static_cast<int>(random() % 20) - 10));
  Setting setting = tile(64, 128);
  alignas(64) static float x[64 * 128], out[64 * 128];
  for (const std::int64_t target : test::targets()) {
    const OnTarget on(target);
    for (const float divisor : divisors) {
      const Bindings bindings = {.captures = {}, .params = {{"y", double{divisor}}}};
      TileProgram::Scratch scratch(program, bindings);
      for (float& number : x) {
        // Half of them any bits at all, half ordinary, so that the fast way and the careful one both see many.
        const auto bits = static_cast<std::uint32_t>(random());
        number = random() % 2 == 0 && &number - x < 4096 ? std::bit_cast<float>(bits)
                                                         : std::bit_cast<float>((bits & 0x83ffffffU) + 0x3c000000U);
      }
      program.run(setting.at, x, out, 128, scratch);
      for (int i = 0; i < 64 * 128; ++i) {
        const float want = x[i] / divisor;
        ASSERT_TRUE(out[i] == want ? std::signbit(out[i]) == std::signbit(want)
                                   : std::isnan(out[i]) && std::isnan(want))
            << x[i] << " / " << divisor << " = " << out[i] << " on " << hwy::TargetName(target);
      }
    }
  }
}

TEST(TileCases, TilesOfManyRows) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  for (const Expr& e : {leaf::score() + to_f32(q), to_f32(kv - q),
                        where((kv <= q) & (q - kv < 100), leaf::score(), to_f32(kv)), to_f32(q * kv), leaf::score()}) {
    expect_as_interpreted(e, {}, tile({.q_len = 2000, .kv_len = 2000}, 40, 1, 700, 128));
    expect_as_interpreted(e, {}, tile({.q_len = 2000, .kv_len = 2000}, 40, 1, 257, 3));
  }
}

TEST(TileCases, CountsTrueElements) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const auto count = [](const Expr& mask, const Setting& setting) {
    const TileProgram program(mask, Precision::f32);
    const Bindings none;
    TileProgram::Scratch scratch(program, none);
    return program.count(setting.at, scratch);
  };
  for (const std::int64_t target : test::targets()) {
    const OnTarget on(target);
    const Setting square = tile({}, 0, 0, 9, 21);
    EXPECT_EQ(count(Expr(true), square).yes, 9 * 21);
    EXPECT_EQ(count(Expr(false), square).yes, 0);
    EXPECT_EQ(count(Expr(false), square).total, 9 * 21);
    EXPECT_EQ(count(kv <= q, square).yes, 45);
    EXPECT_EQ(count(kv < 4, square).yes, 9 * 4);
    EXPECT_EQ(count(q >= 7, square).yes, 2 * 21);
    EXPECT_EQ(count((q * kv) % 2 == 1, square).yes, 4 * 10);
    EXPECT_EQ(count(kv < 200, tile({}, 0, 0, 1000, 128)).yes, 1000 * 128);
    // Both values were seen in the first strip: what follows is not looked at.
    const TileProgram::Count early = count(kv <= q, tile({}, 0, 0, 1000, 128));
    EXPECT_GT(early.yes, 0);
    EXPECT_LT(early.yes, early.total);
    EXPECT_LT(early.total, 1000 * 128);
    const TileProgram::Count none = count(kv <= q, tile({}, 0, 0, 0, 128));
    EXPECT_EQ(none.total, 0);
  }
}

TEST(TileCases, ScratchSeesWhatCapturesHoldNow) {
  float gain = 2;
  const Capture capture("gain", DType::f32, 0);
  const TileProgram program(leaf::score() * capture(), Precision::f32);
  const Bindings bindings = {.captures = {{"gain", ConstTensorView(&gain, DType::f32, {})}}, .params = {}};
  TileProgram::Scratch scratch(program, bindings);
  const Setting setting = tile(1, 16);
  alignas(64) float x[16], out[16];
  std::fill(std::begin(x), std::end(x), 3.0F);
  program.run(setting.at, x, out, 16, scratch);
  EXPECT_EQ(out[15], 6);
  gain = 5;
  TileProgram::Scratch moved = std::move(scratch);
  program.run(setting.at, x, out, 16, moved);
  EXPECT_EQ(out[15], 15);
}

template <class F>
void expect_error(ErrorCode code, const std::string& sentence, F&& run) {
  try {
    run();
    FAIL() << "no error; expected: " << sentence;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(error.what(), sentence);
  }
}

TEST(TileCases, WrongUse) {
  const TileProgram real(leaf::score(), Precision::f32), boolean(leaf::kv_idx() < 3, Precision::f32);
  const Bindings none;
  TileProgram::Scratch of_real(real, none), of_boolean(boolean, none);
  const TilePosition at = tile(1, 16).at;
  alignas(64) float out[16];
  alignas(64) double wide[16];
  std::int32_t integers[16];
  const std::string another = "a tile program was run for another type of result than its own";
  expect_error(ErrorCode::internal, another, [&] { boolean.run(at, out, out, 16, of_boolean); });
  expect_error(ErrorCode::internal, another, [&] { real.run(at, wide, wide, 16, of_real); });
  expect_error(ErrorCode::internal, "only booleans can be counted", [&] { real.count(at, of_real); });
  expect_error(ErrorCode::internal, "only integers and booleans can be had as integers",
               [&] { real.run_i32(at, out, integers, 16, of_real); });
  expect_error(ErrorCode::invalid_argument, "an empty expression cannot be evaluated",
               [&] { TileProgram(Expr(), Precision::f32); });
  const TileProgram named(leaf::score() * param("gain", ExprType::f32), Precision::f32);
  expect_error(ErrorCode::invalid_argument, "param 'gain' was given no value",
               [&] { TileProgram::Scratch(named, none); });
}

}  // namespace
}  // namespace heddle::cpu
