// Random well-typed expressions for property tests, the tensors and values they read, and a shrinker that reduces a
// failing one. Everything follows from the seed.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "expr/interpret.h"
#include "expr/node.h"
#include "heddle/tensor.h"

namespace heddle::test {

/// The vocabulary of drawn expressions. Only tests that add kv_start have it: text for a GPU holds none.
struct Vocabulary {
  std::vector<expr::Leaf> leaves = {expr::Leaf::score,  expr::Leaf::b,       expr::Leaf::h,        expr::Leaf::q_idx,
                                    expr::Leaf::kv_idx, expr::Leaf::q_token, expr::Leaf::kv_token, expr::Leaf::q_len,
                                    expr::Leaf::kv_len, expr::Leaf::q_start};
  bool captures = true;
  bool params = true;
  /// Indices of reads are clipped into the tensor by the expression itself, so that a planner accepts them.
  bool reads_inside = false;
  /// NaN, infinities, huge and tiny numbers, INT_MIN and INT_MAX among the constants.
  bool extreme_constants = true;
  /// Operations to leave out.
  std::vector<expr::Op> without = {};

  /// For masks and weights: everything but the score.
  static Vocabulary mask() {
    Vocabulary vocabulary;
    vocabulary.leaves.erase(vocabulary.leaves.begin());
    return vocabulary;
  }
};

class RandomExpressions {
 public:
  explicit RandomExpressions(std::uint64_t seed, Vocabulary vocabulary = {})
      : rng_(seed), vocabulary_(std::move(vocabulary)) {
    bind_captures();
    bindings_.params = {{"alpha", 0.75}, {"beta", -3.0e4}, {"window", 7}, {"offset", -2}, {"enabled", true}};
    for (int i = 0; i < expr::kOpCount; ++i) {
      const auto op = static_cast<expr::Op>(i);
      if (std::count(vocabulary_.without.begin(), vocabulary_.without.end(), op) != 0) continue;
      if (!vocabulary_.captures && expr::info(op).kind == expr::Kind::read) continue;
      for (const ExprType type : {ExprType::f32, ExprType::i32, ExprType::boolean}) {
        if (gives(op, type)) operations_[static_cast<std::size_t>(type)].push_back(op);
      }
    }
  }

  /// About `size` nodes of this type.
  Expr draw(ExprType type, int size) {
    if (size <= 1) return draw_leaf(type);
    return draw_operation(next_operation(type), type, size - 1);
  }
  /// Any type, 1 to `largest` nodes.
  Expr draw(int largest = 40) { return draw(static_cast<ExprType>(below(3)), 1 + below(largest)); }

  /// Values for the leaves: a position in a [B, H, S, S] of about [3, 8, 64, 64], or now and then far outside it.
  expr::Element element() {
    expr::Element element;
    element.score = static_cast<float>((unit() - 0.5) * std::exp2(below(16) - 4));
    if (below(50) == 0) element.score = extreme_real();
    element[expr::Leaf::b] = below(3);
    element[expr::Leaf::h] = below(8);
    const int reach = below(20) == 0 ? 1 << 20 : 64;
    element[expr::Leaf::q_idx] = below(reach);
    element[expr::Leaf::kv_idx] = below(reach);
    element[expr::Leaf::q_len] = 1 + below(reach);
    element[expr::Leaf::kv_len] = 1 + below(reach);
    element[expr::Leaf::q_start] = below(reach);
    element[expr::Leaf::kv_start] = element[expr::Leaf::q_start] / 2 + 5;
    element[expr::Leaf::q_token] = element[expr::Leaf::q_idx] + below(reach);
    element[expr::Leaf::kv_token] = element[expr::Leaf::kv_idx] + below(reach);
    return element;
  }

  /// Values for every name that may occur.
  const Bindings& bindings() const { return bindings_; }

  int below(int bound) { return static_cast<int>(rng_() % static_cast<std::uint64_t>(bound)); }
  /// In [0, 1).
  double unit() { return static_cast<double>(rng_() >> 11) * 0x1p-53; }

