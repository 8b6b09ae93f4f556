// Queries that attend nothing, stored by threads: o = 0, lse is that of no keys, and the largest score -inf.
#pragma once

#include "fragments/row_stores.cuh"
#include "ptx/math.cuh"
#include "shared/sequence_span.h"

namespace heddle {

/// lse of a row that attends nothing but a sink, whose o is then 0; NaN, as o is, where the sink is +inf or NaN.
__device__ __forceinline__ float lse_of_sink(float sink) {
  return sink < ptx::infinity() ? sink : __int_as_float(0x7fffffff);
}

/// The o of a row that attends nothing. It is stored 8 columns at once if rows end with a multiple of 8: memory behind
/// a row is not ours.
template <auto kConfig>
struct EmptyRow {
  using Elements = OutputElements<kConfig.o_type, kConfig.f16>;
  using Element = typename Elements::One;
  static constexpr bool kWide = !kConfig.stores_o_by_threads();
  static constexpr int kWidth = kWide ? 8 : 1, kWords = kConfig.v_dim / kWidth;

  /// 0, or NaN where the lse is that of a sink.
  __device__ __forceinline__ static Element one(float lse) {
    const float x = kConfig.sinks && lse != lse ? lse : 0;
    return Elements::first(Elements::pair(x, x));
  }
  __device__ __forceinline__ static uint4 eight(float lse) {
    const unsigned two = kConfig.sinks && lse != lse ? 0x7fff7fff : 0;  // NaN in either type
    return make_uint4(two, two, two, two);
  }
};

/// The lse_rest of a row that attends nothing; NaN where its lse is.
__device__ __forceinline__ float rest_of_nothing(float lse) { return lse == lse ? 0.0F : lse; }

/// o = 0 and lse for queries of one head, by all consumer threads of the CTA, of which this is number `thread`.
template <auto kConfig>
__device__ __forceinline__ void store_fill(const shared::Outputs& out, const shared::RowNumbers& max_scores,
                                           const shared::RowNumbers& lse_rest, int thread, const shared::RowFill at,
                                           float lse) {
  using Empty = EmptyRow<kConfig>;
  using Element = typename Empty::Element;
  const TileOrigin origin = {at.row, at.head, at.batch, 0};
  const int rows = at.rows;
  Element* o = static_cast<Element*>(out.o) + origin.batch * out.o_stride[0] + origin.head * out.o_stride[1];
  for (int i = thread; i < rows * Empty::kWords; i += kConfig.threads() - 128) {
    const int row = origin.q_first + i / Empty::kWords, column = Empty::kWidth * (i % Empty::kWords);
    Element* to = o + row * out.o_stride[2] + column;
    if constexpr (Empty::kWide) {
      *reinterpret_cast<uint4*>(to) = Empty::eight(lse);
    } else {
      *to = Empty::one(lse);
    }
  }
  if constexpr (kConfig.lse) {
    for (int i = thread; i < rows; i += kConfig.threads() - 128) {
      store_lse(out, origin, origin.q_first + i, lse);
    }
  }
  if constexpr (kConfig.max_scores) {
    for (int i = thread; i < rows; i += kConfig.threads() - 128) {
      store_number(max_scores, origin, origin.q_first + i, -ptx::infinity());
    }
  }
  if constexpr (kConfig.lse_rest) {
    for (int i = thread; i < rows; i += kConfig.threads() - 128) {
      store_number(lse_rest, origin, origin.q_first + i, rest_of_nothing(lse));
    }
  }
}

/// lse of the rows of a fill: of queries of their sequence, or of those that no sequence has.
template <auto kConfig>
__device__ __forceinline__ float lse_of_fill(const shared::Sinks& sinks, int head, bool of_sequence) {
  if constexpr (kConfig.sinks) {
    if (of_sequence) return lse_of_sink(sinks.data[head * sinks.stride]);
  }
  return -ptx::infinity();
}

/// With lengths on the device, by all CTAs: fills the rows that a sequence has (`of_sequence`), or those that none has.
/// `Params` has fills, listed, tensors, outputs, max_scores, lse_rest, sinks and mod.
template <auto kConfig, class Params>
__device__ __forceinline__ void store_fills_by_sequence(const Params& params, int thread, bool of_sequence) {
  const shared::ListedTiles& listed = params.listed;
  for (int first = 0; first < listed.sequence_count; first += 32) {
    const int own = first + static_cast<int>(threadIdx.x & 31);
    int own_begin = 0, own_rows = 0;
    if (own < listed.sequence_count) {
      const shared::SequenceSpan* span = params.mod.sequences + own;
      own_begin = of_sequence ? span->q_begin : span->q_begin + span->q_len;
      own_rows = of_sequence ? span->q_len : (listed.packed ? span[1].q_begin : listed.q_rows) - own_begin;
    }
    for (unsigned left = __ballot_sync(~0U, own_rows > 0); left != 0; left &= left - 1) {
      const int lane = __ffs(left) - 1, batch = first + lane;
      const int begin = __shfl_sync(~0U, own_begin, lane), rows = __shfl_sync(~0U, own_rows, lane);
      const int parts = (rows + 63) / 64;
      // This deal keeps short sequences from all going to the first CTAs.
      const int cta = static_cast<int>((blockIdx.x + static_cast<unsigned>(batch) * listed.q_heads) % gridDim.x);
      for (int i = cta; i < parts * listed.q_heads; i += gridDim.x) {
        const int part = i % parts * 64, head = i / parts;
        store_fill<kConfig>(params.outputs, params.max_scores, params.lse_rest, thread,
                            {begin + part, min(64, rows - part), head, batch},
                            lse_of_fill<kConfig>(params.sinks, head, of_sequence));
      }
    }
  }
}

/// Stores o = 0 and lse = -inf for the listed queries, by all consumer threads of all CTAs; with sinks, lse = sink for
/// those inside of their sequence. With lengths on the device: for the rows that no sequence has; and, if no sequence
/// may have a key and there are no tiles, for all other rows.
template <auto kConfig, class Params>
__device__ __forceinline__ void store_fills(const Params& params) {
  const int thread = threadIdx.x - 128;
  if constexpr (kConfig.device_lengths) {
    for (int others = params.tensors.kv_len > 0 ? 0 : 1; others >= 0; --others) {
      store_fills_by_sequence<kConfig>(params, thread, others != 0);
    }
  } else {
    for (int fill = blockIdx.x; fill < params.fills.count; fill += gridDim.x) {
      const shared::RowFill at = params.fills.fills[fill];
      store_fill<kConfig>(params.outputs, params.max_scores, params.lse_rest, thread, at,
                          lse_of_fill<kConfig>(params.sinks, at.head, fill < params.fills.unattending));
    }
  }
}

/// A store that each lane makes or not, without a branch.
__device__ __forceinline__ void store_if(int stores, uint4* to, const uint4& x) {
  asm volatile(
      "{\n"
      ".reg .pred stores;\n"
      "setp.ne.s32 stores, %1, 0;\n"
      "@stores st.global.v4.b32 [%0], {%2, %3, %4, %5};\n"
      "}" ::"l"(to),
      "r"(stores), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
      : "memory");
}
__device__ __forceinline__ void store_if(int stores, double* to, double x) {
  asm volatile(
      "{\n"
      ".reg .pred stores;\n"
      "setp.ne.s32 stores, %1, 0;\n"
      "@stores st.global.f64 [%0], %2;\n"
      "}" ::"l"(to),
      "r"(stores), "d"(x)
      : "memory");
}
__device__ __forceinline__ void store_if(int stores, float* to, float x) {
  asm volatile(
      "{\n"
      ".reg .pred stores;\n"
      "setp.ne.s32 stores, %1, 0;\n"
      "@stores st.global.f32 [%0], %2;\n"
      "}" ::"l"(to),
      "r"(stores), "f"(x)
      : "memory");
}
__device__ __forceinline__ void store_if(int stores, unsigned short* to, unsigned short x) {
  asm volatile(
      "{\n"
      ".reg .pred stores;\n"
      "setp.ne.s32 stores, %1, 0;\n"
      "@stores st.global.u16 [%0], %2;\n"
      "}" ::"l"(to),
      "r"(stores), "h"(x)
      : "memory");
}
__device__ __forceinline__ void store_if(int stores, unsigned char* to, unsigned char x) {
  asm volatile(
      "{\n"
      ".reg .pred stores;\n"
      "setp.ne.s32 stores, %1, 0;\n"
      "@stores st.global.u8 [%0], %2;\n"
      "}" ::"l"(to),
      "r"(stores), "r"(static_cast<unsigned>(x))
      : "memory");
}

/// o = 0 and lse for those of a warpgroup's rows in a tile that its sequence has; packed, of a warp's, `origin` and
/// `sequence` being of their head. Every lane goes through the same instructions, and stores or does not: lanes that
/// part inside the loop over tiles would cost addresses their one value a warp.
template <auto kConfig>
__device__ __forceinline__ void fill_own_rows(const shared::Outputs& out, const shared::RowNumbers& max_scores,
                                              const shared::RowNumbers& lse_rest, const TileOrigin& origin,
                                              const TileSequence& sequence, int warpgroup, float lse) {
  using Empty = EmptyRow<kConfig>;
  using Element = typename Empty::Element;
  constexpr int kRows = kConfig.packs() ? 16 : 64, kThreads = 2 * kRows;
  const int thread = threadIdx.x & (kThreads - 1),
            first = origin.q_first + (kConfig.packs() ? query_of_warp<kConfig>(warpgroup) : 64 * warpgroup);
  Element* o = static_cast<Element*>(out.o) + origin.batch * out.o_stride[0] + origin.head * out.o_stride[1] +
               (sequence.q_begin + first) * out.o_stride[2];
  const int rows = sequence.q_len - first;
#pragma unroll 1
  for (int n = 0; n < (kRows * Empty::kWords + kThreads - 1) / kThreads; ++n) {
    const int i = kThreads * n + thread, row = i / Empty::kWords;
    Element* to = o + row * out.o_stride[2] + Empty::kWidth * (i % Empty::kWords);
    const int stores = row < kRows && row < rows;
    if constexpr (Empty::kWide) {
      store_if(stores, reinterpret_cast<uint4*>(to), Empty::eight(lse));
    } else {
      store_if(stores, to, Empty::one(lse));
    }
  }
  if constexpr (kConfig.lse) {
    if (thread < kRows && thread < rows) store_lse(out, origin, sequence.q_begin + first + thread, lse);
  }
  if constexpr (kConfig.max_scores) {
    if (thread < kRows && thread < rows) {
      store_number(max_scores, origin, sequence.q_begin + first + thread, -ptx::infinity());
    }
  }
  if constexpr (kConfig.lse_rest) {
    if (thread < kRows && thread < rows) {
      store_number(lse_rest, origin, sequence.q_begin + first + thread, rest_of_nothing(lse));
    }
  }
}

}  // namespace heddle
