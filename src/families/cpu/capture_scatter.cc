#include "families/cpu/capture_scatter.h"

#include <algorithm>

#include "families/cpu/cpu_backward_plans.h"
#include "families/cpu/cpu_backward_step.h"

namespace heddle::cpu {
namespace {

constexpr std::int64_t kNowhere = -1;

/// The row-major number of the element that each element of a tile reads, or kNowhere if it reads none: a program an
/// axis, run over as much of the tile as the indices vary over.
class ElementOffsets {
 public:
  ElementOffsets(std::span<const TileMod> index_mods, bool skips_outside, const Dims& shape,
                 const OffsetBuffers& buffers, std::int64_t stride)
      : index_mods_(index_mods),
        skips_outside_(skips_outside),
        shape_(shape),
        indices_(buffers.indices),
        offsets_(buffers.offsets),
        stride_(stride) {}

  /// Row r's offset in column c is at [r * kBackwardKeys + c] of what this returns, until the next call.
  const std::int64_t* find(const TilePosition& at, const void* scores = nullptr) const {
    for (int r = 0; r < at.rows; ++r) std::fill_n(offsets_ + r * plan::kBackwardKeys, at.columns, 0);
    for (int axis = 0; axis < shape_.size(); ++axis) {
      const TileMod& mod = index_mods_[static_cast<std::size_t>(axis)];
      mod.program->run_i32(at, scores, indices_, stride_, *mod.scratch);
      const std::int64_t extent = shape_[axis];
      for (int r = 0; r < at.rows; ++r) {
        const std::int32_t* row = indices_ + r * stride_;
        std::int64_t* to = offsets_ + r * plan::kBackwardKeys;
        for (int c = 0; c < at.columns; ++c) {
          const std::int64_t inside = std::clamp<std::int64_t>(row[c], 0, extent - 1);
          const bool nowhere = skips_outside_ && (to[c] == kNowhere || inside != row[c]);
          to[c] = nowhere ? kNowhere : to[c] * extent + inside;
        }
      }
    }
    return offsets_;
  }

 private:
  std::span<const TileMod> index_mods_;
  bool skips_outside_;
  const Dims& shape_;
  std::int32_t* indices_;
  std::int64_t* offsets_;
  std::int64_t stride_;
};

template <class T>
void add(const GradientSumView<T>& sum, std::int64_t offset, double gradient) {
  if (gradient == 0 || offset == kNowhere) return;
  if (sum.lane != nullptr) {
    sum.lane[offset] += gradient;
  } else {
    sum.task[offset] += static_cast<T>(gradient);
  }
}

template <class T>
double sum_of_row(const T* row, int columns) {
  double sums[4] = {};
  int c = 0;
  for (; c + 4 <= columns; c += 4) {
    for (int i = 0; i < 4; ++i) sums[i] += static_cast<double>(row[c + i]);
  }
  for (; c < columns; ++c) sums[0] += static_cast<double>(row[c]);
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// The key's row of neighbours: [first, first + columns) of the last axis, all inside it, or kNowhere.
template <class T>
void add_neighbours(const GradientSumView<T>& sum, std::int64_t first, const T* row, int columns) {
  if (first == kNowhere) return;
  if (sum.lane != nullptr) {
    for (int c = 0; c < columns; ++c) sum.lane[first + c] += static_cast<double>(row[c]);
  } else {
    add_row(row, columns, sum.task + first);
  }
}

template <class T>
void add_elements(const ElementOffsets& offsets, const ReadTile<T>& tile, const GradientSumView<T>& sum) {
  const std::int64_t* offset = offsets.find(tile.at, tile.scores);
  for (int r = 0; r < tile.at.rows; ++r, offset += plan::kBackwardKeys) {
    const T* gradients = tile.gradients + r * tile.stride;
    for (int c = 0; c < tile.at.columns; ++c) add(sum, offset[c], static_cast<double>(gradients[c]));
  }
}

/// Rows whose last index is kv_idx, so that a row's elements are neighbours.
template <class T>
void add_key_rows(const ElementOffsets& offsets, const ReadTile<T>& tile, const GradientSumView<T>& sum) {
  const std::int64_t extent = sum.shape[sum.shape.size() - 1];
  const std::int64_t first = tile.at.kv_first + tile.at.sequence.kv_start;
  if (first < 0 || first + tile.at.columns > extent) return add_elements(offsets, tile, sum);
  TilePosition one = tile.at;
  one.columns = 1;
  const std::int64_t* offset = offsets.find(one);
  for (int r = 0; r < tile.at.rows; ++r) {
    add_neighbours(sum, offset[r * plan::kBackwardKeys], tile.gradients + r * tile.stride, tile.at.columns);
  }
}

template <class T>
void add_columns(const ElementOffsets& offsets, const ReadTile<T>& tile, const GradientSumView<T>& sum) {
  double sums[plan::kBackwardKeys] = {};
  for (int r = 0; r < tile.at.rows; ++r) {
    const T* gradients = tile.gradients + r * tile.stride;
    for (int c = 0; c < tile.at.columns; ++c) sums[c] += static_cast<double>(gradients[c]);
  }
  TilePosition row = tile.at;
  row.rows = 1;
  const std::int64_t* offset = offsets.find(row);
  for (int c = 0; c < tile.at.columns; ++c) add(sum, offset[c], sums[c]);
}

template <class T>
void add_sums_of_rows(const ElementOffsets& offsets, const ReadTile<T>& tile, const GradientSumView<T>& sum) {
  TilePosition one = tile.at;
  one.columns = 1;
  const std::int64_t* offset = offsets.find(one);
  for (int r = 0; r < tile.at.rows; ++r) {
    add(sum, offset[r * plan::kBackwardKeys], sum_of_row(tile.gradients + r * tile.stride, tile.at.columns));
  }
}

template <class T>
void add_all(const ElementOffsets& offsets, const ReadTile<T>& tile, const GradientSumView<T>& sum) {
  double all = 0;
  for (int r = 0; r < tile.at.rows; ++r) all += sum_of_row(tile.gradients + r * tile.stride, tile.at.columns);
  TilePosition one = tile.at;
  one.rows = one.columns = 1;
  add(sum, *offsets.find(one), all);
}

}  // namespace

template <class T>
void scatter(const ReadProgram& read, std::span<const TileMod> index_mods, const ReadTile<T>& tile,
             const GradientSumView<T>& sum, const OffsetBuffers& buffers) {
  if (element_count(sum.shape) == 0) return;
  const ElementOffsets offsets(index_mods, read.skips_outside, sum.shape, buffers, tile.stride);
  switch (read.dependence) {
    case plan::ReadDependence::one:
      return add_all(offsets, tile, sum);
    case plan::ReadDependence::keys:
      return add_columns(offsets, tile, sum);
    case plan::ReadDependence::queries:
      return add_sums_of_rows(offsets, tile, sum);
    case plan::ReadDependence::key_rows:
      return add_key_rows(offsets, tile, sum);
    case plan::ReadDependence::any:
      return add_elements(offsets, tile, sum);
  }
}

template void scatter(const ReadProgram&, std::span<const TileMod>, const ReadTile<float>&,
                      const GradientSumView<float>&, const OffsetBuffers&);
template void scatter(const ReadProgram&, std::span<const TileMod>, const ReadTile<double>&,
                      const GradientSumView<double>&, const OffsetBuffers&);

}  // namespace heddle::cpu
