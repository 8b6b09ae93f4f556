// How far rounding errors may move the scores of one row, and so its weights. check.h has the rules.
#pragma once

#include <span>
#include <vector>

#include "reference/attend.h"

namespace heddle::reference {

/// The scores of one row, by key, and what they were made of.
struct RowScores {
  std::span<const double> s;      // scale * q.k
  std::span<const double> terms;  // |scale| sum |q_d k_d|
  std::span<const double> t;      // -inf where nothing attends
  double top = 0, log_sum = 0;    // softmax: m and ln l
  double largest = 0;             // softmax: of t
};

class RowBoundsFinder {
 public:
  /// in_reals: the mods in the problem's own precision. step: as attend() has it.
  RowBoundsFinder(const problem::AttentionProblem& problem, const ElementMods& in_reals, double step);

  RowBounds operator()(const RowInputs& row, const RowScores& scores);

 private:
  double error_of(double t, double terms) const;
  bool is_live(const RowScores& scores, double t, double terms) const;
  bool all_are_exact(const RowInputs& row, const RowScores& scores) const;
  bool all_are_equal(const RowInputs& row, const RowScores& scores, double& equal) const;
  void take_equal(const RowScores& scores, double equal, RowBounds& bounds);
  template <class F>
  void for_each_live(const RowScores& scores, F&& f) const;
  template <class F>
  bool all_live(const RowScores& scores, F&& holds) const;

  const problem::AttentionProblem& problem_;
  const ElementMods& in_reals_;
  const double step_;
  const int bits_;            // of a significand of the reals
  const double log_flushed_;  // ln of what the reals flush to 0
  std::vector<double> shifts_;
};

}  // namespace heddle::reference
