// The criterion of check.h, one element at a time.
#pragma once

#include <span>
#include <string>
#include <utility>

#include "heddle/check.h"
#include "problem/problem.h"

namespace heddle::check {

/// Rounding of one step of a sum, relative to the largest of its terms: eight units of the reals.
inline constexpr double kSumUnit = 0x1p-21, kSumUnitF64 = 0x1p-50;
/// Rounding of one step where Hopper's tensor cores sum e4m3 and e5m2 products. They keep some 14 bits: "limited to
/// retaining around 14 bits" (DeepSeek-V3 Technical Report, arXiv 2412.19437, 3.3.2, of an H800). Used only for results
/// of a GPU whose q, k and v all have 8 bits.
inline constexpr double kFp8SumUnit = 0x1p-14;

/// With allow_tf32, operands of products of f32, weights among them, may be rounded to 11 bits, by 2^-11 of themselves
/// each, so a product errs by up to 2^-10. A score then errs by 2^-10 of the sum of its terms' magnitudes, half of
/// which are in m (check.h): 2^-9 of m.
inline constexpr double kTf32SumUnit = 0x1p-9;

/// The rounding of one step of a sum in this attention. on_gpu: a GPU computed the result that is judged.
double sum_step(const problem::AttentionProblem& problem, bool on_gpu);
/// Unit roundoff.
double unit_of(DType dtype);
/// u: the unit roundoff of the storage dtype, q's.
double storage_unit(const problem::AttentionProblem& problem);

/// One element of a result and what it is judged by.
struct Judged {
  double value, reference, plain;
  double floor;         // of this element
  double tolerance;     // (b) without the rounding of the result: 4 u magnitude + floor
  double rounding = 0;  // of o: what rounding one weight may change
  bool alike = false;   // it is what rounding all equal weights of the row may change
};

/// Gathers the figures of one tensor.
class Criterion {
 public:
  /// `by_row`: (b) applies.
  Criterion(DType dtype, bool by_row) : dtype_(dtype), by_row_(by_row) {}

  void add(const Judged& element);
  void merge(const Criterion& other);
  TensorCheck finish() const;

 private:
  struct Errors {
    double largest = 0, sum = 0;
    void add(double error);
    void merge(const Errors& other);
  };

  bool special_matches(const Judged& element, double expected) const;

  DType dtype_;
  bool by_row_;
  std::int64_t finite_ = 0, mismatched_specials_ = 0;
  Errors own_, plain_, rounding_, floor_;  // rounding: of the reference, rounded to the dtype
  Errors
      weight_;    // what rounding one weight may change; its sum is that of the row (a merged criterion) which has most
  Errors alike_;  // what rounding equal weights may change; rows of equal scores may all err to one side
  double worst_ = 0;
};

/// The figures of some tensors as text, a line each.
std::string table(std::span<const std::pair<std::string, TensorCheck>> tensors);

}  // namespace heddle::check