 private:
  static bool gives(expr::Op op, ExprType type) {
    switch (expr::info(op).kind) {
      case expr::Kind::num:
        return expr::info(op).arity > 0 && type != ExprType::boolean;
      case expr::Kind::bits:
        return type == ExprType::i32;
      case expr::Kind::real:
      case expr::Kind::random:
        return type == ExprType::f32;
      case expr::Kind::cmp:
      case expr::Kind::test:
      case expr::Kind::logic:
        return type == ExprType::boolean;
      case expr::Kind::cast:
        return type == (op == expr::Op::to_f32 ? ExprType::f32 : ExprType::i32);
      case expr::Kind::where:
      case expr::Kind::read:
        return true;
    }
    return false;
  }

  /// The least often drawn of three, so that all are drawn about equally often.
  expr::Op next_operation(ExprType type) {
    const std::vector<expr::Op>& choices = operations_[static_cast<std::size_t>(type)];
    expr::Op best = choices[static_cast<std::size_t>(below(static_cast<int>(choices.size())))];
    for (int i = 0; i < 2; ++i) {
      const expr::Op other = choices[static_cast<std::size_t>(below(static_cast<int>(choices.size())))];
      if (count(other) < count(best)) best = other;
    }
    ++count(best);
    return best;
  }
  int& count(expr::Op op) { return counts_[static_cast<std::size_t>(op)]; }

  Expr draw_operation(expr::Op op, ExprType type, int size) {
    if (expr::info(op).kind == expr::Kind::read) return draw_read(op, type, size);
    const std::vector<ExprType> types = operand_types(op, type);
    std::vector<Expr> operands;
    for (std::size_t i = 0; i < types.size(); ++i) {
      const int rest = static_cast<int>(types.size() - i) - 1;
      const int share = rest == 0 ? size : 1 + below(std::max(1, size - rest));
      operands.push_back(draw(types[i], share));
      size = std::max(1, size - share);
    }
    return expr::build(op, operands);
  }

  std::vector<ExprType> operand_types(expr::Op op, ExprType type) {
    const ExprType number = below(2) == 0 ? ExprType::f32 : ExprType::i32;
    switch (expr::info(op).kind) {
      case expr::Kind::cmp:
        return {number, number};
      case expr::Kind::test:
        return {ExprType::f32};
      case expr::Kind::cast: {
        const ExprType other = type == ExprType::f32 ? ExprType::i32 : ExprType::f32;
        return {below(4) == 0 ? ExprType::boolean : other};
      }
      case expr::Kind::where:
        return {ExprType::boolean, type, type};
      case expr::Kind::random:
        return std::vector<ExprType>(5, ExprType::i32);
      default:
        return std::vector<ExprType>(static_cast<std::size_t>(expr::info(op).arity), type);
    }
  }

  Expr draw_read(expr::Op op, ExprType type, int size) {
    const auto& [name, view] = capture_of(type, 1);
    const Capture capture(name, view.dtype, view.rank());
    std::vector<Expr> indices;
    for (int axis = 0; axis < view.rank(); ++axis) {
      Expr index = draw(ExprType::i32, 1 + below(std::max(1, size / view.rank())));
      if (vocabulary_.reads_inside && op == expr::Op::read) index = clip(index, 0, view.shape[axis] - 1);
      indices.push_back(index);
    }
    if (op == expr::Op::read) return capture.read(std::move(indices));
    return capture.at(std::move(indices), draw(type, 1 + below(std::max(1, size / 4))));
  }

  const std::pair<const std::string, ConstTensorView>& capture_of(ExprType type, int least_rank) {
    std::vector<const std::pair<const std::string, ConstTensorView>*> fitting;
    for (const auto& entry : bindings_.captures) {
      if (expr::read_type(entry.second.dtype) == type && entry.second.rank() >= least_rank) fitting.push_back(&entry);
    }
    return *fitting[static_cast<std::size_t>(below(static_cast<int>(fitting.size())))];
  }

