// Random masks as people write them, over a few captures and params, and random shapes for them. Everything follows
// from the seed.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "heddle/block_mask.h"
#include "heddle/expr.h"

namespace heddle::test {

class RandomMasks {
 public:
  static constexpr std::int64_t kTokens = 512;  // the captures cover positions and tokens up to here

  explicit RandomMasks(std::uint64_t seed) : rng_(seed) {
    bind("doc", DType::i32, {kTokens});
    bind("length", DType::i64, {4});
    bind("slope", DType::f32, {4});
    bind("pattern", DType::boolean, {40, 48});
    bind("colour", DType::u8, {kTokens});
    fill();
    bindings_.params = {{"window", 1 + below(40)}, {"shift", below(9) - 4}, {"rate", 0.5}, {"on", below(2) == 0}};
  }

  Expr draw(int depth = 3) {
    if (depth == 0 || below(3) == 0) return atom();
    const Expr x = draw(depth - 1), y = draw(depth - 1);
    switch (below(6)) {
      case 0:
      case 1:
        return x & y;
      case 2:
        return x | y;
      case 3:
        return !x;
      case 4:
        return x ^ y;
      default:
        return where(atom(), x, y);
    }
  }

  MaskShape shape() {
    constexpr std::array<int, 12> lengths{0, 1, 2, 5, 16, 17, 31, 32, 33, 48, 63, 70};
    MaskShape shape;
    shape.heads = 1 + below(3);
    const int batch = 1 + below(3), kind = below(4);
    Sequence sequence;
    for (int i = 0; i < batch; ++i) {
      if (i == 0 || kind != 0) {
        sequence.q_len = lengths[static_cast<std::size_t>(below(12))];
        sequence.kv_len = lengths[static_cast<std::size_t>(below(12))];
      }
      if (kind == 1) sequence.q_start = below(60);
      if (kind == 1 && below(2) == 0) sequence.kv_start = below(60);
      shape.sequences.push_back(sequence);
      if (kind == 2) {  // packed
        sequence.q_begin += sequence.q_len;
        sequence.kv_begin += sequence.kv_len;
      }
    }
    return shape;
  }

  BlockSize block() {
    constexpr std::array<BlockSize, 8> sizes{
        {{1, 1}, {3, 5}, {16, 32}, {128, 128}, {1, 64}, {7, 1}, {16, 16}, {1 << 20, 1000}}};
    return sizes[static_cast<std::size_t>(below(8))];
  }

  const Bindings& bindings() const { return bindings_; }
  int below(int bound) { return static_cast<int>(rng_() % static_cast<std::uint64_t>(bound)); }

  /// New values for every name.
  void fill() {
    std::int32_t document = 0;
    for (std::int64_t i = 0; i < kTokens; ++i) {
      if (below(20) == 0) ++document;
      static_cast<std::int32_t*>(tensors_[0].data())[i] = document;
    }
    for (int i = 0; i < 4; ++i) {
      static_cast<std::int64_t*>(tensors_[1].data())[i] = (std::int64_t{7} << 32) + below(70);
      static_cast<float*>(tensors_[2].data())[i] = static_cast<float>(below(100)) / 64.0F;
    }
    auto* colour = static_cast<std::uint8_t*>(tensors_[4].data());
    for (int i = 0; i < kTokens; ++i)
      colour[i] = static_cast<std::uint8_t>(i % 40 == 0 ? below(256) : colour[std::max(0, i - 1)]);
    // Rectangles of ones, so that whole blocks are full or empty.
    auto* pattern = static_cast<std::uint8_t*>(tensors_[3].data());
    for (int i = 0; i < 40 * 48; ++i) pattern[i] = 0;
    for (int n = 0; n < 4; ++n) {
      const int top = below(40), left = below(48), bottom = top + below(40 - top), right = left + below(48 - left);
      for (int r = top; r <= bottom; ++r) {
        for (int c = left; c <= right; ++c) pattern[r * 48 + c] = 1;
      }
    }
  }

