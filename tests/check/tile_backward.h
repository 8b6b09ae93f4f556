// A backward as a kernel computes it, in f32 and in another order than plain's, which a test can spoil: softcap,
// slopes, causal, weights, sinks, groups.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string_view>
#include <vector>

#include "check/plain.h"
#include "check/plain_backward.h"
#include "heddle/check.h"
#include "reference/reference_backward.h"

namespace heddle::test {

enum class Fault : std::uint8_t {
  none,
  no_delta,
  no_d_lse,           // in delta
  wrong_scale,        // of dq, by 1 %
  no_scale_of_k,      // dk
  no_group_sum,       // dk has the first query head of the group alone
  no_group_sum_of_v,  // dv too
  no_slope,           // dt/ds of the softcap is taken for 1
  no_weight,          // in dP
  no_weight_of_v,     // in dv
  mask_off_by_one,    // a query attends the key after it
  no_last_key,        // in dq
  no_last_query,      // in dk
  coarse_lse,         // rounded to 8 bits
  coarse_weights,     // P w rounded to two bits fewer
  coarse_sums,        // dk summed in the storage dtype
  one_row,            // of dq is its neighbour's
  sink_sign,
  no_sink_share,     // dsink of the first batch entry alone
  no_slopes_batch,   // the slopes' gradient too
  slopes_of_scores,  // dt of the slopes times dt/ds
  slopes_of_rounded  // dt of the slopes rounded to storage
};
inline constexpr int kFaults = 22;

class TileBackward {
 public:
  static constexpr std::int64_t kBatch = 2, kHeads = 4, kKvHeads = 2, kRows = 19, kDim = 16;

  /// How scores are spread: all below a cap of 2, or so that a row has few keys with weight.
  enum class Scores : std::uint8_t { capped, peaked };

  TileBackward(DType dtype, std::uint64_t seed) : TileBackward(dtype, seed, dtype) {}
  TileBackward(DType dtype, std::uint64_t seed, DType o_dtype, Scores scores = Scores::capped)
      : dtype_(dtype),
        rng_(seed),
        cap_(scores == Scores::capped ? 2 : 64),
        scale_(scores == Scores::capped ? 0.25F : 4) {
    q_ = draw(kHeads), k_ = draw(kKvHeads), v_ = draw(kKvHeads), d_o_ = draw(kHeads);
    d_lse_ = draw({kBatch, kHeads, kRows}, DType::f32);
    sinks_ = draw({kHeads}, DType::f32);
    slopes_ = draw({kHeads}, DType::f32);
    options_.sinks = sinks_;
    options_.bindings.captures["slopes"] = slopes_;
    options_.bindings.params["cap"] = cap_;
    options_.score_mod = parse("cap * tanh(score / cap) + slopes[h] * f32(kv_idx - q_idx)", Symbols(options_.bindings));
    options_.scale = scale_;
    options_.mask_mod = leaf::kv_idx() <= leaf::q_idx();
    options_.weight_mod = where((leaf::kv_idx() + leaf::q_idx()) % 3 == 0, Expr(0.0), Expr(1.5));
    options_.backend = BackendChoice::reference;
    o_ = Tensor::empty(o_dtype, q_.shape()), lse_ = Tensor::empty(DType::f32, d_lse_.shape());
    attention_into(q_, k_, v_, o_, lse_, options_);
  }

  GradientReport check(Fault fault) {
    compute(fault);
    const Tensor d_q = stored(dq_, kHeads), d_k = stored(dk_, kKvHeads), d_v = stored(dv_, kKvHeads);
    const Tensor d_sinks = small(d_sinks_), d_slopes = small(d_slopes_);
    return check_backward({.q = q_,
                           .k = k_,
                           .v = v_,
                           .o = o_,
                           .lse = lse_,
                           .d_o = d_o_,
                           .d_lse = d_lse_,
                           .dq = d_q,
                           .dk = d_k,
                           .dv = d_v,
                           .d_sinks = d_sinks,
                           .d_captures = {{"slopes", d_slopes}}},
                          options_);
  }

 private:
  using Floats = std::vector<float>;

  Tensor draw(const Dims& shape, DType dtype) {
    const Tensor tensor = Tensor::empty(DType::f32, shape);
    std::normal_distribution<float> normal;
    for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = normal(rng_);
    return tensor.to(dtype);
  }
  Tensor draw(std::int64_t heads) { return draw({kBatch, heads, kRows, kDim}, dtype_); }
  Tensor stored(const Floats& values, std::int64_t heads) const { return of({kBatch, heads, kRows, kDim}, values); }
  Tensor of(const Dims& shape, const Floats& values) const {
    const Tensor tensor = Tensor::empty(DType::f32, shape);
    std::copy(values.begin(), values.end(), static_cast<float*>(tensor.data()));
    return tensor.to(dtype_);
  }
  static Tensor small(const Floats& values) {
    const Tensor tensor = Tensor::empty(DType::f32, {kHeads});
    std::copy(values.begin(), values.end(), static_cast<float*>(tensor.data()));
    return tensor;
  }
  static Floats floats(const Tensor& tensor) {
    const Tensor wide = tensor.to(DType::f32);
    const auto* data = static_cast<const float*>(wide.data());
    return {data, data + wide.count()};
  }
  float rounded(float x, int fewer = 0) const {
    return static_cast<float>(check::round_significand(x, check::significand_bits(dtype_) - fewer));
  }