  Expr draw_leaf(ExprType type) {
    const int choice = below(8);
    if (choice == 0 && vocabulary_.params) return draw_param(type);
    if (choice == 1 && vocabulary_.captures && type == ExprType::f32) return Capture("gain", DType::f32, 0).read({});
    if (type == ExprType::boolean) {
      if (choice == 2) return Expr(below(2) == 0);
      return draw_operation(next_comparison(), ExprType::boolean, 2);
    }
    if (choice <= 3) return type == ExprType::f32 ? Expr(constant_real()) : Expr(constant_int());
    return draw_position(type);
  }

  expr::Op next_comparison() { return static_cast<expr::Op>(static_cast<int>(expr::Op::lt) + below(6)); }

  Expr draw_param(ExprType type) {
    if (type == ExprType::boolean) return param("enabled", type);
    if (type == ExprType::i32) return param(below(2) == 0 ? "window" : "offset", type);
    return param(below(2) == 0 ? "alpha" : "beta", type);
  }

  Expr draw_position(ExprType type) {
    const auto leaf = vocabulary_.leaves[static_cast<std::size_t>(below(static_cast<int>(vocabulary_.leaves.size())))];
    const Expr e = expr::make(expr::Op::leaf, type, {}, leaf);
    if (e.type() == type) return e;
    return type == ExprType::f32 ? to_f32(e) : Expr(constant_int());
  }

  double constant_real() {
    if (vocabulary_.extreme_constants && below(6) == 0) return extreme_real();
    return below(2) == 0 ? static_cast<double>(below(9) - 4) : (unit() - 0.5) * 8;
  }
  double extreme_real() {
    constexpr std::array<double, 10> values = {std::numeric_limits<double>::quiet_NaN(),
                                               std::numeric_limits<double>::infinity(),
                                               -std::numeric_limits<double>::infinity(),
                                               -0.0,
                                               3.0e38,
                                               -3.0e38,
                                               1.0e-42,
                                               2147483648.0,
                                               -2147483904.0,
                                               1.0e6};
    return static_cast<float>(values[static_cast<std::size_t>(below(static_cast<int>(values.size())))]);
  }
  std::int32_t constant_int() {
    constexpr std::array<std::int32_t, 6> extremes = {std::numeric_limits<std::int32_t>::min(),
                                                      std::numeric_limits<std::int32_t>::max(),
                                                      std::numeric_limits<std::int32_t>::min() + 1,
                                                      1 << 16,
                                                      -(1 << 16),
                                                      123456789};
    if (vocabulary_.extreme_constants && below(8) == 0) return extremes[static_cast<std::size_t>(below(6))];
    return below(24) - 8;
  }

  void bind_captures() {
    bind_reals("slopes", DType::f32, {5});
    bind_reals("gain", DType::f32, {});
    bind_reals("volume", DType::f32, {2, 3, 4});
    bind_reals("table", DType::bf16, {7, 4});
    bind_reals("wide", DType::f64, {3});
    bind_reals("half", DType::f16, {6});
    bind_reals("tiny", DType::e4m3, {9});
    bind_reals("coarse", DType::e5m2, {8});
    bind_integers<std::int32_t>("doc", DType::i32, {64});
    bind_integers<std::int64_t>("ids", DType::i64, {16});
    bind_integers<std::int32_t>("grid", DType::i32, {8, 5});
    bind_integers<std::int16_t>("short", DType::i16, {30});
    bind_integers<std::int8_t>("signed", DType::i8, {24});
    bind_integers<std::uint8_t>("bytes", DType::u8, {12, 3});
    bind_integers<std::uint16_t>("words", DType::u16, {20});
    bind_integers<std::uint32_t>("codes", DType::u32, {18});
    bind_integers<std::uint64_t>("keys", DType::u64, {10});
    bind_integers<std::uint8_t>("flags", DType::boolean, {8, 6});
    bind_integers<std::uint8_t>("open", DType::boolean, {40});
    bindings_.captures["table"] = permute(bindings_.captures["table"], {1, 0});
  }

  void bind_reals(const std::string& name, DType dtype, const Dims& shape) {
    const Tensor wide = Tensor::empty(DType::f64, shape);
    auto* data = static_cast<double*>(wide.data());
    for (std::int64_t i = 0; i < wide.count(); ++i) data[i] = (unit() - 0.5) * 6;
    bind(name, wide.to(dtype));
  }

