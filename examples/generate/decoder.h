// The model of examples/train with a paged cache: only new characters go through its layers, and their keys and values
// are appended to those of the characters before them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "../train/model.h"
#include "paged_cache.h"

using Characters = std::vector<std::uint8_t>;

class Decoder {
 public:
  /// `cache` has as many layers as the model has blocks, and outlives the decoder, as the model does.
  Decoder(const Model& model, PagedCache& cache);

  /// The character that each sequence most probably goes on with after these new ones, at least one each. Long prompts
  /// and single characters stand side by side in one packed batch.
  Characters next(std::span<const Characters> characters);

 private:
  /// One call of next(): where sequences begin among the new rows and in the cache.
  struct Step {
    std::vector<std::int64_t> new_rows;
    heddle::Tensor starts;         // i32 [sequences + 1], on the device
    heddle::Tensor before, after;  // i32 [sequences], on the device: rows of the cache that count
    std::int64_t most_new_rows = 0;
  };
  Step step_of(std::span<const Characters> characters) const;
  /// o [rows, kWidth] of qkv [rows, 3 * kWidth].
  Matrix attend(std::size_t layer, const Matrix& qkv, const Step& step) const;

  const Model& model_;
  PagedCache& cache_;
  std::vector<heddle::AttentionOptions> options_;  // of each layer
  std::vector<heddle::Tensor> captures_;           // slopes and tables on the device
};
