// The text of the kernels that find the rows of one mask's block masks.
#pragma once

#include <string>

#include "backend/device_text/range_text.h"
#include "plan/mods/kv_start.h"

namespace heddle::gpu {

/// A mask prepared for the kernels: simplified, its params not bound, q_token and kv_token written as q_idx and kv_idx
/// plus params of these names, which no caller's param can have.
struct RowMask {
  Expr mask;
  device_text::ModLayout layout;
  device_text::ZoneAxes axes;
  int q_token_word = -1, kv_token_word = -1;  // of the layout's params; -1: not used
};

/// Why rows that a device finds might not be the host's, or cannot be had: a sentence. Empty when they can.
std::string row_mask_refused(const Expr& mask);

/// Throws Error(unsupported) for a mask that has too many params or captures for a kernel, `start` among them.
RowMask row_mask(const Expr& mask, const plan::KvStart& start = {});

/// The kernels' functions are called "zone_groups", "zone_trees", "find_rows" and "scan_counts".
std::string mask_rows_text(const RowMask& mask);

}  // namespace heddle::gpu
