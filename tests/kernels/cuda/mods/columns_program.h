// A kernel of one warp that asks for the columns of a block of keys as a fragment's thread does, and compares the
// elements with those of columns computed one by one.
#pragma once

#include <vector>

#include "backend/cuda/jit/cuda_jit.h"
#include "heddle/expr.h"

namespace heddle::cuda::test {

inline constexpr int kColumnKeys = 176;

/// Mods of which some deal their columns over the warp, with locals of every type, and some do not.
std::vector<Expr> mods_over_columns();
/// The kernel `columns(unsigned* results, ModValues)`: results[32 * mod + lane] is the number of elements that agree,
/// or those that do not times 1000.
jit::Source columns_source();

}  // namespace heddle::cuda::test
