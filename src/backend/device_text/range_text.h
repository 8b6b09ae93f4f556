// The interval analysis of a mask as device code: the host's range program (expr/range_program.h), a local a step.
#pragma once

#include <string>

#include "backend/device_text/mod_layout.h"

namespace heddle::device_text {

/// The axes of the mask's captures.
ZoneAxes zone_axes(const Expr& mask, const ModLayout& layout);

/// A boolean mod as one function. For the name "mask", in namespace heddle:
///
///   __device__ __noinline__ shared::Truth mask_range(const shared::ModValues& mod,
///       const shared::ZoneCell* const* zones, int b, int h, shared::Interval q_idx, shared::Interval kv_idx);
///
/// It says what the mod can be while its indices lie in these intervals: never too little, and as the host's analysis
/// (RangeAnalysis) but for remainders of floats and transcendentals, which can be anything here. The other leaves come
/// from `mod`, whose params count as one value each; q_token and kv_token must have been replaced. zones[i] is the tree
/// of capture i along its zone axis. Its operations stand in kernels/common/mods/mask_ranges.cuh and
/// shared/intervals.h.
std::string range_text(const std::string& name, const Expr& mod, const ModLayout& layout, const ZoneAxes& axes);

}  // namespace heddle::device_text
