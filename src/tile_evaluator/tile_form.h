// The form of a tile program whose last operations a caller computes itself.
#pragma once

#include <cstdint>

namespace heddle::cpu {

/// Operations on each score that the caller of a tile program computes itself, beside other work.
struct TileForm {
  enum class Kind : std::uint8_t {
    other,
    added,   // score + terms[r * terms_apart + c]
    capped,  // outside * tanh(inside * score)
  };
  Kind kind = Kind::other;
  const float* terms = nullptr;
  std::int64_t terms_apart = 0;  // from row to row; negative, maybe
  bool streamed = false;         // the terms stand in a tensor of f32, and the next columns' behind them
  float inside = 0, outside = 0;
};

}  // namespace heddle::cpu
