// forward_sm90's configuration: the work of one of its kernels, and how it is done. Read by the planner, by the
// launcher, and by the kernel itself when NVRTC compiles it: no headers but these, plain integers only.
//
// A CTA has one producer warpgroup and `warpgroups` consumers of 64 query rows each. One of the producer's threads
// issues TMA and one draws tiles. If needed, a thread of the third warp streams a capture; other warps transpose values
// of 8 bits, gather pages or compute numbers of keys: two warps for one task, or one each for two. The host lists the
// tiles; each CTA begins with its own and then draws one after the other, so that a CTA that is held up takes fewer.
// The producer alone walks a tile's runs of key blocks and leaves one Step beside each key block it loads, so a
// consumer knows of masks, schedules and sequences only the Step and the tile's origin. A warpgroup passes over
// the blocks that none of its own rows attends.
#pragma once

#include "shared/mod_forms.h"
#include "shared/panels.h"
#include "shared/storage.h"
#include "shared/tile_shape.h"

namespace heddle::shared {

struct ForwardSm90Config {
#define HEDDLE_FIELD(type, name, value) type name = value;
#include "families/forward_sm90/shared/forward_sm90_config.def"
#undef HEDDLE_FIELD

  constexpr bool masks_by_distance() const { return mask == MaskForm::distance || mask == MaskForm::both; }
  constexpr bool masks_by_values() const { return mask == MaskForm::values || mask == MaskForm::both; }
  constexpr bool stores_mask() const { return mask == MaskForm::stored; }
  constexpr TileShape tile() const { return {warpgroups, kv_block, packed_queries, descending, stores_mask()}; }
  constexpr int rows() const { return tile().rows(); }
  constexpr bool packs() const { return tile().packs(); }
  constexpr int queries() const { return tile().queries(); }
  constexpr int warpgroup_heads() const { return tile().warpgroup_heads(); }
  constexpr int heads() const { return tile().heads(); }
  constexpr int threads() const { return 128 * (warpgroups + 1); }
  constexpr bool fp8() const { return q_fp8 != Fp8::none; }
  constexpr int element_bytes() const { return fp8() ? 1 : 2; }  // of q, k and v
  // Extents of the products: they go in steps of 32 bytes of columns (Q K^T) and of keys (P V), and P V gives multiples
  // of 8 columns. TMA fills the columns that the tensors lack with zeros, as it does those up to the end of the last
  // panel.
  constexpr int product_step() const { return 32 / element_bytes(); }
  constexpr int panel_columns() const { return 2 * kPanelColumns / element_bytes(); }  // of q, k and v
  constexpr int qk_columns() const { return (qk_dim + product_step() - 1) / product_step() * product_step(); }
  constexpr int v_columns() const { return (v_dim + 7) / 8 * 8; }
  constexpr int qk_panels() const { return (qk_dim + panel_columns() - 1) / panel_columns(); }
  constexpr int v_panels() const { return (v_dim + panel_columns() - 1) / panel_columns(); }
  constexpr int output_panels() const { return (v_dim + kPanelColumns - 1) / kPanelColumns; }
  constexpr int transposed_rows() const { return (v_dim + 31) / 32 * 32; }  // of values of 8 bits
  // A streamed tile stands in panels of 128 bytes a row, and what is left of its keys in panels of 16 columns.
  constexpr int streamed_panel_columns() const { return 128 / streamed_bytes; }
  constexpr int streamed_columns() const { return kv_block / streamed_parts; }  // of a part
  constexpr int streamed_panels() const { return streamed_columns() / streamed_panel_columns(); }
  constexpr int streamed_rest_panels() const {
    return streamed_columns() % streamed_panel_columns() / kStreamedRestColumns;
  }
  /// Rows of it that are one head's: a box of TMA's.
  constexpr int streamed_box() const { return tile().warpgroup_queries(); }
  constexpr int streamed_part_bytes() const { return kWarpgroupRows * streamed_columns() * streamed_bytes; }
  // Registers a thread after the warpgroups have traded theirs. Their sum may not exceed what the launch gave: the most
  // of 8, times the warpgroups, that 512 has room for: 4 * 128 with three consumers, 3 * 168 with two. More waits
  // forever.
  constexpr int consumer_registers() const { return warpgroups == 3 ? 160 : 232; }
  constexpr int producer_registers() const { return warpgroups == 3 ? 32 : 40; }
  /// The producer does not load keys and values itself but orders them from the gathering warps, which ask TMA for
  /// boxes of pages, or copy rows themselves.
  constexpr bool orders() const { return page_rows > 0; }
  constexpr bool gathers() const { return page_rows % kBoxRows != 0; }
  /// The last ones of the producer's warpgroup; a streamer or a transposer has one of the two that are left.
  constexpr int gather_warps() const { return streamed_bytes > 0 || fp8() || computes_keys() ? 1 : 2; }
  /// Warps that transpose values of 8 bits.
  constexpr int transposers() const { return orders() || computes_keys() ? 1 : 2; }
  /// Warps compute numbers of keys: the third of the producer's warpgroup, or, where that transposes, the fourth; or
  /// both.
  constexpr bool computes_keys() const { return key_numbers() > 0; }
  constexpr int key_warps() const { return !computes_keys() ? 0 : orders() || fp8() ? 1 : 2; }
  constexpr int first_key_warp() const { return fp8() ? 3 : 2; }
  /// Numbers of each key that consumers read: a factor, a term, a place in the table. Two at most.
  constexpr int key_numbers() const { return (key_factor ? 1 : 0) + (key_term ? 1 : 0) + (table_entries > 0 ? 1 : 0); }
  /// Rows of k and v that are in one page, wherever they are in their block: a box of TMA's.
  constexpr int page_box() const {
    int box = kv_block, rest = page_rows;
    while (rest > 0) {
      const int next = box % rest;
      box = rest;
      rest = next;
    }
    return box;
  }
  constexpr bool stores_o_by_threads() const { return o_type != OutputType::same; }
  constexpr bool operator==(const ForwardSm90Config&) const = default;
};

}  // namespace heddle::shared
