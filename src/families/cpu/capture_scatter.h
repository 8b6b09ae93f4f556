// From the gradients of a tile's elements to the gradients of what their mods read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "families/cpu/cpu_backward_programs.h"
#include "tile_evaluator/tile_evaluator.h"

namespace heddle::cpu {

/// The gradient of a capture or param as it is summed up: row-major. One of the two.
template <class T>
struct GradientSumView {
  double* lane = nullptr;
  T* task = nullptr;
  Dims shape;
};

/// A tile of gradients by one read, [rows][stride]; the columns of `at` count, and what is masked is 0.
template <class T>
struct ReadTile {
  TilePosition at;
  const T* gradients;
  const T* scores;  // of the same layout; null unless an index depends on the score
  std::int64_t stride;
};

/// Buffers of one worker.
struct OffsetBuffers {
  std::int32_t* indices;  // [rows][ReadTile::stride], aligned to 64 bytes
  std::int64_t* offsets;  // [rows][plan::kBackwardKeys]
};

/// Adds a tile's gradients where its elements read. What is 0 is not added: an `at` that took its fill read nothing.
/// Indices outside give the nearest element inside.
template <class T>
void scatter(const ReadProgram& read, std::span<const TileMod> index_mods, const ReadTile<T>& tile,
             const GradientSumView<T>& sum, const OffsetBuffers& buffers);

}  // namespace heddle::cpu
