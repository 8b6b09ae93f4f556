// A problem's types and normalizer as kernels' configurations call them.
#pragma once

#include "problem/problem.h"
#include "shared/mod_forms.h"
#include "shared/storage.h"

namespace heddle::plan {

/// `dtype` is a floating type.
shared::StorageType storage_type_of(DType dtype);
/// StorageType::same if the type is `own`, the type that products leave; else the type's own name.
shared::StorageType output_type_of(DType dtype, DType own);

/// none: `dtype` has more than 8 bits.
shared::Fp8 fp8_of(DType dtype);

shared::Normalizer normalizer_of(const problem::AttentionProblem& problem);

}  // namespace heddle::plan
