// The bounds of a mask's keys as device code: expr/key_bounds.h, a local a step.
#pragma once

#include <string>

#include "backend/device_text/expression_text.h"
#include "expr/key_bounds.h"

namespace heddle::device_text {

/// One function. For the name "mask", in namespace heddle:
///
///   __device__ __forceinline__ shared::KeyRuns mask_keys(const shared::ModValues& mod, const shared::MaskRows& at);
///
/// It gives the keys for which the mask can be true for some of those rows. Params and captures come from `mod`, all
/// else from `at`. Its operations stand in shared/key_runs.h, shared/intervals.h and
/// kernels/common/mods/mask_ranges.cuh.
std::string key_runs_text(const std::string& name, const expr::KeyBounds& bounds, const ModLayout& layout);

}  // namespace heddle::device_text
