// Tile = scalar: for random expressions, each node's tile holds what the scalar rules make of the tiles of its operands
// (so that errors of one operation do not add to the next one's). On every SIMD target, in both precisions.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <unordered_map>
#include <vector>

#include "tile_evaluator/tile_runs.h"
#include "expr/random_expression.h"
#include "heddle/error.h"

namespace heddle::cpu {
namespace {

using expr::Node;
using expr::Op;
using expr::Precision;
using expr::Value;
using heddle::test::RandomExpressions;
using test::GuardedBindings;
using test::OnTarget;
using test::Setting;

/// The element of a capture at `index`, after clamping; the fill where that changes an index.
Value read_value(const Node& node, const ConstTensorView& view, std::span<const Value> operands, Precision precision) {
  Dims index;
  for (int axis = 0; axis < view.rank(); ++axis) {
    const std::int64_t given = std::get<std::int32_t>(operands[static_cast<std::size_t>(axis)]);
    const std::int64_t inside = std::clamp<std::int64_t>(given, 0, view.shape[axis] - 1);
    if (node.op == Op::at && inside != given) return operands.back();
    index.push_back(inside);
  }
  const double x = get_element(view, index);
  if (node.type == ExprType::boolean) return x != 0;
  if (node.type == ExprType::i32) return static_cast<std::int32_t>(static_cast<std::int64_t>(x));
  return precision == Precision::f32 ? static_cast<double>(static_cast<float>(x)) : x;
}

struct Case {
  Expr e;
  Setting setting;
  Precision precision;
  std::int64_t target;
  const Bindings* bindings;
};

/// Empty when every node is right, else which one is not and how.
std::string difference(const Case& run) {
  const OnTarget on(run.target);
  const TilePosition& at = run.setting.at;
  std::unordered_map<const Node*, std::vector<Value>> tiles;
  for (const Node* node : expr::post_order(run.e)) {
    const Expr here(std::shared_ptr<const Node>(run.e.shared(), node));
    const std::vector<Value>& tile = tiles[node] = test::run_tile(here, run.precision, *run.bindings, run.setting);
    const bool is_value = !node->operands.empty() && expr::info(node->op).kind != expr::Kind::read;
    const expr::Interpreter interpreter(is_value ? Expr(0) : here, *run.bindings, run.precision);
    std::vector<Value> operands(node->operands.size());
    for (std::size_t i = 0; i < tile.size(); ++i) {
      for (std::size_t k = 0; k < operands.size(); ++k) operands[k] = tiles.at(node->operands[k].get())[i];
      Value want;
      if (is_value) {
        want = expr::apply(node->op, node->type, operands, run.precision);
      } else if (expr::info(node->op).kind == expr::Kind::read) {
        want = read_value(*node, run.bindings->captures.at(node->capture().name), operands, run.precision);
      } else {
        const int r = static_cast<int>(i) / at.columns, c = static_cast<int>(i) % at.columns;
        want = interpreter(test::element_of(at, r, c, run.setting.scores[i]));
      }
      if (test::close(tile[i], want, expr::info(node->op).ulp, run.precision)) continue;
      const auto text = [](const Value& value) {
        return std::visit([](auto x) { return fmt::format("{}", x); }, value);
      };
      std::string message =
          fmt::format("{} at element {}: got {}, want {}; operands", print(here), i, text(tile[i]), text(want));
      for (const Value& operand : operands) message += " " + text(operand);
      return message;
    }
  }
  return {};
}

Setting draw_setting(RandomExpressions& random, Precision precision) {
  constexpr std::array<int, 8> kRows = {1, 2, 3, 5, 1, 7, 4, 33};
  constexpr std::array<int, 8> kColumns = {1, 3, 15, 16, 17, 31, 2, 128};
  Setting setting;
  const expr::Element corner = random.element();
  using expr::Leaf;
  TilePosition& at = setting.at;
  at.b = corner[Leaf::b];
  at.h = corner[Leaf::h];
  at.q_first = random.below(40);
  at.kv_first = corner[Leaf::kv_idx];
  at.sequence = {.q_begin = random.below(30),
                 .q_len = corner[Leaf::q_len],
                 .kv_begin = random.below(30),
                 .kv_len = corner[Leaf::kv_len],
                 .q_start = corner[Leaf::q_start],
                 .kv_start = corner[Leaf::kv_start]};
  at.rows = kRows[static_cast<std::size_t>(random.below(8))];
  at.columns = kColumns[static_cast<std::size_t>(random.below(at.rows == 33 ? 7 : 8))];
  for (int i = 0; i < at.rows * at.columns; ++i) {
    const double score = random.element().score;
    setting.scores.push_back(precision == Precision::f32 ? static_cast<double>(static_cast<float>(score)) : score);
  }
  setting.in_place = random.below(2) == 0;
  setting.extra_stride = 16 * random.below(2);
  return setting;
}

// Sanitizers take ten times as long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kExpressions = 4000, kEachOperation = 100;
#else
constexpr int kExpressions = 20000, kEachOperation = 500;
#endif

TEST(TileEvaluator, EqualsScalarRulesOnRandomExpressions) {
  heddle::test::Vocabulary vocabulary;
  vocabulary.leaves.push_back(expr::Leaf::kv_start);
  RandomExpressions random(20260, vocabulary);
  const GuardedBindings ending(random.bindings(), true), beginning(random.bindings(), false);
  const std::vector<std::int64_t> targets = test::targets();
  std::array<int, expr::kOpCount> seen{};
  for (int i = 0; i < kExpressions; ++i) {
    const Expr e = random.draw(i % 8 == 0 ? 60 : 16);
    for (const Node* node : expr::post_order(e)) ++seen[static_cast<std::size_t>(node->op)];
    Case run{.e = e,
             .setting = {},
             .precision = random.below(4) == 0 ? Precision::f64 : Precision::f32,
             .target = targets[static_cast<std::size_t>(i) % targets.size()],
             .bindings = i % 2 == 0 ? &ending.bindings() : &beginning.bindings()};
    run.setting = draw_setting(random, run.precision);
    if (difference(run).empty()) continue;
    run.e = heddle::test::shrink(e, [run](const Expr& candidate) {
      Case smaller = run;
      smaller.e = candidate;
      return !difference(smaller).empty();
    });
    FAIL() << "expression " << i << " on " << hwy::TargetName(run.target) << ", "
           << (run.precision == Precision::f32 ? "f32" : "f64") << ": " << difference(run) << "\n"
           << TileProgram(run.e, run.precision).text();
  }
  for (int op = 0; op < expr::kOpCount; ++op) {
    EXPECT_GE(seen[static_cast<std::size_t>(op)], kEachOperation) << expr::info(static_cast<Op>(op)).name;
  }
}

}  // namespace
}  // namespace heddle::cpu
