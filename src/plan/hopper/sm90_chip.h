// Limits and rates of a Hopper chip. Rates were measured on one H200 (700 W), by the program of bench/ that the comment
// names.
#pragma once

namespace heddle::plan {

/// Bytes of shared memory that a CTA may ask for.
inline constexpr int kSm90SharedMemory = 232448;

/// Rates of the parts of one multiprocessor, and of the whole chip.
struct Sm90Rates {
  double clocks_per_second;        // hopper_rates: clock under products without a pause
  double wgmma_clocks;             // hopper_rates: of m64nNk16, a column of N
  double softmax_clocks;           // hopper_rates: of a score, nothing beside it
  double softmax_beside_wgmma;     // hopper_rates: share of the products' time that the softmax beside them loses
  double l2_bytes_per_clock;       // hopper_rates: TMA loads of distinct tiles by all multiprocessors, for each
  double memory_bytes_per_second;  // hopper_rates: copies
  double paged_bytes_per_second;   // keys and values in pages: 0.95 of it (bench/compare.py --decode pages, an H100)
  double launch_seconds;           // forward_sm90_costs: what a launch costs beside its tiles
  double page_box_clocks;          // bench/compare.py --mods: of a box of TMA's in pages, for the warp that asks for it
  double gather_row_clocks;        // likewise: of a row that two warps gather, and of each 16 bytes of it
  double gather_copy_clocks;
  double copy_seconds;          // of copies of tensors beside their bytes' way to memory and back: a launch
  double copied_share_seconds;  // and of a share of one at least, however small (not measured)
};
inline constexpr Sm90Rates kSm90Rates = {.clocks_per_second = 1.677e9,
                                         .wgmma_clocks = 0.5001,
                                         .softmax_clocks = 0.06401,
                                         .softmax_beside_wgmma = 0.3465,
                                         .l2_bytes_per_clock = 36.91,
                                         .memory_bytes_per_second = 3.787e12,
                                         .paged_bytes_per_second = 3.6e12,
                                         .launch_seconds = 10.6e-6,
                                         .page_box_clocks = 264,
                                         .gather_row_clocks = 12.3,
                                         .gather_copy_clocks = 0.8,
                                         .copy_seconds = 4e-6,
                                         .copied_share_seconds = 2e-9};

/// Rate of wgmma on so many multiprocessors, for elements of 2 bytes or of 1: m64nNk16 (m64nNk32) makes 64 x 16
/// (64 x 32) products a column of N.
constexpr double sm90_flops_per_second(int element_bytes, int multiprocessors) {
  const double products = 64.0 * 32 / element_bytes;
  return 2 * products / kSm90Rates.wgmma_clocks * kSm90Rates.clocks_per_second * multiprocessors;
}

}  // namespace heddle::plan
