// Calls of few queries, and the chips that they are planned for.
#pragma once

#include <algorithm>
#include <string_view>

#include "device/known_gpus.h"
#include "plan/hopper.h"

namespace heddle::test {

inline const device::CudaCaps& caps_of(std::string_view gpu) {
  return std::ranges::find(device::kKnownGpus, gpu, &device::KnownGpu::name)->caps;
}

/// `queries` of 4 heads on each of 8.
inline HopperCall few(std::int64_t queries = 1, std::int64_t keys = 8192, std::int64_t dim = 128) {
  return {.batch = 2, .q_heads = 32, .kv_heads = 8, .q_rows = queries, .kv_rows = keys, .dim = dim};
}

/// 128 heads on one, whose values are the first columns of its keys.
inline HopperCall latent(std::int64_t heads = 128) {
  HopperCall call = {
      .batch = 2, .q_heads = heads, .kv_heads = 1, .q_rows = 1, .kv_rows = 8192, .dim = 576, .v_dim = 512};
  call.values_in_keys = true;
  return call;
}

/// With batch_invariant.
inline HopperCall invariant(HopperCall call) {
  call.options.batch_invariant = true;
  return call;
}

}  // namespace heddle::test