  void compute(Fault fault) {
    const Floats q = floats(q_), k = floats(k_), v = floats(v_), d_o = floats(d_o_), o = floats(o_), lse = floats(lse_),
                 d_lse = floats(d_lse_), sinks = floats(sinks_), slopes = floats(slopes_);
    dq_.assign(q.size(), 0), dk_.assign(k.size(), 0), dv_.assign(v.size(), 0);
    d_sinks_.assign(kHeads, 0), d_slopes_.assign(kHeads, 0);
    for (std::int64_t bh = kBatch * kHeads - 1; bh >= 0; --bh) {
      const std::int64_t b = bh / kHeads, h = bh % kHeads, kv = b * kKvHeads + h / 2;
      for (std::int64_t i = kRows - 1; i >= 0; --i) {
        const std::size_t row = at(bh, i);
        float delta = fault == Fault::no_d_lse ? 0 : -d_lse[offset(bh, i)];
        for (std::size_t d = kDim; d-- > 0;) delta += d_o[row + d] * o[row + d];
        if (fault == Fault::no_delta) delta = 0;
        float l = lse[offset(bh, i)];
        if (fault == Fault::coarse_lse) l = static_cast<float>(check::round_significand(l, 8));
        const float d_sink = -std::exp(sinks[static_cast<std::size_t>(h)] - l) * delta;
        if (fault != Fault::no_sink_share || b == 0) {
          d_sinks_[static_cast<std::size_t>(h)] += fault == Fault::sink_sign ? -d_sink : d_sink;
        }
        const std::int64_t last = std::min(kRows - 1, i + (fault == Fault::mask_off_by_one ? 1 : 0));
        for (std::int64_t j = last; j >= 0; --j) {
          const std::size_t key = at(kv, j);
          float s = 0, d_p = 0;
          for (std::size_t d = kDim; d-- > 0;) {
            s += q[row + d] * k[key + d];
            d_p += d_o[row + d] * v[key + d];
          }
          const float capped = std::tanh(scale_ * s / cap_);
          const auto distance = static_cast<float>(j - i);
          const float t = cap_ * capped + slopes[static_cast<std::size_t>(h)] * distance;
          const float slope = fault == Fault::no_slope ? 1 : 1 - capped * capped;
          const float w = (i + j) % 3 == 0 ? 0.0F : 1.5F;
          constexpr float kLog2e = 1.44269504F;
          const float p = std::exp2(kLog2e * t - kLog2e * l);
          const float d_t = p * ((fault == Fault::no_weight ? 1.5F : w) * d_p - delta);
          const float d_s = rounded(d_t * slope);
          const float p_w =
              rounded(fault == Fault::no_weight_of_v ? p * 1.5F : p * w, fault == Fault::coarse_weights ? 2 : 0);
          if (fault != Fault::no_slopes_batch || b == 0) {
            const float of_slope = fault == Fault::slopes_of_rounded ? rounded(d_t) : d_t;
            d_slopes_[static_cast<std::size_t>(h)] +=
                of_slope * distance * (fault == Fault::slopes_of_scores ? slope : 1);
          }
          const bool in_q = fault != Fault::no_last_key || j < kRows - 1;
          const bool in_k =
              (fault != Fault::no_group_sum || h % 2 == 0) && (fault != Fault::no_last_query || i < kRows - 1);
          const bool in_v = fault != Fault::no_group_sum_of_v || h % 2 == 0;
          for (std::size_t d = 0; d < kDim; ++d) {
            if (in_q) dq_[row + d] += d_s * k[key + d];
            if (in_k) dk_[key + d] += d_s * q[row + d];
            if (in_v) dv_[key + d] += p_w * d_o[row + d];
            if (fault == Fault::coarse_sums) dk_[key + d] = rounded(dk_[key + d], 1);
          }
        }
      }
    }
    for (float& x : dq_) x *= fault == Fault::wrong_scale ? scale_ * 1.01F : scale_;
    for (float& x : dk_) x *= fault == Fault::no_scale_of_k ? 1 : scale_;
    if (fault == Fault::one_row) std::copy_n(dq_.begin() + kDim * 7, kDim, dq_.begin() + kDim * 8);
  }
  static std::size_t offset(std::int64_t head, std::int64_t row) {
    return static_cast<std::size_t>(head * kRows + row);
  }
  static std::size_t at(std::int64_t head, std::int64_t row) { return offset(head, row) * kDim; }

  DType dtype_;
  std::mt19937_64 rng_;
  const float cap_, scale_;
  Tensor q_, k_, v_, d_o_, d_lse_, sinks_, slopes_, o_, lse_;
  AttentionOptions options_;
  Floats dq_, dk_, dv_, d_sinks_, d_slopes_;
};

}  // namespace heddle::test
