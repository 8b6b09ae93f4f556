#include "plan/mods/stored_mask_choice.h"

#include <fmt/format.h>

#include "base/environment.h"

namespace heddle::plan {

std::int64_t most_mask_bytes() { return base::bytes_of(base::Option::mask_bytes, kMostMaskBytes); }

bool masks_by_values(const KernelMods& mods) {
  return mods.mask_form == shared::MaskForm::values || mods.mask_form == shared::MaskForm::both;
}

std::string refuses_storing(const problem::AttentionProblem& problem, const BlockMask* callers) {
  if (problem.device_lengths) return fmt::format("only {} knows the lengths", problem::name(problem.device));
  // Rows that were built from the mask hold for the planned params and captures alone, and runs are held to them.
  if (callers != nullptr && callers->is_from_lists()) {
    return "block_mask is of lists, so each run may bring other params and captures";
  }
  return {};
}

std::string refuses_bytes(std::int64_t bytes) {
  const std::int64_t most = most_mask_bytes();
  if (bytes <= most) return {};
  return fmt::format("stored they would take {} bytes; up to {} are taken ({})", bytes, most,
                     base::name_of(base::Option::mask_bytes));
}

std::string describe_mask(const KernelMods& mods, shared::MaskForm form, const shared::TileShape& tile,
                          std::int64_t partial_blocks, std::int64_t stored_bytes, const std::string& reason) {
  using shared::MaskForm;
  if (mods.mask.empty()) return {};
  if (form == MaskForm::stored) {
    return fmt::format("bits of {} partial blocks are stored: {} bytes", partial_blocks, stored_bytes);
  }
  if (masks_by_values(mods)) {
    const std::string why = !reason.empty() ? reason
                            : tile.packs()
                                ? std::string("a tile packs several heads")
                                : fmt::format("a tile has {} keys, and words have bits for 128", tile.kv_block);
    return fmt::format("bits of partial blocks are found in each run: {}", why);
  }
  if (form == MaskForm::distance && !mods.mask_most.empty()) {
    return fmt::format("a range of kv_idx - q_idx: from {} to {}", print(mods.mask_least), print(mods.mask_most));
  }
  if (form == MaskForm::distance) return "bits of kv_idx - q_idx, found while a block's product runs";
  return mods.mask_form == MaskForm::distance
             ? fmt::format(
                   "evaluated for each pair of a partial block: a tile has {} keys, and words have bits for 128",
                   tile.kv_block)
             : "evaluated for each pair of a partial block: bits of it would cost more";
}

}  // namespace heddle::plan
