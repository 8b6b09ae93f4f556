// The source of one forward_sm90 kernel: its configuration, the wgmma instructions of its tile, its mods, and the
// template's text.
#pragma once

#include "backend/cuda/emit/expression_text.h"
#include "backend/cuda/jit/jit.h"
#include "heddle/expr.h"
#include "shared/forward_sm90.h"

namespace heddle::cuda::emit {

/// `mask` is simplified, and empty where config.masked is false. The kernel's function is called "forward_sm90".
jit::Source forward_sm90(const shared::ForwardSm90Config& config, const Expr& mask, const ModLayout& layout);

}  // namespace heddle::cuda::emit
