// An attention whose scores are far from 0, row by row, and what its gradients should be, in doubles: lse in two words,
// lse and lse_rest, has to keep all digits of ln l.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "heddle/attention.h"
#include "heddle/backward.h"

namespace heddle::test {

struct LargeShape {
  DType dtype = DType::f32;
  std::int64_t queries = 5, keys = 37, dim = 8, kv_heads = 1, group = 1;
  std::int64_t q_heads() const { return kv_heads * group; }
};

/// Where the scores' distance from 0 comes from.
enum class LargeForm {
  added,    // a capture is added to the score
  mapped,   // the same, to a function of the score
  of_keys,  // a number of the key is added: that of query 0
  of_rows,  // a number of the query is: that of key 0
  plain     // q.k itself
};

/// Scores are small integers times 1/2, plus a number for each query and key. Both are exact in f32, so that every
/// right kernel has the same scores.
class LargeScores {
 public:
  using Added = std::function<double(std::int64_t q_idx, std::int64_t kv_idx)>;

  /// `added`: what is added to each score. Form plain: one number for all, a power of two, and dim is at least 2.
  LargeScores(const LargeShape& shape, const Added& added, LargeForm form = LargeForm::added);
  void set_sink(double sink);

  AttentionTensors forward() const { return {.q = q, .k = k, .v = v, .o = o, .lse = lse, .lse_rest = rest}; }
  BackwardTensors backward() const;
  void attend(BackendChoice backend);
  /// Forward and backward.
  void differentiate(BackendChoice backend);

  /// The largest error of a gradient relative to the largest element of its tensor. Columns of q and k that are large
  /// do not count: huge terms cancel there.
  double error() const;
  /// The largest error of an element of o, by the element where that is above 1; and of lse + lse_rest.
  double error_of_o() const;
  double error_of_lse() const;

  LargeShape shape;
  Tensor q, k, v, d_o, o, lse, rest, dq, dk, dv;
  Tensor bias;                  // [queries, keys]: what is added
  std::optional<Tensor> terms;  // what the mod reads, if it reads any
  Tensor sinks, d_sinks;
  AttentionOptions options;

  static double element(const Tensor& tensor, std::int64_t i);
  static void set(const Tensor& tensor, std::int64_t i, double x);

 private:
  struct Row {
    std::vector<double> p;
    double of_sink, top, log_sum;
  };
  Row row(std::int64_t head, std::int64_t query) const;
  double score(std::int64_t head, std::int64_t query, std::int64_t key) const;
  double sink() const;
  double error_of(const Tensor& got, const std::vector<double>& want) const;
  void make_large(double level);

  LargeForm form_;
};

}  // namespace heddle::test
