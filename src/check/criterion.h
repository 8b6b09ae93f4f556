// The criterion of check.h, one element at a time.
#pragma once

#include "heddle/check.h"

namespace heddle::check {

/// One element of a result and what it is judged by.
struct Judged {
  double value, reference, plain;
  double floor;      // of this element
  double tolerance;  // (b) without the rounding of the result: 4 u magnitude + floor
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
  double worst_ = 0;
};

}  // namespace heddle::check
