// exact_integers: random integer expressions, rewritten, against arithmetic of 64 bits on the same nodes.
#include "expr/exact_integers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>

#include "expr/interpret.h"
#include "expr/node.h"

namespace heddle::expr {
namespace {

using Integers = std::unordered_map<const Node*, std::int64_t>;
constexpr std::int64_t kQueries = 37, kKeys = 53;

std::int64_t wrapped(std::uint64_t x) { return static_cast<std::int64_t>(x); }
std::int64_t floored(std::int64_t x, std::int64_t y) {
  if (y == 0) return 0;
  if (y == -1) return wrapped(0 - static_cast<std::uint64_t>(x));
  return x / y - (x % y != 0 && (x < 0) != (y < 0) ? 1 : 0);
}

std::int64_t value_of(const Node& node, const Integers& known, const Element& at,
                      const std::map<std::string, std::int64_t>& params) {
  const auto operand = [&](std::size_t i) { return known.at(node.operands[i].get()); };
  const auto bits = [&](std::size_t i) { return static_cast<std::uint64_t>(operand(i)); };
  switch (node.op) {
    case Op::constant:
      return node.i32();
    case Op::leaf:
      return at[node.leaf()];
    case Op::param:
      return params.at(node.param().name);
    case Op::add:
      return wrapped(bits(0) + bits(1));
    case Op::sub:
      return wrapped(bits(0) - bits(1));
    case Op::mul:
      return wrapped(bits(0) * bits(1));
    case Op::neg:
      return wrapped(0 - bits(0));
    case Op::abs:
      return operand(0) < 0 ? wrapped(0 - bits(0)) : operand(0);
    case Op::sign:
      return (operand(0) > 0) - (operand(0) < 0);
    case Op::min:
      return std::min(operand(0), operand(1));
    case Op::max:
      return std::max(operand(0), operand(1));
    case Op::bit_and:
      return operand(0) & operand(1);
    case Op::bit_or:
      return operand(0) | operand(1);
    case Op::bit_xor:
      return operand(0) ^ operand(1);
    case Op::bit_not:
      return ~operand(0);
    case Op::shift_left:
      return wrapped(bits(0) << bits(1));
    case Op::shift_right:
      return operand(0) >> operand(1);
    case Op::floor_div:
      return floored(operand(0), operand(1));
    case Op::mod:
      return operand(1) == 0 ? 0 : operand(0) - operand(1) * floored(operand(0), operand(1));
    default:
      ADD_FAILURE() << info(node.op).name;
      return 0;
  }
}

class Random {
 public:
  explicit Random(unsigned seed) : random_(seed) {}

  int below(int n) { return std::uniform_int_distribution(0, n - 1)(random_); }

  Expr tree(int depth) {
    if (depth == 0) return leaf();
    const Expr x = tree(depth - 1);
    switch (below(14)) {
      case 0:
        return -x;
      case 1:
        return ~x;
      case 2:
        return abs(x);
      case 3:
        return sign(x);
      case 4:
        return x << Expr(below(50));
      case 5:
        return x >> Expr(below(50));
      case 6:
        return floor_div(x, Expr(divisor()));
      case 7:
        return x % Expr(divisor());
      case 8:
        return min(x, tree(depth - 1));
      case 9:
        return (x & tree(depth - 1)) ^ leaf();
      case 10:
        return x - tree(depth - 1);
      case 11:
        return x + tree(depth - 1);
      default:
        return x * tree(depth - 1);
    }
  }
  std::map<std::string, std::int64_t> params;

 private:
  Expr leaf() {
    switch (below(4)) {
      case 0:
        return leaf::q_idx();
      case 1:
        return leaf::kv_idx();
      case 2:
        return Expr(below(3) == 0 ? std::numeric_limits<std::int32_t>::max() : below(100000) - 500);
      default: {
        const std::string name = "n" + std::to_string(params.size());
        const int bits = below(40);
        params[name] = (std::int64_t{1} << bits) + below(1000) * (below(2) == 0 ? 1 : -1);
        return param(name, ExprType::i32);
      }
    }
  }
  int divisor() {
    constexpr int kDivisors[] = {1, 2, 3, 7, 1000, 65536, 1 << 20, 1000003, 1000000007, 2147483647, -1, -5, -65537};
    return kDivisors[below(static_cast<int>(std::size(kDivisors)))];
  }

  std::mt19937 random_;
};

TEST(ExactIntegers, RandomExpressions) {
  int changed = 0;
  for (unsigned seed = 0; seed < 400; ++seed) {
    Random random(seed);
    const Expr e = random.tree(1 + random.below(3));
    const IntegerSizes sizes{1, 1, kQueries, kKeys, random.params};
    Bindings bindings;
    for (const auto& [name, value] : random.params) {
      if (std::in_range<std::int32_t>(value)) bindings.params[name] = static_cast<std::int32_t>(value);
    }
    const int bit = random.below(63);
    const Expr condition = ((e >> Expr(bit)) & Expr(1)) == Expr(1);
    const Expr exact = exact_integers(condition, sizes);
    changed += same(exact, condition) ? 0 : 1;
    const Interpreter interpreter(exact, bindings, Precision::f32);
    for (int i = 0; i < 20; ++i) {
      Element at;
      at[Leaf::q_idx] = random.below(kQueries), at[Leaf::kv_idx] = random.below(kKeys);
      Integers known;
      for (const Node* node : post_order(e)) known[node] = value_of(*node, known, at, random.params);
      ASSERT_EQ(interpreter.boolean(at), ((known.at(e.node()) >> bit) & 1) == 1)
          << print(condition) << " at " << at[Leaf::q_idx] << ", " << at[Leaf::kv_idx] << ", seed " << seed;
    }
  }
  EXPECT_GT(changed, 100);
}

TEST(ExactIntegers, StaysWhereI32HoldsAll) {
  Symbols symbols;
  symbols.captures["ids"] = {DType::i64, 1};
  symbols.params["n"] = ExprType::i32;
  const auto up_to = [&](const char* text) { return exact_up_to(parse(text, symbols)); };
  EXPECT_EQ(up_to("q_idx - kv_idx >= n"), 1 << 30);
  EXPECT_EQ(up_to("q_idx * n + kv_idx"), 1 << 15);
  EXPECT_EQ(up_to("ids[q_idx] * n == ids[kv_idx] - ids[q_idx]"), 1 << 30);  // which may be anything, and wraps
  const Expr e = parse("q_idx * n > kv_idx", symbols);
  EXPECT_TRUE(same(exact_integers(e, {1, 1, 1000, 1000, {{"n", 1000}}}), e));
  EXPECT_FALSE(same(exact_integers(e, {1, 1, 100000, 100000, {{"n", 100000}}}), e));
}

}  // namespace
}  // namespace heddle::expr
