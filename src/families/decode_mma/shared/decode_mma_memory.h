// decode_mma's memory, from the configuration alone: a CTA's shared memory, and the workspace. Read by the planner, by
// the launcher, and by the kernel itself: no headers but these, plain integers only.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "backend/portable/shared/prefix_table.h"
#include "families/decode_mma/shared/decode_mma_chunks.h"
#include "families/decode_mma/shared/decode_mma_params.h"
#include "shared/sequence_span.h"
#include "shared/tile_walk.h"

namespace heddle::shared {

/// A row that a wave or a CTA leaves: its maximum and its sum, in the first of 16 bytes, and v_columns of O.
constexpr int decode_row_floats(const ForwardMmaConfig& config) { return 4 + config.v_columns(); }

/// Rows of a part that a CTA leaves. Warpgroups leave chunks thread by thread, so those of whole waves.
constexpr int decode_part_rows(const ForwardMmaConfig& config) {
  if (!config.chunked() || !config.by_warpgroups()) return config.live_rows;
  return (config.live_rows + config.wave_rows() - 1) / config.wave_rows() * config.wave_rows();
}

/// Where waves share keys their rows are many: when a tile ends, the upper half of the waves of keys leaves its rows to
/// the lower half, which leaves the sums. Rows of several sequences are many, too. From 8 rows on of D 128 there would
/// be no room for rings of three beside them and the table of sequences.
constexpr bool decode_folds_states(const ForwardMmaConfig& config) {
  constexpr int kMany = 8;
  const bool folds = config.row_waves > 1 || config.shares_beside_own() ||
                     (config.shares_elsewhere() && config.live_rows >= kMany && config.v_dim > 64);
  return folds && config.key_waves > 1;
}
/// Waves of keys that leave their rows at the same time.
constexpr int decode_state_waves(const ForwardMmaConfig& config) {
  return decode_folds_states(config) ? config.key_waves / 2 : config.key_waves;
}

/// Offsets in a CTA's shared memory, in bytes: the waves' rings, then these.
struct DecodeMmaMemory {
  int states;   // [decode_state_waves][live_rows] rows that waves leave each other; unless wide() or shares_alone()
  int weights;  // wide(), unless they take turns: [key waves][row waves][fragments of rows][32] a thread's weights: 16
                // bytes of 16 keys
  int tops;     // wide(): float [key waves][rows] maxima or sums
  int passed;   // takes_turns(): float [rows] maxima, or powers, of all blocks until now
  int last;     // int: this CTA is the last one of its tile
  int spans;  // [waves] SequenceSpan of the wave's tile, where lengths are on the device and mods read them; prefixed:
              // a PrefixTable of all waves
  int arrived;  // prefixed: int [prefix_sequences]: the CTA is the last one that has keys of that sequence
  int parts;    // chunked: int [kMostChunks] of the parts that are folded
  int bytes;
};
constexpr DecodeMmaMemory decode_mma_memory(const ForwardMmaConfig& config) {
  DecodeMmaMemory memory{};
  memory.states = forward_mma_memory(config).bytes;
  if (config.wide()) {
    memory.weights = memory.states;
    const bool turns = config.takes_turns();
    memory.tops = memory.weights + (turns ? 0 : config.waves() * config.row_fragments * 32 * config.wave_keys());
    memory.passed = memory.tops + config.key_waves * config.rows() * 4;
    memory.last = memory.passed + (turns ? config.rows() * 4 : 0);
  } else if (config.shares_alone()) {
    memory.last = memory.states;
  } else {
    memory.last = memory.states + decode_state_waves(config) * config.live_rows * decode_row_floats(config) * 4;
  }
  memory.spans = memory.last + 16;
  memory.arrived = memory.spans + static_cast<int>(config.prefixed()       ? sizeof(PrefixTable)
                                                   : config.device_lengths ? config.waves() * sizeof(SequenceSpan)
                                                                           : 0);
  memory.parts = memory.arrived + config.prefix_sequences * 4;
  memory.bytes = memory.parts + (config.chunked() ? kMostChunks * 4 : 0);
  return memory;
}

/// Words of each CTA that count arrivals: at the tile that goes on in the next gang; then at the groups, of CTAs that
/// leave parts, of the tile that the CTA begins with, if that began in a gang before, and of the one that goes on.
inline constexpr int kDecodeWords = 3;

/// Parts of each CTA: of these two tiles; in chunks those of decode_mma_chunks.h.
constexpr int decode_parts(const ForwardMmaConfig& config) { return config.chunked() ? kPartsOfChunks : 2; }
/// Parts that a sequence's tiles leave: of the keys that it shares, and of its own.
inline constexpr int kJoinedParts = 2;

/// The workspace: each CTA's words; shares_beside_own(): a word of each tile of each sequence; then the parts of each
/// CTA; then of each tile of each sequence [kJoinedParts][own_rows] rows. shares_elsewhere(): then the parts of each
/// CTA of the kernel before, [2][rows of its tile]; of each tile of each sequence [own_rows] rows that one CTA of that
/// kernel has; and a PrefixSpan of each sequence.
struct DecodeMmaWorkspace {
  long long joined_words, parts, joined_rows, prefix_parts, prefix_rows, prefix_spans, bytes;
};
/// Rows of a tile of shared keys, in the kernel that has such tiles alone.
constexpr int prefix_rows(const ForwardMmaConfig& config) { return config.own_rows() * config.prefix_sequences; }

/// `tiles`: of each sequence. `prefix_gangs`: shares_elsewhere(): of the kernel before.
constexpr DecodeMmaWorkspace decode_mma_workspace(const ForwardMmaConfig& config, long long ctas,
                                                  long long sequences = 0, long long tiles = 0,
                                                  long long prefix_gangs = 0) {
  const auto aligned = [](long long bytes) { return (bytes + 255) / 256 * 256; };
  const long long word = static_cast<long long>(sizeof(TicketWord)), row = decode_row_floats(config) * 4;
  const long long joined = config.shares_beside_own() ? sequences * tiles : 0;
  DecodeMmaWorkspace memory{};
  memory.joined_words = ctas * kDecodeWords * word;
  memory.parts = aligned(memory.joined_words + joined * word);
  memory.joined_rows = memory.parts + ctas * decode_parts(config) * decode_part_rows(config) * row;
  memory.prefix_parts = memory.joined_rows + joined * kJoinedParts * config.own_rows() * row;
  memory.prefix_rows = memory.prefix_spans = memory.bytes = memory.prefix_parts;
  if (!config.shares_elsewhere()) return memory;
  memory.prefix_parts = aligned(memory.prefix_parts);
  memory.prefix_rows = memory.prefix_parts + prefix_gangs * tiles * 2 * prefix_rows(config) * row;
  memory.prefix_spans = memory.prefix_rows + sequences * tiles * config.own_rows() * row;
  memory.bytes = memory.prefix_spans + sequences * static_cast<long long>(sizeof(PrefixSpan));
  return memory;
}

}  // namespace heddle::shared
