// The C++ operators: promotion, literals, names, and the sentences of their refusals.
#include <gmock/gmock.h>

#include <functional>

#include "expr/node.h"
#include "heddle/error.h"

namespace heddle {
namespace {

using leaf::b;
using leaf::h;
using leaf::kv_idx;
using leaf::q_idx;
using leaf::score;

std::string refusal(const std::function<Expr()>& build) {
  try {
    return "accepted: " + print(build());
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
}

TEST(Build, LiteralsHaveTheirCppTypes) {
  EXPECT_EQ(Expr(3).type(), ExprType::i32);
  EXPECT_EQ(Expr(3U).type(), ExprType::i32);
  EXPECT_EQ(Expr(std::int64_t{3}).type(), ExprType::i32);
  EXPECT_EQ(Expr(3.0).type(), ExprType::f32);
  EXPECT_EQ(Expr(3.0F).type(), ExprType::f32);
  EXPECT_EQ(Expr(true).type(), ExprType::boolean);
  EXPECT_TRUE(Expr().empty());
  EXPECT_EQ(refusal([] { return Expr(std::int64_t{1} << 31); }),
            "an integer literal must fit i32 (-2147483648 to 2147483647), but 2147483648 does not");
  EXPECT_EQ(refusal([] { return Expr(-(std::int64_t{1} << 31) - 1); }),
            "an integer literal must fit i32 (-2147483648 to 2147483647), but -2147483649 does not");
  EXPECT_THAT(refusal([] { return Expr(~std::uint64_t{0}); }), ::testing::StartsWith("an integer literal must fit"));
  EXPECT_EQ(refusal([] { return Expr(-(std::int64_t{1} << 31)); }), "accepted: -2147483648");
}

TEST(Build, NumbersArePromotedWithExplicitCasts) {
  const std::vector<std::pair<Expr, std::string>> table = {
      {score() + 1, "score + 1.0"},
      {q_idx() + 1, "q_idx + 1"},
      {q_idx() * 0.5, "f32(q_idx) * 0.5"},
      {q_idx() / 2, "f32(q_idx) / 2.0"},
      {floor_div(q_idx(), 2), "q_idx // 2"},
      {floor_div(q_idx(), score()), "f32(q_idx) // score"},
      {q_idx() % 2.0, "f32(q_idx) % 2.0"},
      {q_idx() < score(), "f32(q_idx) < score"},
      {min(q_idx(), 2.5), "min(f32(q_idx), 2.5)"},
      {clip(q_idx(), 0, 5), "min(max(q_idx, 0), 5)"},
      {exp(q_idx()), "exp(f32(q_idx))"},
      {floor(q_idx()), "floor(f32(q_idx))"},
      {abs(q_idx()), "abs(q_idx)"},
      {pow(q_idx(), 2), "q_idx * q_idx"},
      {pow(q_idx(), 2.0), "pow(f32(q_idx), 2.0)"},
      {pow(score(), 3), "score * score * score"},
      {pow(h(), 7), "h * h * h * (h * h * h) * h"},
      {pow(3, 4), "81"},
      {q_idx() & 3, "q_idx & 3"},
      {(q_idx() == 1) & (b() == 1), "q_idx == 1 and b == 1"},
      {~q_idx() | (h() ^ b()), "~q_idx | h ^ b"},
      {(q_idx() << 2) >> h(), "q_idx << 2 >> h"},
      {ceil(q_idx()), "ceil(f32(q_idx))"},
      {sign(q_idx()), "sign(q_idx)"},
      {isnan(q_idx()), "isnan(f32(q_idx))"},
      {relu(q_idx()), "max(q_idx, 0)"},
      {relu(score()), "max(score, 0.0)"},
      {gelu(score()), "0.5 * score * (1.0 + erf(score * 0.7071067811865475))"},
      {where(h() == 1, 2, 0.5), "where(h == 1, 2.0, 0.5)"},
      {where(h() == 1, b(), score()), "where(h == 1, f32(b), score)"},
      {to_f32(score()), "score"},
      {to_i32(q_idx()), "q_idx"},
      {to_i32(score()), "i32(score)"},
      {to_f32(h() == 1), "f32(h == 1)"},
      {(h() == 1) == (b() == 1), "not (h == 1) ^ (b == 1)"},
      {(h() == 1) != (b() == 1), "(h == 1) ^ (b == 1)"},
      {h() == 1 && (b() == 1 || !(q_idx() > 2)), "h == 1 and (b == 1 or not q_idx > 2)"},
      {~(h() == 1) & (b() == 1), "not h == 1 and b == 1"},
      {Capture("x", DType::f16, 1).at({h()}, 0), "at(x, h, 0.0)"},
      {Capture("x", DType::i64, 2)(h(), q_idx() - 1), "x[h, q_idx - 1]"},
  };
  for (const auto& [e, text] : table) EXPECT_EQ(print(e), text);
}

TEST(Build, TracedCallablesAreExpressions) {
  EXPECT_EQ(print(score_mod([](Expr s, Expr, Expr, Expr q, Expr k) { return s - abs(q - k); })),
            "score - f32(abs(q_idx - kv_idx))");
  EXPECT_EQ(print(mask_mod([](Expr, Expr, Expr q, Expr k) { return q >= k && q - k <= 4; })),
            "q_idx >= kv_idx and q_idx - kv_idx <= 4");
  EXPECT_EQ(print(weight_mod([](Expr, Expr, Expr, Expr) { return 2.0; })), "2.0");
}

TEST(Build, WrongTypesAreRefusedByTheSubExpression) {
  const Expr mask = kv_idx() <= q_idx();
  const std::string numbers =
      " needs numbers, but `kv_idx <= q_idx` is bool; convert it with i32(...) or f32(...), or choose with where(...)";
  EXPECT_EQ(refusal([&] { return mask + 1; }), "+" + numbers);
  EXPECT_EQ(refusal([&] { return score() * mask; }), "*" + numbers);
  EXPECT_EQ(refusal([&] { return -mask; }), "-" + numbers);
  EXPECT_EQ(refusal([&] { return floor_div(1, mask); }), "//" + numbers);
  EXPECT_EQ(refusal([&] { return min(mask, mask); }), "min" + numbers);
  EXPECT_EQ(refusal([&] { return exp(mask); }), "exp" + numbers);
  EXPECT_EQ(refusal([&] { return mask < mask; }), "<" + numbers);
  EXPECT_EQ(refusal([&] { return mask == 1; }), "==" + numbers);
  EXPECT_EQ(refusal([&] { return mask & h(); }),
            "& combines two bool or two i32, but `kv_idx <= q_idx` is bool and `h` is i32");
  EXPECT_EQ(refusal([&] { return score() ^ mask; }),
            "^ combines two bool or two i32, but `score` is f32 and `kv_idx <= q_idx` is bool");
  EXPECT_EQ(refusal([&] { return q_idx() | 1.5; }),
            "| combines two bool or two i32, but `q_idx` is i32 and `1.5` is f32");
  EXPECT_EQ(refusal([&] { return mask && h(); }), "and combines bool only, but `h` is i32; compare it with something");
  EXPECT_EQ(refusal([&] { return b() || h(); }), "or combines bool only, but `b` is i32; compare it with something");
  EXPECT_EQ(refusal([&] { return ~score(); }),
            "an operand of ~ must be i32, but `score` is f32; convert it with i32(...)");
  EXPECT_EQ(refusal([&] { return score() << 1; }),
            "an operand of << must be i32, but `score` is f32; convert it with i32(...)");
  EXPECT_EQ(refusal([&] { return isinf(mask); }), "isinf" + numbers);
  EXPECT_EQ(refusal([&] { return sign(mask); }), "sign" + numbers);
  EXPECT_EQ(refusal([&] { return !(h() + 1); }),
            "not combines bool only, but `h + 1` is i32; compare it with something");
  EXPECT_EQ(refusal([&] { return where(h(), 1, 2); }), "the condition of where must be bool, but `h` is i32");
  EXPECT_EQ(refusal([&] { return where(mask, mask, 2); }),
            "where chooses between two numbers or two bools, but `kv_idx <= q_idx` is bool and `2` is i32");
  EXPECT_EQ(refusal([&] { return random_uniform(1, 2, 3, 4, 5.0); }),
            "an argument of random_uniform must be i32, but `5.0` is f32; convert it with i32(...)");
  EXPECT_EQ(refusal([&] { return Capture("x", DType::f32, 1)(mask); }),
            "index 0 of capture 'x' must be i32, but `kv_idx <= q_idx` is bool; convert it with i32(...)");
}

TEST(Build, EmptyExpressionsAreRefused) {
  EXPECT_EQ(refusal([] { return score() + Expr(); }), "+ was given an empty expression");
  EXPECT_EQ(refusal([] { return !Expr(); }), "not was given an empty expression");
  EXPECT_EQ(refusal([] { return to_f32(Expr()); }), "f32 was given an empty expression");
  EXPECT_EQ(refusal([] { return where(Expr(), 1, 2); }), "where was given an empty expression");
  EXPECT_EQ(refusal([] { return Capture("x", DType::f32, 1).read({Expr()}); }),
            "capture 'x' was given an empty expression");
  EXPECT_EQ(refusal([] { return Capture("x", DType::f32, 1).at({1}, Expr()); }),
            "capture 'x' was given an empty expression");
  EXPECT_THROW(Expr().type(), Error);
  EXPECT_EQ(print(Expr()), "");
}

TEST(Build, NamesAreIdentifiersWithoutAMeaning) {
  EXPECT_EQ(refusal([] { return param("window_2", ExprType::i32); }), "accepted: window_2");
  for (const char* name :
       {"score", "kv_idx", "h", "and", "if", "True", "inf", "exp", "f32", "clip", "at", "round", "silu"}) {
    EXPECT_EQ(refusal([&] { return param(name, ExprType::f32); }),
              std::string("a param cannot be named '") + name + "': the name has a meaning of its own");
    EXPECT_EQ(refusal([&] { return Capture(name, DType::f32, 1)(0); }),
              std::string("a capture cannot be named '") + name + "': the name has a meaning of its own");
  }
  for (const char* name : {"", "2x", "a.b", "a b", "caf\xC3\xA9", "-x"}) {
    EXPECT_EQ(refusal([&] { return param(name, ExprType::f32); }),
              std::string("a param's name is letters, digits and _, not starting with a digit; '") + name + "' is not");
  }
}

TEST(Build, CapturesAreReadAsTheyAreDeclared) {
  EXPECT_EQ(refusal([] { return Capture("x", DType::f32, 2)(h()); }),
            "capture 'x' has rank 2 but is read with 1 index");
  EXPECT_EQ(refusal([] { return Capture("x", DType::f32, 1).at({}, 0); }),
            "capture 'x' has rank 1 but is read with 0 indices");
  EXPECT_EQ(refusal([] { return Capture("x", DType::i32, 1).at({h()}, 0.5); }),
            "the fill of capture 'x' must be i32, but `0.5` is f32");
  EXPECT_EQ(refusal([] { return Capture("x", DType::boolean, 1).at({h()}, 0); }),
            "the fill of capture 'x' must be bool, but `0` is i32");
  for (const DType dtype : {DType::i16, DType::i8, DType::u64, DType::u32, DType::u16, DType::u8}) {
    EXPECT_EQ(Capture("x", dtype, 1)(h()).type(), ExprType::i32) << name(dtype);
  }
  EXPECT_EQ(refusal([] { return Capture("x", DType::f32, 9)(h()); }),
            "capture 'x' was given rank 9; accepted are 0 to 8");
  EXPECT_EQ(refusal([] { return Capture("x", DType::f32, -1)(h()); }),
            "capture 'x' was given rank -1; accepted are 0 to 8");
}

}  // namespace
}  // namespace heddle
