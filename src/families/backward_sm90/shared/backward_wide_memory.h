// The shared memory of backward_sm90 with head dims above 128, of one CTA of a pair: where each buffer and barrier is,
// from the configuration alone. Read by the planner, by the launcher, and by the kernel itself when NVRTC compiles it:
// no headers but these, plain integers only.
#pragma once

#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "families/backward_sm90/shared/backward_sm90_params.h"
#include "shared/backward_rows.h"
#include "shared/panels.h"

namespace heddle::shared {

// A pair of CTAs computes a tile, 64 keys each, and each of them a part of dQ's columns, over the keys of both: the
// first CTA's panels end where the second's begin. Of an odd number they take the one in the middle in turns.
inline constexpr int kPair = 2;
constexpr int wide_d_q_border(const BackwardSm90Config& config, int step) {
  return (config.qk_panels() + (step % 2 == 0 ? 1 : 0)) / 2;
}
/// Panels of the other CTA's keys that a CTA reads, and the first of them.
constexpr int wide_peer_panels(const BackwardSm90Config& config) { return wide_d_q_border(config, 0); }
constexpr int wide_first_peer_panel(const BackwardSm90Config& config, int rank) {
  return rank == 0 ? 0 : wide_d_q_border(config, 1);
}

inline constexpr int kWidePanelBytes = kStepQueries * 128;  // 64 rows, of whatever tensor
inline constexpr int kWidePieces = 2;                       // of dQ that leave at a time, 64 queries x 32 columns
inline constexpr int kWidePieceFloats = kPartFloats / 2;
constexpr int wide_pieces(const BackwardSm90Config& config) {
  return config.d_q && !config.d_q_added ? kWidePieces : 0;
}
// From the warpgroup of scores to that of gradients, of each thread: 32 factors, a word of bits, a word of draws.
inline constexpr int kWideFactorBytes = 128 * 32 * 4, kWideWordBytes = 128 * 4;

/// Offsets in bytes in dynamic shared memory, which begins at a multiple of 1024, where the swizzle repeats. Tensors
/// stand in panels of 64 columns, 64 rows of 128 bytes.
struct BackwardWideMemory {
  int k, v;      // [panels]: the CTA's own keys
  int peer_k;    // [wide_peer_panels()]: the other CTA's keys
  int q, d_o;    // [q_stages][qk_panels()], [d_o_stages][d_o_panels()]
  int d_s;       // [keys of either CTA][64 queries][64 keys]
  int factors;   // kWideFactorBytes, then words of bits, words of draws
  int d_q;       // [wide_pieces()], as backward_rows.h says
  int rows;      // [q_stages] numbers of 64 queries
  int tile;      // BackwardTile
  int steps;     // BackwardStep [q_stages]
  int barriers;  // 8 bytes each
  int bytes;     // to ask for
};

/// k full, v full, the peer's k full; q full, empty [q_stages]; dO full, empty [d_o_stages]; factors full, empty; dS
/// stored, copied, empty; dQ full, empty [wide_pieces()].
constexpr int wide_barriers(const BackwardSm90Config& config) {
  return 3 + 2 * config.q_stages + 2 * config.d_o_stages + 2 + 3 + 2 * wide_pieces(config);
}

constexpr BackwardWideMemory backward_wide_memory(const BackwardSm90Config& config) {
  BackwardWideMemory memory{};
  int at = 0;
  const auto reserve = [&](int bytes) {
    const int offset = at;
    at += bytes;
    return offset;
  };
  memory.k = reserve(config.qk_panels() * kWidePanelBytes);
  memory.v = reserve(config.v_panels() * kWidePanelBytes);
  memory.peer_k = reserve(config.d_q ? wide_peer_panels(config) * kWidePanelBytes : 0);
  memory.q = reserve(config.q_stages * config.qk_panels() * kWidePanelBytes);
  memory.d_o = reserve(config.d_o_stages * config.d_o_panels() * kWidePanelBytes);
  memory.d_s = reserve(config.d_q ? kPair * kWidePanelBytes : 0);
  memory.factors = reserve(kWideFactorBytes + 2 * kWideWordBytes);
  memory.d_q = reserve(wide_pieces(config) * 4 * kWidePieceFloats);
  memory.rows = reserve(config.q_stages * block_bytes(config.lse_rest));
  memory.tile = reserve(static_cast<int>(sizeof(BackwardTile)));
  memory.steps = reserve(config.q_stages * static_cast<int>(sizeof(BackwardStep)));
  memory.barriers = reserve(8 * wide_barriers(config));
  memory.bytes = at;
  return memory;
}

/// Bytes of shared memory that a CTA asks for.
constexpr int backward_shared_bytes(const BackwardSm90Config& config) {
  return config.wide ? backward_wide_memory(config).bytes : backward_sm90_memory(config).bytes;
}

}  // namespace heddle::shared
