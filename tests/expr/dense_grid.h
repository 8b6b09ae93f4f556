// Every pair of a grid of queries and keys, and a mod's values there against a plain function.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "expr/range_bounds.h"
#include "expr/ranges.h"
#include "expr/verify.h"
#include "heddle/error.h"
#include "heddle/expr.h"

namespace heddle::test {

using expr::Element;
using expr::Interpreter;
using expr::Leaf;
using expr::LeafRanges;
using expr::Precision;
using expr::Role;

inline constexpr int kQueries = 40;
inline constexpr int kKeys = 52;
inline constexpr int kHeads = 4;

struct Position {
  int b, h, q, kv;
};

inline Element element_at(const Position& at) {
  Element element;
  element.score = 0.125 * (at.q - at.kv) + at.h;
  element[Leaf::b] = at.b;
  element[Leaf::h] = at.h;
  element[Leaf::q_idx] = at.q;
  element[Leaf::kv_idx] = at.kv;
  element[Leaf::q_len] = kQueries;
  element[Leaf::kv_len] = kKeys;
  return element;
}

inline LeafRanges grid_ranges() {
  LeafRanges leaves;
  leaves[Leaf::score] = expr::Range::any(ExprType::f32);
  leaves[Leaf::b] = {0, 1, false};
  leaves[Leaf::h] = {0, kHeads - 1, false};
  leaves[Leaf::q_idx] = {0, kQueries - 1, false};
  leaves[Leaf::kv_idx] = {0, kKeys - 1, false};
  leaves[Leaf::q_len] = expr::Range::point(kQueries);
  leaves[Leaf::kv_len] = expr::Range::point(kKeys);
  return leaves;
}

inline void for_each_position(const std::function<void(const Position&)>& visit) {
  for (int b = 0; b < 2; ++b) {
    for (int h = 0; h < kHeads; ++h) {
      for (int q = 0; q < kQueries; ++q) {
        for (int kv = 0; kv < kKeys; ++kv) visit({b, h, q, kv});
      }
    }
  }
}

/// A planner accepts the reads of every ready-made mod over tensors of the stated shapes.
inline void expect_reads_proven(const Expr& mod, const Bindings& bindings) {
  const ExactBounds bounds(bindings.captures);
  EXPECT_NO_THROW(check_reads_inside(mod, grid_ranges(), bounds, Precision::f32)) << print(mod);
}

template <class F>
void expect_mask(const Expr& mask, F&& expected, const Bindings& bindings = {}) {
  EXPECT_TRUE(same(as_role(mask, Role::mask), mask));
  expect_reads_proven(mask, bindings);
  const Interpreter interpret(mask, bindings, Precision::f32);
  for_each_position([&](const Position& at) {
    ASSERT_EQ(interpret.boolean(element_at(at)), expected(at)) << print(mask) << fmt::format(" at {}, {}", at.q, at.kv);
  });
}

template <class F>
void expect_score(const Expr& mod, F&& expected, const Bindings& bindings = {}) {
  EXPECT_TRUE(same(as_role(mod, Role::score), mod));
  expect_reads_proven(mod, bindings);
  const Interpreter interpret(mod, bindings, Precision::f64);
  for_each_position([&](const Position& at) {
    const double value = expected(element_at(at).score, at);
    ASSERT_NEAR(interpret.real(element_at(at)), value, 1e-12) << print(mod) << fmt::format(" at {}, {}", at.q, at.kv);
  });
}

template <class T>
ConstTensorView view(const std::vector<T>& data, DType dtype, const Dims& shape) {
  return {data.data(), dtype, shape};
}

template <class F>
std::string refusal(F&& make) {
  try {
    make();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
  return {};
}

}  // namespace heddle::test
