// A right result of the reference, which a test spoils and has judged.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <random>

#include "base/element.h"
#include "heddle/check.h"
#include "heddle/heddle.h"

namespace heddle::test {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

inline Tensor random_tensor(DType dtype, const Dims& shape, std::uint64_t seed) {
  Tensor tensor = Tensor::empty(DType::f32, shape);
  std::mt19937_64 rng(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = normal(rng);
  return tensor.to(dtype);
}

/// A right result of the reference backend, rounded once, which a test then spoils.
struct Judged {
  Tensor q, k, v, o, lse;
  AttentionOptions options;

  explicit Judged(DType dtype, const AttentionOptions& given = {}, const Dims& q_shape = {1, 2, 20, 16},
                  const Dims& kv_shape = {1, 2, 40, 16})
      : q(random_tensor(dtype, q_shape, 1)),
        k(random_tensor(dtype, kv_shape, 2)),
        v(random_tensor(dtype, kv_shape, 3)),
        options(given) {
    compute();
  }
  void compute() {
    options.backend = BackendChoice::reference;
    const bool with_lse = options.normalizer == Normalizer::softmax;
    const AttentionResult result = attention(q, k, v, options, with_lse);
    o = result.o;
    lse = result.lse;
  }
  CheckReport check() const {
    std::optional<ConstTensorView> given_lse;
    if (options.normalizer == Normalizer::softmax) given_lse = lse;
    return check_attention(q, k, v, options, o, given_lse);
  }
  double get(const Tensor& tensor, std::int64_t i) const {
    return base::load_element(tensor.data(), tensor.dtype(), i);
  }
  void set(const Tensor& tensor, std::int64_t i, double x) { base::store_element(tensor.data(), tensor.dtype(), i, x); }
  // Every element of o becomes f(element).
  void spoil_o(const std::function<double(double)>& f) {
    for (std::int64_t i = 0; i < o.count(); ++i) set(o, i, f(get(o, i)));
  }
};

inline constexpr DType kAll[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2};

}  // namespace heddle::test
