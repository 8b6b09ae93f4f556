// Tensors of 8 bits in backward_mma: its passes multiply copies of 16 bits.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "families/backward_mma/shared/backward_mma_params.h"
#include "heddle/backward.h"
#include "problem/problem.h"

namespace heddle::plan {

/// k and v have 8 bits, and q 16 or 8.
bool has_widened(const problem::AttentionProblem& problem);

/// The type of products: q's, or beside q of 8 bits dO's.
DType product_type(const problem::AttentionProblem& problem, const BackwardTensors& tensors);

/// The tensors as the passes read them: those of 8 bits are copies, without an address, whose rows 16 bytes divide.
BackwardTensors with_copies(const problem::AttentionProblem& problem, const BackwardTensors& tensors);

/// Offsets in bytes of the copies of q, k and v from the first one on; -1: there is none.
struct WidenedCopies {
  std::array<std::int64_t, 3> at = {-1, -1, -1};
  std::int64_t bytes = 0;
};
WidenedCopies widened_copies(const problem::AttentionProblem& problem, const BackwardTensors& tensors);

/// All but addresses.
shared::MmaWidenParams widen_params(const problem::AttentionProblem& problem, const BackwardTensors& tensors);

/// The class portable::WidenedRows of the problem.
std::string widen_class(const problem::AttentionProblem& problem, shared::Storage storage);

}  // namespace heddle::plan
