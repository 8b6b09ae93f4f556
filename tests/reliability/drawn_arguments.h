// Arguments of attentions, drawn at random.
#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "heddle/heddle.h"
#include "reliability/call_settings.h"

namespace heddle::test {

inline std::int64_t drawn(std::mt19937_64& random, std::int64_t least, std::int64_t most) {
  return least + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most - least + 1));
}

/// Numbers in [-1, 1), of any floating dtype.
Tensor drawn_reals(std::mt19937_64& random, DType dtype, const Dims& shape);
Tensor integers(const std::vector<std::int32_t>& values);

/// An attention [B, Hq, Sq, D] with everything that its options point to.
struct DrawnAttention {
  Tensor q, k, v, o, lse, sinks, slopes, documents, lengths;
  std::string score_mod, mask_mod;  // as text
  AttentionOptions options;

  DrawnAttention(std::mt19937_64& random, const CallSettings& settings);
  DrawnAttention(const DrawnAttention&) = delete;
  DrawnAttention& operator=(const DrawnAttention&) = delete;

  AttentionTensors tensors() const;
  /// A hash of o and lse.
  std::uint64_t results() const;
};

}  // namespace heddle::test
