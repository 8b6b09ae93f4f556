// Attention problems with their options, run on the CPU backend alone and compared with plain loops in double.
#pragma once

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/cpu_caps.h"
#include "families/cpu/cpu_forward_plans.h"
#include "families/cpu/plain_attention.h"
#include "heddle/heddle.h"
#include "tile_evaluator/on_every_target.h"
#include "unit_roundoff.h"

namespace heddle {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline Tensor random_tensor(DType dtype, const Dims& shape, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Tensor x = Tensor::empty(DType::f64, shape);
  for (std::int64_t i = 0; i < x.count(); ++i) static_cast<double*>(x.data())[i] = normal(generator);
  return x.to(dtype);
}

inline Tensor nan_tensor(DType dtype, const Dims& shape) {
  Tensor x = Tensor::empty(DType::f64, shape);
  std::fill_n(static_cast<double*>(x.data()), x.count(), kNan);
  return x.to(dtype);
}

template <class T>
Tensor tensor_of(DType dtype, const std::vector<T>& values) {
  Tensor x = Tensor::empty(dtype, {std::ssize(values)});
  std::memcpy(x.data(), values.data(), values.size() * sizeof(T));
  return x;
}

inline void poke(const Tensor& x, const Dims& index, double value) {
  std::int64_t offset = 0;
  for (int axis = 0; axis < index.size(); ++axis) offset += index[axis] * x.view().strides[axis];
  ASSERT_TRUE(x.dtype() == DType::f32 || x.dtype() == DType::f64);
  if (x.dtype() == DType::f64) {
    static_cast<double*>(x.data())[offset] = value;
  } else {
    static_cast<float*>(x.data())[offset] = static_cast<float>(value);
  }
}

inline std::vector<std::byte> bytes_of(const Tensor& x) {
  const auto* begin = static_cast<const std::byte*>(x.data());
  return {begin, begin + x.count() * size_of(x.dtype())};
}

struct Shape {
  std::int64_t batch = 1, q_heads = 1, kv_heads = 1, q_rows = 1, kv_rows = 1, qk_dim = 1, v_dim = 1;
};

/// One attention in both forms: the library's options and the same as plain loops.
struct Attention {
  Tensor q, k, v;
  AttentionOptions options;
  PlainProblem plain;
  DType o_dtype;
  bool with_lse = true;

  explicit Attention(const Shape& s, DType dtype = DType::f32)
      : q(random_tensor(dtype, {s.batch, s.q_heads, s.q_rows, s.qk_dim}, 1)),
        k(random_tensor(dtype, {s.batch, s.kv_heads, s.kv_rows, s.qk_dim}, 2)),
        v(random_tensor(dtype, {s.batch, s.kv_heads, s.kv_rows, s.v_dim}, 3)),
        o_dtype(dtype == DType::e4m3 || dtype == DType::e5m2 ? DType::bf16 : dtype) {
    plain.scale = 1 / std::sqrt(static_cast<double>(s.qk_dim));
    for (std::int64_t b = 0; b < s.batch; ++b) plain.sequences.push_back({.q_len = s.q_rows, .kv_len = s.kv_rows});
    options.threads = 1;
    options.backend = BackendChoice::cpu;
  }
  Dims o_shape() const {
    return {std::max({q.shape()[0], k.shape()[0], v.shape()[0]}), q.shape()[1], q.shape()[2], v.shape()[3]};
  }

  struct Result {
    Tensor o, lse;
  };
  Result run() const {
    const Dims shape = o_shape();
    Result result{nan_tensor(o_dtype, shape), {}};
    std::optional<TensorView> lse;
    if (with_lse) {
      result.lse = nan_tensor(q.dtype() == DType::f64 ? DType::f64 : DType::f32, {shape[0], shape[1], shape[2]});
      lse = result.lse.view();
    }
    attention_into(q, k, v, result.o, lse, options);
    return result;
  }
};

/// Every row of o and lse against plain loops: the f32 (f64) arithmetic's error and one rounding of o.
inline void expect_plain(const Attention& a, const Attention::Result& result) {
  PlainProblem plain = a.plain;
  plain.q = a.q.to(DType::f64);
  plain.k = a.k.to(DType::f64);
  plain.v = a.v.to(DType::f64);
  const double compute = a.q.dtype() == DType::f64 ? 0x1p-53 : 0x1p-24;
  // If products multiply bf16, weights are rounded to it.
  const bool rounds = a.q.dtype() == DType::bf16 && cpu::cpu_caps().matrix_unit != device::MatrixUnit::none;
  const double weight = rounds ? test::unit_roundoff(DType::bf16) : 0;
  const double storage = test::unit_roundoff(a.o_dtype);
  const Dims shape = a.o_shape();
  for (std::size_t n = 0; n < plain.sequences.size(); ++n) {
    const Sequence& sequence = plain.sequences[n];
    const std::int64_t b = plain.packed ? 0 : static_cast<std::int64_t>(n);
    const std::int64_t padded = plain.packed ? sequence.q_len : shape[2];
    for (std::int64_t h = 0; h < shape[1]; ++h) {
      for (std::int64_t i = 0; i < padded; ++i) {
        PlainRow row;
        row.o.assign(static_cast<std::size_t>(shape[3]), 0);
        row.magnitude = row.o;
        if (i < sequence.q_len) row = plain_row(plain, static_cast<std::int64_t>(n), h, i);
        const std::int64_t at_row = sequence.q_begin + i;
        for (std::int64_t d = 0; d < shape[3]; ++d) {
          const double expected = row.o[static_cast<std::size_t>(d)];
          const double got = get_element(result.o, {b, h, at_row, d});
          if (got == expected) continue;
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(got)) << "sequence " << n << " head " << h << " row " << i << " got " << got;
            continue;
          }
          const double allowed = (weight + 40 * compute) * row.magnitude[static_cast<std::size_t>(d)] +
                                 storage * std::abs(expected) * 1.005 + 1e-300;
          ASSERT_LE(std::abs(got - expected), allowed) << "sequence " << n << " head " << h << " row " << i << " d "
                                                       << d << ": got " << got << ", expected " << expected;
        }
        if (!a.with_lse) continue;
        const double lse = get_element(result.lse, {b, h, at_row});
        if (std::isfinite(row.lse)) {
          ASSERT_NEAR(lse, row.lse, 40 * compute * std::max(1.0, std::abs(row.lse))) << "row " << i;
        } else if (std::isnan(row.lse)) {
          ASSERT_TRUE(std::isnan(lse)) << "row " << i << " got " << lse;
        } else {
          ASSERT_EQ(lse, row.lse) << "row " << i;
        }
      }
    }
  }
}

inline void expect_plain(const Attention& a) { expect_plain(a, a.run()); }

inline void make_causal(Attention& a) {
  a.options.mask_mod = mods::causal();
  a.plain.mods.mask = [](auto, auto, auto i, auto j) { return j <= i; };
}

}  // namespace heddle
