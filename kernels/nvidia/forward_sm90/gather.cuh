// Keys and values in pages, which the producer orders instead of loading them.
//
// Two warps of the producer's warpgroup bring them, or one beside a streamer (forward_sm90/streamer.cuh) or a warp that
// transposes values (forward_sm90/transposer.cuh).
// - Pages of 8 rows, or multiples: one warp asks TMA for keys, the other for values. For keys past the end it loads the
//   last ones again.
// - Other pages: both warps copy rows to where TMA would have put them, in its swizzle. Products read these copies
//   through the async proxy, so each thread waits for its own copies and fences before its warp says that the buffer is
//   filled.
// One order's copies are under way while the next one's begin. If there is no next order, they are waited for at once,
// since consumers may need nothing else to go on. Nothing here waits for a consumer: buffers were empty when they were
// ordered. Rows past a sequence's end and columns past the tensor's become zeros, and are not read.
#pragma once

#include "forward_sm90/memory.cuh"
#include "ptx/cp_async.cuh"
#include "ptx/tma.cuh"

namespace heddle {

using shared::GatheredTensor;

template <auto kConfig>
class Gatherer {
 public:
  using Memory = SharedMemory<kConfig>;

  __device__ __forceinline__ Gatherer(const Memory& memory, const ptx::TensorMap& k_map, const ptx::TensorMap& v_map,
                                      const shared::Pages& pages)
      : memory_(memory), k_map_(k_map), v_map_(v_map), pages_(pages) {}

  /// By all threads of the gathering warps.
  __device__ __forceinline__ void run() const {
    ptx::Address under_way = 0;  // barrier of the buffer that copies go to; 0: none
    for (unsigned number = 0;; ++number) {
      asm volatile("" : "+r"(under_way));  // the compiler is not to have one loop for each of its kinds
      const unsigned parity = number / shared::kGatherOrders & 1;
      if (under_way != 0 && !__all_sync(~0U, ptx::barrier_is_over(memory_.ordered(number), parity))) {
        say_filled<0>(under_way);
        under_way = 0;
      }
      ptx::barrier_wait(memory_.ordered(number), parity);
      const ptx::Address order = memory_.order(number);
      const int tensor = word(order, shared::kOrderTensor);
      if (tensor == shared::kGatherNothing) break;
      const ptx::Address full = begin(order, tensor) ? word(order, shared::kOrderFull) : 0;
      asm volatile("" : "+r"(number));  // the compiler is not to keep what followed from it before
      ptx::barrier_arrive_by_warp(memory_.taken(number));
      if (full == 0) continue;
      ptx::gather_commit();
      if (under_way != 0) say_filled<1>(under_way);
      under_way = full;
    }
    if (under_way != 0) say_filled<0>(under_way);
  }

