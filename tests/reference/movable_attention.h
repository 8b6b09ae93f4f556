// A small attention in float64 whose inputs can be moved a little, and its gradients against finite differences of
//
//   loss = sum o dO + sum lse dlse
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "expr/finite_differences.h"
#include "problem/check_run.h"
#include "reference/attend.h"
#include "reference/reference_backward.h"

namespace heddle::test {

inline Tensor normal_tensor(const Dims& shape, std::uint64_t seed) {
  const Tensor tensor = Tensor::empty(DType::f64, shape);
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal;
  for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<double*>(tensor.data())[i] = normal(rng);
  return tensor;
}

/// Result of a check of gradients.
struct GradientVerdict {
  int told = 0;         // points that were judged
  int nonzero = 0;      // of them, with a slope that is not 0
  int points = 0;       // that were asked about
  std::string fault{};  // of the first wrong one
};

class MovableAttention {
 public:
  /// Views of `given` stay the caller's, and so do captures: those of f64 are moved.
  MovableAttention(const Dims& q_shape, const Dims& k_shape, const Dims& v_shape, const AttentionOptions& given,
                   std::uint64_t seed = 1)
      : q(normal_tensor(q_shape, seed)),
        k(normal_tensor(k_shape, seed + 1)),
        v(normal_tensor(v_shape, seed + 2)),
        options(given) {
    options.threads = 1;
    const problem::Outputs outputs = problem::outputs_of(q, k, v, options);
    o_ = Tensor::zeros(DType::f64, outputs.o_shape);
    d_o = normal_tensor(outputs.o_shape, seed + 3);
    tensors_ = {q, k, v, o_, {}};
    if (options.normalizer == Normalizer::softmax) {
      lse_ = Tensor::zeros(DType::f64, outputs.lse_shape);
      d_lse = normal_tensor(outputs.lse_shape, seed + 4);
      tensors_.lse = lse_;
    }
    problem_ = problem::validate(tensors_, options);
  }

  double loss() const {
    reference::Sum sum = 0;
    reference::attend(problem_, arguments(), 0, [&](const auto& index, const auto* row, const auto& result) {
      if (row == nullptr) return;
      for (std::int64_t d = 0; d < problem_.v_dim; ++d) {
        const double o = result.o[static_cast<std::size_t>(d)];
        sum += static_cast<reference::Sum>(o) * get_element(d_o, {index.batch, index.head, index.row, d});
      }
      if (d_lse && std::isfinite(result.lse())) {
        sum += static_cast<reference::Sum>(result.lse()) * get_element(*d_lse, {index.batch, index.head, index.row});
      }
    });
    return static_cast<double>(sum);
  }

  reference::Gradients gradients(double step = 0) const {
    reference::BackwardArguments backward{
        .d_o = d_o, .d_lse = {}, .of = {true, true}, .of_sinks = options.sinks.has_value()};
    if (d_lse) backward.d_lse = *d_lse;
    return reference::attend_backward(problem_, arguments(), backward, step);
  }

  /// Every input that has a gradient, or a share of them: `take` is asked about each.
  GradientVerdict check(const std::function<bool()>& take = [] { return true; }) {
    GradientVerdict verdict;
    const reference::Gradients gradients = this->gradients();
    if (!std::isfinite(loss())) return verdict;
    const auto all = [&](const std::string& name, const void* data, const reference::Gradient& gradient) {
      for (std::int64_t i = 0; i < gradient.value.count(); ++i) {
        if (!take()) continue;
        // The cast is sound: this test made the tensors, and not as const.
        check_one(fmt::format("{}[{}]", name, i), const_cast<double*>(static_cast<const double*>(data)) + i,
                  static_cast<const double*>(gradient.value.data())[i], verdict);
      }
    };
    all("q", q.data(), gradients.q);
    all("k", k.data(), gradients.k);
    all("v", v.data(), gradients.v);
    if (gradients.sinks) all("sinks", options.sinks->data, *gradients.sinks);
    for (const auto& [name, gradient] : gradients.captures)
      all(name, options.bindings.captures.at(name).data, gradient);
    for (const auto& [name, gradient] : gradients.params) {
      all(name, &std::get<double>(options.bindings.params.at(name)), gradient);
    }
    return verdict;
  }

  const problem::AttentionProblem& problem() const { return problem_; }
  backend::RunArguments arguments() const {
    return {.tensors = tensors_,
            .options = &options,
            .bindings = &options.bindings,
            .block_mask = options.block_mask.get(),
            .workspace = nullptr};
  }

  Tensor q, k, v, d_o;
  std::optional<Tensor> d_lse;
  AttentionOptions options;

 private:
  void check_one(const std::string& name, double* moving, double gradient, GradientVerdict& verdict) {
    ++verdict.points;
    const double start = *moving;
    const double step = 1e-3 * std::max(1.0, std::abs(start));
    const auto moved = [&](double by) {
      *moving = start + by;
      const double value = loss();
      *moving = start;
      return value;
    };
    const auto steps = [&](double by) {
      *moving = start + by;
      std::vector<expr::Value> values = this->steps();
      *moving = start;
      return values;
    };
    const std::vector<expr::Value> here = steps(0);
    if (steps(-step) != here || steps(step) != here) return;
    const Verdict one = compare(slope_at_zero(moved, step), gradient);
    verdict.told += one.told ? 1 : 0;
    verdict.nonzero += one.told && std::abs(gradient) > 1e-6 ? 1 : 0;
    if (!one.fault.empty() && verdict.fault.empty()) verdict.fault = fmt::format("{}: {}", name, one.fault);
  }

  /// Whatever jumps, of all mods at all elements: who attends, whole numbers, comparisons.
  std::vector<expr::Value> steps() const {
    std::vector<expr::Value> values;
    const reference::ElementMods mods(problem_, arguments(), expr::Precision::f64);
    std::vector<expr::Interpreter> jumps;
    for (const Expr* mod : {&options.score_mod, &options.mask_mod, &options.weight_mod}) {
      if (mod->empty()) continue;
      for (const Expr& e : steps_of(*mod)) jumps.emplace_back(e, options.bindings, expr::Precision::f64);
    }
    if (jumps.empty()) return values;
    reference::attend(problem_, arguments(), 0, [&](const auto&, const auto* row, const auto&) {
      if (row == nullptr) return;
      for (std::int64_t j = 0; j < row->kv_len; ++j) {
        values.emplace_back(mods.attends(row->position, j));
        expr::Element element = mods.element(row->position, j);
        element.score = row->scale * reference::dot(row->query, row->keys + j * problem_.qk_dim).sum;
        for (const expr::Interpreter& jump : jumps) values.push_back(jump(element));
      }
    });
    return values;
  }

  Tensor o_, lse_;
  AttentionTensors tensors_;
  problem::AttentionProblem problem_;
};

}  // namespace heddle::test
