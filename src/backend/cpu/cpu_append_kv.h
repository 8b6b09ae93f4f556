// append_kv on the CPU.
#pragma once

#include "heddle/kv_cache.h"

namespace heddle::cpu {

/// Computes in f64; many rows on all cores. Everything was validated, rows and their places too.
void append_kv(const AppendTensors& tensors, const AppendOptions& options);

}  // namespace heddle::cpu
