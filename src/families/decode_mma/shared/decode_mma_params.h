// decode_mma's parameters: what each run passes to the kernel. Read by the launchers and by the kernel itself: no
// headers but these, plain integers only.
#pragma once

#include "backend/portable/shared/forward_params.h"
#include "shared/sequences.h"
#include "shared/tile_walk.h"

namespace heddle::shared {

/// Equal parts of a line of units: gang g has units [begin(g), begin(g + 1)).
struct LineCut {
  int gangs;             // that have a part
  unsigned share, more;  // units of each; and this many gangs have one more

  constexpr int begin(int gang) const {
    const int before = gang < static_cast<int>(more) ? gang : static_cast<int>(more);
    return gang * static_cast<int>(share) + before;
  }
  /// The gang that has a unit.
  constexpr int gang_of(int unit) const {
    const unsigned number = static_cast<unsigned>(unit), of_larger = more * (share + 1);
    if (number < of_larger) return static_cast<int>(number / (share + 1));
    return static_cast<int>(more + (number - of_larger) / share);
  }
};
/// `units`, at least 1, cut for up to `most` gangs.
constexpr LineCut line_cut(int units, int most) {
  const int gangs = units < most ? units : most;
  const unsigned share = static_cast<unsigned>(units) / static_cast<unsigned>(gangs);
  return {gangs, share, static_cast<unsigned>(units) - share * static_cast<unsigned>(gangs)};
}

/// Gangs, up to `most`, that share a line. A gang computes two units sooner than two gangs merge what they found: on an
/// H100 5.2 us beside 6.8 (256 keys, D 128). A 32nd of the gangs may stay away so that each has whole sequences, or
/// each sequence whole gangs, if lengths are alike: parts then end where sequences do, and fewer are merged.
constexpr int gangs_of_line(int units, int sequences, int most) {
  const int enough = units <= 2 * sequences ? sequences : units;
  const int gangs = enough < most ? enough : most;
  const int of_each = (sequences + gangs - 1) / gangs;  // sequences of a gang
  const int even = of_each == 1 ? gangs / sequences * sequences : (sequences + of_each - 1) / of_each;
  return even * 32 >= gangs * 31 ? even : gangs;
}

/// Gangs that have a tile of shared keys. Sequences find them at the tile's first one.
struct PrefixSpan {
  int from, to;
};

/// A tile is a sequence's queries of some heads that read the same keys, or config.tile_queries of them; a gang is as
/// many CTAs as a sequence has tiles.
struct DecodeMmaParams : ForwardParams {
  int sequences, heads;     // heads: of queries
  int tiles;                // of a sequence
  int tiles_of_kv_head;     // tiles that read the same keys
  int query_tiles;          // of these, with the same heads
  int q_rows;               // of the tensor
  int q_packed;             // its rows are packed sequences
  LineCut cut;              // unless config.counts_units()
  Descales descales;        // 8 bits
  SequencesParams lengths;  // device_lengths: where they are; its spans and lists are not used
  int fresh_tokens;         // config.early
  TicketWord* words;        // [gangs][tiles][kDecodeWords]: decode_mma_memory.h
  TicketWord launch;        // number of this launch, not 0, below 2^(64 - kTicketBits)
  void* parts;              // what CTAs leave each other: decode_mma_memory.h

  // config.prefixed()
  LengthsView prefix_group, prefix_len;
  TicketWord* joined_words;  // [sequences][tiles]
  float* joined_rows;        // [sequences][tiles][kJoinedParts][own_rows] rows
  // Unless config.shares_beside_own(): what the kernel of shared keys leaves (decode_mma_memory.h).
  int prefix_gangs;  // of that kernel
  float *prefix_parts, *prefix_rows;
  PrefixSpan* prefix_spans;  // [sequences]
};

/// TMA's description of a tensor of keys (cuda::tensor_map_before_ends).
struct alignas(64) KeyMap {
  char opaque[128];
};
/// config.boxes.
struct DecodeMmaBoxParams : DecodeMmaParams {
  KeyMap first, rest;  // rest: of the last columns, if k_first; of the values, if config.shares_alone()
  int longest;         // rows that an end has before it in a map: those of a page, or of the tensor
  int batch_step;      // from a sequence's keys to those of the next one: 1; or 0, if all have one entry of the tensor
};
template <bool kBoxes>
struct DecodeMmaParamsOf {
  using Type = DecodeMmaParams;
};
template <>
struct DecodeMmaParamsOf<true> {
  using Type = DecodeMmaBoxParams;
};

}  // namespace heddle::shared
