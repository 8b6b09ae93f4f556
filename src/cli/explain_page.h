// The page of `heddle explain --html`.
#pragma once

#include <string>

#include "heddle/block_mask.h"
#include "output.h"

namespace heddle::cli {

/// The blocks that the page draws: rows that are equal are written once. Score matrices are taken until their runs fill
/// 300,000 numbers; `left_out` counts the others. If the first is larger already, `picture` has it as SVG, coarser.
/// `mask` null: null.
Json mask_for_page(const BlockMask* mask);

/// One self-contained page. `data` has: heddle (the version), explanation, memory, measured (or null), mask.
std::string explain_page(const Json& data);

}  // namespace heddle::cli
