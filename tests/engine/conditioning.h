// Does f32 compute a mod? Others say nothing about a backend: their f32 results differ by rights.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "engine/attention_case.h"
#include "expr/interpret.h"
#include "expr/node.h"

namespace heddle::test {

/// Operations that backends may round differently: a mask that compares their results may differ by rights.
inline std::vector<expr::Op> inexact_operations() {
  std::vector<expr::Op> inexact;
  for (int op = 0; op < expr::kOpCount; ++op) {
    if (expr::info(static_cast<expr::Op>(op)).ulp > 0) inexact.push_back(static_cast<expr::Op>(op));
  }
  return inexact;
}

/// Freedom of a backend's scores beyond ops.def.
struct Latitude {
  /// Products round together with sums, divisions by a constant are products, tanh errs by 2^-22.
  bool contracted = false;
  /// How far a mod may move, times 1 + |mod|, when each of its operations errs as far as it may.
  double amplified = 0x1p-16;
};

/// Compares mods with f64 at every element of a case's [b, h, i, j], also when the score is off by what a product in
/// f32 may be off, and when every inexact operation errs as far as it may: a jump must not lie that close. The case has
/// whole sequences, no starts and the default scale.
class Conditioning {
 public:
  explicit Conditioning(const AttentionCase& c, const Latitude& latitude = {}) : c_(c), latitude_(latitude) {}

  /// Empty mods are good.
  bool good(const Expr& score, const Expr& weight) {
    if (!weight.empty() && !weight_good(weight)) return false;
    return score.empty() || score_good(score);
  }

  /// The leaves of every element, without its score; stops where visit(b, h, i, j, element) says false, and says so.
  template <class Visit>
  bool for_each(Visit&& visit) const {
    using expr::Leaf;
    const CaseSpec& spec = c_.spec();
    expr::Element at;
    at[Leaf::q_len] = static_cast<std::int32_t>(spec.q_rows);
    at[Leaf::kv_len] = static_cast<std::int32_t>(spec.kv_rows);
    for (std::int64_t b = 0; b < spec.batch; ++b) {
      for (std::int64_t h = 0; h < spec.q_heads(); ++h) {
        for (std::int64_t i = 0; i < spec.q_rows; ++i) {
          for (std::int64_t j = 0; j < spec.kv_rows; ++j) {
            at[Leaf::b] = static_cast<std::int32_t>(b);
            at[Leaf::h] = static_cast<std::int32_t>(h);
            at[Leaf::q_idx] = at[Leaf::q_token] = static_cast<std::int32_t>(i);
            at[Leaf::kv_idx] = at[Leaf::kv_token] = static_cast<std::int32_t>(j);
            if (!visit(b, h, i, j, at)) return false;
          }
        }
      }
    }
    return true;
  }

 private:
  using Interpreters = std::vector<expr::Interpreter>;

  int ulp_of(const expr::Node& node) const {
    const int own = expr::info(node.op).ulp;
    if (!latitude_.contracted || node.type != ExprType::f32) return own;
    if (node.op == expr::Op::tanh) return 6;
    return node.op == expr::Op::mul || node.op == expr::Op::div ? 1 : own;
  }

  /// The expression with every inexact operation off by what it may be, either way, and with zeros of min and max of
  /// either sign, since of two zeros any backend may take either one.
  Interpreters erring(const Expr& e, bool contracted) const {
    Interpreters both;
    for (const double direction : {-1.0, 1.0}) {
      const Expr erring = expr::rewrite(e, [&](const expr::Node& node, std::span<const Expr> operands) {
        const Expr same = expr::with_operands(node, operands);
        if (node.type == ExprType::f32 && (node.op == expr::Op::min || node.op == expr::Op::max)) {
          return direction > 0 ? same + 0.0 : -(-same + 0.0);
        }
        const int ulp = contracted ? ulp_of(node) : expr::info(node.op).ulp;
        return ulp == 0 ? same : same * (1 + direction * ulp * 0x1p-23);
      });
      both.emplace_back(erring, c_.options().bindings, expr::Precision::f32);
    }
    return both;
  }

  bool near(const Interpreters& erring, const expr::Element& at, double expected) const {
    return std::ranges::all_of(erring, [&](const expr::Interpreter& evaluate) {
      return std::abs(evaluate.real(at) - expected) <= latitude_.amplified * (1 + std::abs(expected));
    });
  }

  bool weight_good(const Expr& weight) const {
    const Bindings& bindings = c_.options().bindings;
    const expr::Interpreter exact(weight, bindings, expr::Precision::f64), f32(weight, bindings, expr::Precision::f32);
    const Interpreters errs = erring(weight, false);
    return for_each([&](std::int64_t, std::int64_t, std::int64_t, std::int64_t, const expr::Element& at) {
      const double w = exact.real(at);
      return std::abs(w) <= 1e3 && std::abs(f32.real(at) - w) <= 0x1p-23 * std::abs(w) && near(errs, at, w);
    });
  }

  bool score_good(const Expr& score) {
    compute_scores();
    const Bindings& bindings = c_.options().bindings;
    const expr::Interpreter exact(score, bindings, expr::Precision::f64), f32(score, bindings, expr::Precision::f32);
    const Interpreters errs = erring(score, latitude_.contracted);
    auto next = scores_.begin();
    return for_each([&](std::int64_t, std::int64_t, std::int64_t, std::int64_t, expr::Element& at) {
      const double s = *next++;
      at.score = s;
      const double t = exact.real(at);
      if (!std::isfinite(t) || std::abs(t) > 1e3) return false;
      for (const double off : {-0x1p-22, 0.0, 0x1p-22}) {
        at.score = static_cast<float>(s + off * (1 + std::abs(s)));
        if (!(std::abs(f32.real(at) - t) <= 0x1p-22 * (1 + std::abs(t))) || !near(errs, at, t)) return false;
      }
      return true;
    });
  }

  void compute_scores() {
    if (!scores_.empty()) return;
    const CaseSpec& spec = c_.spec();
    for_each([&](std::int64_t b, std::int64_t h, std::int64_t i, std::int64_t j, const expr::Element&) {
      double sum = 0;
      for (std::int64_t d = 0; d < spec.qk_dim; ++d) {
        sum += get_element(c_.q.view(), {b, h, i, d}) * get_element(c_.k.view(), {b, h / spec.group, j, d});
      }
      scores_.push_back(sum / std::sqrt(static_cast<double>(spec.qk_dim)));
      return true;
    });
  }

  const AttentionCase& c_;
  const Latitude latitude_;
  std::vector<double> scores_;  // of the elements, in their order
};

}  // namespace heddle::test
