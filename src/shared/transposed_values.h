// Values of 8 bits as P V reads them: where each stands, and how two warps bring them there. Host and device.
//
// Products of 8-bit types take their second operand only with the keys beside each other, so a block of values
// [keys][columns] is transposed to [columns][keys], in k-steps of 32 keys: [kv_block / 32][transposed_rows][32], rows
// of 32 bytes in the 32-byte swizzle.
//
// The first operand, P, stands in registers: for a k-step thread q of the four that share a row must hold the slots 4 q
// .. 4 q + 3 of each half of 16 slots. It has the keys 8 j + 2 q and 8 j + 2 q + 1 (ptx/wgmma.cuh). A sum may have its
// terms in any order, so these keys become the slots, and P is packed without a shuffle. key_of_slot() gives the key of
// a slot; the transposed values stand in the order of the slots.
//
// A warp transposes 32 keys x 16 columns at a time:
// - ldmatrix with .trans, of four matrices of 8 keys x 8 pairs of columns: thread l gets, of its pair of columns
//   2 (l / 4), + 1, the keys 8 j + 2 (l % 4), + 1 in register j.
// - Bytes of two registers each give the words of one column: the even one's by kEvenColumn, the odd one's by
//   kOddColumn.
// - stmatrix, of four matrices of 8 columns x 16 slots. The rows of one matrix are the columns 0, 2, 4, 6, 9, 11, 13,
//   15 of the sixteen, those of another the rest: all eight of either lie in different banks, and so do the eight keys
//   of a matrix that is read.
#pragma once

namespace heddle::shared {

inline constexpr int kSlots = 32;  // keys of a k-step
inline constexpr unsigned kEvenColumn = 0x6420, kOddColumn = 0x7531;

/// The key of a k-step that stands in a slot.
constexpr int key_of_slot(int slot) {
  const int half = slot / 16, q = slot % 16 / 4, pair = slot % 4 / 2;
  return 16 * half + 8 * pair + 2 * q + slot % 2;
}

/// Where a slot of a column stands in a k-step's values, in bytes.
constexpr unsigned offset_of_slot(int column, int slot) {
  const unsigned row = static_cast<unsigned>(column), byte = static_cast<unsigned>(slot);
  return 32 * row + 16 * ((byte / 16) ^ (row / 4 % 2)) + byte % 16;
}

/// The row of a matrix that lane `lane` tells ldmatrix of, in bytes from a k-step's first key in a panel of 128-byte
/// rows, 128-byte swizzle: of the sixteen columns number `sixteen` of the panel, 0 or 1. An exclusive or with 32 n
/// leads to the columns 2 n sixteens further, one with 16 to the other sixteen of the two.
constexpr unsigned offset_to_load(unsigned lane, unsigned sixteen) { return 128 * lane + 16 * (sixteen ^ (lane % 8)); }

/// And stmatrix, in a k-step's values, where the sixteen begin with column 0.
constexpr unsigned offset_to_store(unsigned lane) {
  const unsigned matrix = lane / 8, row = lane % 8;
  const unsigned column = 2 * row + ((row / 4) ^ (matrix % 2));
  return offset_of_slot(static_cast<int>(column), static_cast<int>(16 * (matrix / 2)));
}

/// Which bytes of two registers become thread `lane`'s word of an even matrix (0, 2), or an odd one.
constexpr unsigned bytes_of_word(unsigned lane, unsigned matrix) {
  return ((lane / 16) ^ (matrix % 2)) == 0 ? kEvenColumn : kOddColumn;
}

}  // namespace heddle::shared
