// How far rounding errors may move the scores of one row, and so its weights. check.h has the rules.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reference/element_mods.h"

namespace heddle::reference {

/// A bound of an error times |x|. Infinity times 0 is 0: neither what does not err nor a term that is 0 adds to a
/// bound.
inline double times_size(double bound, double x) { return x == 0 || bound == 0 ? 0 : bound * std::abs(x); }

/// Inputs of one row, as doubles, exactly as stored; v alone is multiplied by its descale factor.
struct RowInputs {
  RowPosition position;           // i counts from the sequence's start
  std::int64_t kv_len;            // keys of the sequence
  double scale;                   // of the scores; q's and k's descale factors are in it
  double v_descale;               // is in `values`
  double sink;                    // of the head; -inf when there are none
  std::span<const double> query;  // [Dqk]
  const double* keys;             // [kv_len, Dqk]
  const double* values;           // [kv_len, Dv]
};

/// How far rounding errors may move a row's scores, and so its weights.
struct RowBounds {
  /// m: the largest |t|, |sink| and half of |scale| sum |q_d k_d| of what takes part with a weight that is not flushed
  /// to 0. A relative error of 1 in the reals means an error of about 1 + m in the exponent of p, or of m in a p that
  /// is t itself. Of a row whose scores are proven: the largest m - t instead.
  double exponent = 0;
  /// The largest of |t| and |scale| sum |q_d k_d| of the scores that may be the row's largest, of which one decides.
  double score_terms = 0;
  bool proven = false;             // the reals compute the scores exactly, or as equal numbers
  double lse_floor = 0;            // of m + ln l, in whatever number of words
  std::span<const double> shifts;  // by key: what p / l differs by in the reals, beyond rounding; empty: by nothing

  /// By how much rounding errors may change p / l of key j. `share` is p / l, `growth` exp(e) - 1.
  double error_of_share(std::size_t j, double share, double growth) const {
    const double shift = shifts.empty() ? 0 : shifts[j];
    return std::min(1.0, shift + (share + shift) * growth);
  }
};

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
