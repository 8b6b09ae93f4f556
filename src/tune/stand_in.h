// Tensors to measure with: a problem's shapes and strides, in memory of their own.
#pragma once

#include <optional>
#include <vector>

#include "backend/backend.h"
#include "plan/plan.h"

namespace heddle::tune {

/// Reads no memory of the caller's but what planning reads anyway: captures of the mask, and captures whose values
/// decide whether reads stay inside their tensors. Reals are random, other integers 0, pages in order, lengths on a GPU
/// the longest. Throws Error(out_of_memory).
class StandIn {
 public:
  explicit StandIn(const plan::Request& request);

  /// Arguments for a run on the device's default stream.
  backend::RunArguments arguments(const BlockMask* block_mask, void* workspace) const;

 private:
  void take_lengths(const problem::AttentionProblem& problem);
  void take_captures(const plan::Request& request);
  void take_gradients(const BackwardTensors& planned);

  void* memory_for(const ConstTensorView& view);
  template <class View>
  void replace(View& view);
  template <class View>
  void replace(std::optional<View>& view);
  void replace_integers(std::optional<ConstTensorView>& view, const Tensor& values);

  std::vector<Tensor> memory_;
  AttentionTensors tensors_;
  std::optional<BackwardTensors> backward_;
  AttentionOptions options_;
};

}  // namespace heddle::tune