  /// Small numbers, growing now and then as document numbers do; also the largest, and of 64 bits larger ones.
  template <class T>
  void bind_integers(const std::string& name, DType dtype, const Dims& shape) {
    const Tensor tensor = Tensor::empty(dtype, shape);
    auto* data = static_cast<T*>(tensor.data());
    std::int64_t value = 0;
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      if (below(4) == 0) ++value;
      data[i] = static_cast<T>(dtype == DType::boolean ? below(2) : value);
      if (size_of(dtype) == 8 && below(8) == 0) data[i] = static_cast<T>((std::int64_t{5} << 32) - 3);
      if (dtype == DType::u32 && below(8) == 0) data[i] = static_cast<T>(-7);
      if (size_of(dtype) <= 2 && dtype != DType::boolean && below(12) == 0) data[i] = static_cast<T>(-2);
    }
    bind(name, tensor);
  }

  void bind(const std::string& name, const Tensor& tensor) {
    tensors_.push_back(tensor);
    bindings_.captures[name] = tensor;
  }

  std::mt19937_64 rng_;
  Vocabulary vocabulary_;
  std::vector<Tensor> tensors_;
  Bindings bindings_;
  std::array<std::vector<expr::Op>, 3> operations_;  // by result type
  std::array<int, expr::kOpCount> counts_{};
};

namespace detail {

inline Expr simplest(ExprType type, bool second) {
  if (type == ExprType::f32) return second ? 1.0 : 0.0;
  if (type == ExprType::i32) return second ? 1 : 0;
  return second;
}

/// Smaller means simpler: first fewer nodes, then fewer leaves other than the simplest constants.
inline std::pair<std::size_t, std::size_t> simplicity(const Expr& e) {
  const std::vector<const expr::Node*> nodes = expr::post_order(e);
  const auto odd = std::count_if(nodes.begin(), nodes.end(), [](const expr::Node* node) {
    const Expr zero = simplest(node->type, false);
    const Expr one = simplest(node->type, true);
    return node->operands.empty() && node != zero.node() && node != one.node();
  });
  return {nodes.size(), static_cast<std::size_t>(odd)};
}

/// `root` and everything below it, users before operands.
inline std::vector<Expr> parts(const Expr& root) {
  std::vector<Expr> all = {root};
  std::unordered_set<const expr::Node*> seen = {root.node()};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Expr user = all[i];
    for (const auto& below : user.node()->operands) {
      if (seen.insert(below.get()).second) all.emplace_back(below);
    }
  }
  return all;
}

/// Replacements for a part: the simplest constants, and everything of its type below it.
inline std::vector<Expr> replacements(const Expr& at) {
  std::vector<Expr> all = {simplest(at.type(), false), simplest(at.type(), true)};
  for (const Expr& part : parts(at)) {
    if (part.type() == at.type()) all.push_back(part);
  }
  return all;
}

inline Expr replaced(const Expr& root, const expr::Node* target, const Expr& replacement) {
  return expr::rewrite(root, [&](const expr::Node& node, std::span<const Expr> operands) {
    return &node == target ? replacement : expr::with_operands(node, operands);
  });
}

/// One step: a simpler expression of the same type that still fails, or an empty one.
inline Expr shrink_once(const Expr& failing, const std::function<bool(const Expr&)>& fails) {
  const auto now = simplicity(failing);
  for (const Expr& part : parts(failing)) {
    for (const Expr& replacement : replacements(part)) {
      const Expr candidate = replaced(failing, part.node(), replacement);
      if (simplicity(candidate) < now && fails(candidate)) return candidate;
    }
  }
  return {};
}

}  // namespace detail

/// The simplest expression found by replacing sub-expressions by their operands and by constants, as long as `fails`
/// says that it still fails. For messages: EXPECT_TRUE(ok) << print(shrink(e, fails)).
inline Expr shrink(Expr failing, const std::function<bool(const Expr&)>& fails) {
  for (Expr smaller = failing; !smaller.empty(); smaller = detail::shrink_once(failing, fails)) failing = smaller;
  return failing;
}

}  // namespace heddle::test
