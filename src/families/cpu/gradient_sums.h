// The memory in which gradients of captures and params are added up: copies of the lanes, then those that tasks own.
#pragma once

#include <cstddef>
#include <cstdint>

#include "families/cpu/capture_scatter.h"
#include "families/cpu/cpu_backward_split.h"
#include "heddle/backward.h"

namespace heddle::cpu {

template <class T>
class GradientSums {
 public:
  /// memory: split.lanes * cpu_backward_lane_bytes() + cpu_backward_owned_bytes().
  GradientSums(const plan::CpuBackwardSplit& split, std::byte* memory);

  void clear() const;
  /// Where tasks of this lane add.
  GradientSumView<T> view(std::size_t sum, std::int64_t lane) const;
  /// Lanes in order, then to the tensors.
  void store(const BackwardTensors& tensors) const;

 private:
  std::int64_t offset_of(std::size_t sum) const;

  const plan::CpuBackwardSplit& split_;
  std::int64_t lane_bytes_;
  std::byte *lanes_, *owned_;
};

}  // namespace heddle::cpu