 private:
  static constexpr int kBytes = kConfig.element_bytes(), kPanel = kConfig.panel_columns();

  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x & 31); }
  /// Among the gathering ones.
  __device__ __forceinline__ static int warp() {
    return static_cast<int>(threadIdx.x >> 5) - (4 - kConfig.gather_warps());
  }

  // An order stays in shared memory and is read where it is used: registers are few here.
  __device__ __forceinline__ static int word(ptx::Address order, unsigned offset) {
    return ptx::load_word(order + offset);
  }
  /// Says that the buffer is filled whose copies were begun before the latest kLater orders'.
  template <int kLater>
  __device__ __forceinline__ static void say_filled(ptx::Address full) {
    ptx::gather_wait<kLater>();
    ptx::fence_for_tma();
    ptx::barrier_arrive_by_warp(full);
  }

  /// False: TMA fills that buffer, and says so itself.
  __device__ __forceinline__ bool begin(ptx::Address order, int tensor) const {
    const bool keys = tensor == shared::kGatherK;
    if constexpr (kConfig.gathers()) {
      // Transposition reads more columns than products do.
      constexpr int kValueColumns = kConfig.fp8() ? kConfig.transposed_rows() : kConfig.v_columns();
      if (keys) {
        copy<kConfig.qk_columns(), kConfig.qk_dim>(order, pages_.gathered[shared::kGatherK]);
      } else {
        copy<kValueColumns, kConfig.v_dim>(order, pages_.gathered[shared::kGatherV]);
      }
    } else {
      if (keys) {
        load_pages<kConfig.qk_panels(), false>(order, k_map_);
      } else {
        load_pages<kConfig.v_panels(), true>(order, v_map_);
      }
    }
    return kConfig.gathers();
  }

  /// A lane's share of a row that a warp copies together with the 15 after it: 16 bytes from column `column` on.
  template <int kColumns>
  struct Piece {
    static constexpr int kElements = 16 / kBytes, kOfRow = kColumns / kElements;
    static constexpr int kOfRows = shared::kGatherRows * kOfRow, kOfLane = (kOfRows + 31) / 32;
    int number, row, column;  // row: of the 16

    __device__ __forceinline__ explicit Piece(int turn) : number(lane() + 32 * turn) {
      // Hides the number until its turn. Else the compiler keeps values that follow from each turn's, and spills.
      asm volatile("" : "+r"(number));
      row = number / kOfRow % shared::kGatherRows;
      column = number % kOfRow * kElements;
    }
    /// In the last turn some have none.
    __device__ __forceinline__ bool is_there() const { return kOfRows % 32 == 0 || number < kOfRows; }
    /// In the buffer [panels][kv_block][kPanel]; `first`: the first of the 16 rows.
    __device__ __forceinline__ ptx::Address target(ptx::Address buffer, int first) const {
      return buffer + column / kPanel * (kConfig.kv_block * 128) + (first + row) * 128 +
             ((column / kElements % 8) ^ (row & 7)) * 16;
    }
    /// How many bytes the tensor has, if `rows` of the 16 are there.
    template <int kDim>
    __device__ __forceinline__ int bytes(int rows) const {
      const int of_row = kDim % kElements == 0 && kDim == kColumns ? 16 : min(kBytes * max(kDim - column, 0), 16);
      return row < rows ? of_row : 0;
    }
    /// `own`: the row's address, in lane `of` + row.
    template <int kDim>
    __device__ __forceinline__ unsigned long long source(unsigned long long own, int of) const {
      const unsigned long long at = __shfl_sync(~0U, own, of + row);
      return at + (kDim == kColumns || column < kDim ? kBytes * column : 0);
    }
  };

  /// Rows become [panels][kv_block][kPanel] elements in the 128-byte swizzle; kColumns of the kDim that there are, and
  /// zeros.
  template <int kColumns, int kDim>
  __device__ __forceinline__ void copy(ptx::Address order, const GatheredTensor& from) const {
    constexpr int kRows = kConfig.kv_block;
    constexpr int kOn = shared::kGatherRows * kConfig.gather_warps();  // from a warp's 16 rows to its next
    // Each lane finds the address of one of twice 16 rows and passes it on, so that all wait once for a table's
    // entries. Rows past the last one have its address.
#pragma unroll 1
    for (int begin = shared::kGatherRows * warp(); begin < kRows; begin += 2 * kOn) {
      const int ahead = begin + lane() / shared::kGatherRows * kOn + lane() % shared::kGatherRows;
      const unsigned long long own = row_address(order, from, min(ahead, word(order, shared::kOrderRows) - 1));
#pragma unroll 1
      for (int of = 0; of < 2 * shared::kGatherRows; of += shared::kGatherRows) {
        const int first = begin + (of == 0 ? 0 : kOn);
        if (first >= kRows) break;
        copy_rows<kColumns, kDim>(order, own, of, first, word(order, shared::kOrderRows) - first);
      }
    }
  }

  /// 16 of them from row `first` on, whose addresses the lanes from `of` on have; `rows` are there.
  template <int kColumns, int kDim>
  __device__ __forceinline__ void copy_rows(ptx::Address order, unsigned long long own, int of, int first,
                                            int rows) const {
    using Own = Piece<kColumns>;
    const ptx::Address to = word(order, shared::kOrderTo);
    if constexpr (kDim == kColumns && 32 % Own::kOfRow == 0 && Own::kOfRow >= 4) {
      // A turn takes whole rows, and a lane has the same columns in each: of its target the swizzle alone changes.
      constexpr int kStep = 32 / Own::kOfRow;
      const Own piece(0);
      const ptx::Address target = piece.target(to, first);
#pragma unroll
      for (int row = 0; row < shared::kGatherRows; row += kStep) {
        const unsigned long long source = piece.template source<kDim>(own, of + row);
        ptx::gather((target ^ (row & 7) * 16) + row * 128, source, piece.template bytes<kDim>(rows - row));
      }
    } else {
#pragma unroll 2
      for (int turn = 0; turn < Own::kOfLane; ++turn) {
        const Own piece(turn);
        const unsigned long long source = piece.template source<kDim>(own, of);
        const ptx::Address target = piece.target(to, first);
        if (piece.is_there()) ptx::gather(target, source, piece.template bytes<kDim>(rows));
      }
    }
  }

  /// Address of a row of the order; the row is there.
  __device__ __forceinline__ unsigned long long row_address(ptx::Address order, const GatheredTensor& from,
                                                            int row) const {
    row += word(order, shared::kOrderRow);
    const long long offset = page_of(word(order, shared::kOrderSequence), row / kConfig.page_rows) * from.stride[0] +
                             word(order, shared::kOrderHead) * from.stride[1] +
                             row % kConfig.page_rows * from.stride[2];
    return reinterpret_cast<unsigned long long>(from.data) + kBytes * offset;
  }

  /// The page of a sequence's rows from number * page_rows on, some of which are there.
  __device__ __forceinline__ int page_of(int sequence, int number) const {
    const shared::PageTable& table = pages_.table;
    long long at = sequence * table.stride[0] + number * table.stride[1];
    if constexpr (kConfig.listed_pages) at = (shared::first_entry(table, sequence) + number) * table.stride[1];
    return min(max(table.data[at], 0), table.pages - 1);
  }

  /// Loads pages, by one warp (of two warps one loads keys, the other values): each lane finds a box's page and asks
  /// TMA for it. The map ends at the last row of a page that belongs to the sequence. A box without such a row is moved
  /// to the last row for keys (producer.cuh, box_of()), whose scores are cut. For values this warp writes zeros, which
  /// the producer does not expect of TMA: the last row may be infinite, and times a weight of 0 NaN.
  template <int kPanels, bool kValues>
  __device__ __forceinline__ void load_pages(ptx::Address order, const ptx::TensorMap& map) const {
    constexpr int kRows = kConfig.page_rows, kBox = kConfig.page_box(), kBoxes = kConfig.kv_block / kBox;
    static_assert(kConfig.by_sequence && kBox % 8 == 0 && kBoxes <= 32);
    if (warp() != (kValues ? kConfig.gather_warps() - 1 : 0)) return;
    const int rows = word(order, shared::kOrderRows);
    const int boxes = kValues ? min((rows + kBox - 1) / kBox, kBoxes) : kBoxes;
    if (lane() < boxes) {
      const int first = word(order, shared::kOrderRow), key = first + min(lane() * kBox, rows - 1), row = key % kRows;
      const int page = page_of(word(order, shared::kOrderSequence), key / kRows);
      const int end = min(kRows, first + rows - (key - row));
      const ptx::Address to = word(order, shared::kOrderTo) + lane() * kBox * 128;
      const ptx::Address full = word(order, shared::kOrderFull);
      const int head = word(order, shared::kOrderHead);
      for (int panel = 0; panel < kPanels; ++panel) {
        ptx::tma_load_before(end, to + panel * kConfig.kv_block * 128, map, full, panel * kPanel, kRows - end + row,
                             head, page, ptx::kEvictLast);
      }
    }
    if constexpr (kValues) {
      if (boxes < kBoxes) {
#pragma unroll 1
        for (int at = boxes * kBox * 128 + 16 * lane(); at < kConfig.kv_block * 128; at += 16 * 32) {
          const ptx::Address to = word(order, shared::kOrderTo) + at;
          for (int panel = 0; panel < kPanels; ++panel) ptx::store_zeros(to + panel * kConfig.kv_block * 128);
        }
        ptx::fence_for_tma();
      }
      ptx::barrier_arrive_by_warp(word(order, shared::kOrderFull));
    }
  }

  const Memory& memory_;
  const ptx::TensorMap &k_map_, &v_map_;
  const shared::Pages& pages_;
};

}  // namespace heddle
