// dQ's sums as a ring: they have room for the heads of keys that are under way, not for all. A section is a head of
// keys of a sequence, with the query heads that read it; its tiles add to a slot. When all of them have,
// tiles that stand later in the list make dq of the sums, some units each, and leave zeros for the section that has the
// slot next. So sums are small enough to stay in the L2 cache, no kernel zeroes all of them before, and none makes dq
// of them behind. Read by the planner, by the launcher, and by the kernels when NVRTC compiles them: no headers but
// these, plain integers only.
#pragma once

#include "shared/backward_tiles.h"
#include "shared/strided.h"

namespace heddle::shared {

/// A tile's work for the ring. A unit is a block of 64 queries of one query head, unit block * group + head of
/// its section; in the ring the units of all slots stand one behind the other.
struct DqTurn {
  // The tile adds to unit first_unit + block * group + query head, once all awaited_units units of section `awaited`,
  // which had the slot before, have been converted.
  int section;     // below 0: it has no steps
  int first_unit;  // of block 0 and query head 0, which may be another section's head
  int awaited;     // below 0: none
  int awaited_units;
  // It converts: units [first, first + count) of a section that `adds` parts have been added to.
  int converted;
  int adds;  // 0: its sums are zeros, and it has no slot
  int first, count;
  int slot_unit;  // where the section's units begin in the ring
  int block;      // number of its first RowBlock
  int head;       // its first query head
  int clears;     // another section has the slot next
  int unused[4];
};
static_assert(sizeof(DqTurn) == 64);
/// Offsets in it, in bytes, for who reads a word at a time.
inline constexpr unsigned kTurnSection = 0, kTurnFirstUnit = 4, kTurnAwaited = 8, kTurnAwaitedUnits = 12,
                          kTurnConverted = 16, kTurnAdds = 20, kTurnFirst = 24, kTurnCount = 28, kTurnSlotUnit = 32,
                          kTurnBlock = 36, kTurnHead = 40, kTurnClears = 44;

struct DqRing {
  const DqTurn* turns;  // of each tile of the list
  const RowBlock* blocks;
  unsigned* added;      // [sections] parts whose adds have ended
  unsigned* converted;  // [sections] units that are dq, and cleared
  RowOutput d_q;
  int group;  // query heads of a head of keys
};

}  // namespace heddle::shared