 private:
  Expr atom() {
    const Expr q = leaf::q_idx(), kv = leaf::kv_idx(), window = param("window", ExprType::i32);
    const Capture doc("doc", DType::i32, 1), length("length", DType::i64, 1), slope("slope", DType::f32, 1);
    const Capture pattern("pattern", DType::boolean, 2);
    const Capture colour("colour", DType::u8, 1);
    switch (below(22)) {
      case 0:
      case 1:
        return compare(affine(), affine());
      case 2:
        return floor_div(q + below(9), 1 + below(20)) >= floor_div(kv, 1 + below(20));
      case 3:
        return (q - kv) % (1 + below(9)) == below(3);
      case 4:
        return doc(leaf::q_token()) == doc(leaf::kv_token());
      case 5:
        return doc(leaf::q_idx()) >= doc(leaf::kv_idx()) + (below(3) - 1);
      case 6:
        return kv < length(leaf::b());
      case 7:
        return abs(q - kv) <= window;
      case 8:
        return pattern.at({q, kv}, Expr(below(2) == 0));
      case 9:
        return to_f32(kv) <= slope(leaf::h()) * to_f32(q);
      case 10:
        return random_uniform(below(3), leaf::b(), leaf::h(), q, kv) < param("rate", ExprType::f32);
      case 11:
        return q - leaf::q_start() - leaf::q_len() >= kv - leaf::kv_start() - leaf::kv_len();
      // Rows and columns that repeat.
      case 12:
        return (below(2) == 0 ? q : kv) % (1 + below(6)) == 0;
      case 13:
        return floor_div(q, 1 + below(20)) % (1 + below(4)) <= floor_div(kv, 1 + below(20)) % (1 + below(4));
      case 14:
        return (affine() + floor_div(q + below(9), 1 + below(20))) % (1 + below(40)) < 1 + below(6);
      case 15:
        return doc(q) % 3 == below(3);
      case 16:
        return min(q, kv) % 16 < max(floor_div(q, 8), leaf::h() + 1);
      case 17:
        return (colour(q) & (1 << below(8))) != 0;
      case 18:
        return colour(q) <= colour(kv);
      case 19:
        return ((affine() >> below(6)) & 3) == ((kv << below(3)) ^ below(4));
      case 20:
        return (q ^ kv) < (1 << below(7));
      default:
        return param("on", ExprType::boolean);
    }
  }

  Expr affine() {
    Expr sum = below(30) - 10;
    if (below(2) == 0) sum = sum + (below(5) - 2) * leaf::q_idx();
    if (below(2) == 0) sum = sum + (below(5) - 2) * leaf::kv_idx();
    if (below(6) == 0) sum = sum - leaf::h() * below(20);
    if (below(6) == 0) sum = sum - leaf::b() * below(20);
    if (below(6) == 0) sum = sum + param("shift", ExprType::i32);
    if (below(6) == 0) sum = sum + leaf::q_token() - leaf::kv_token();
    return sum;
  }

  Expr compare(const Expr& x, const Expr& y) {
    switch (below(6)) {
      case 0:
        return x < y;
      case 1:
        return x <= y;
      case 2:
        return x > y;
      case 3:
        return x >= y;
      case 4:
        return x == y;
      default:
        return x != y;
    }
  }

  void bind(const std::string& name, DType dtype, const Dims& shape) {
    tensors_.push_back(Tensor::zeros(dtype, shape));
    bindings_.captures[name] = tensors_.back();
  }

  std::mt19937_64 rng_;
  std::vector<Tensor> tensors_;
  Bindings bindings_;
};

/// Masks over the captures of RandomMasks that read outside them; `none` is an i32 tensor of rank 1 without elements.
inline constexpr std::array kMasksThatReadOutside = {"doc[q_idx + 30] == doc[kv_idx - 40]",
                                                     "doc[-q_idx] <= doc[kv_idx * 7]", "doc[kv_idx - q_idx] > 3",
                                                     "pattern[q_idx, kv_idx]", "none[q_idx] == 0 and q_idx >= kv_idx"};

}  // namespace heddle::test
