// dQ where one pass computes all gradients (kConfig.adds_d_q). A wave multiplies dS of some queries of a step, which
// stands in shared memory, by all keys of the tile, for some columns, and adds the products to sums in memory. Or each
// wave multiplies dS of its own keys, for all queries and columns (kConfig.adds_alone()): the sums get as many addends
// as there are waves, but no wave waits for another. Tiles of keys add in any order. A kernel behind the pass makes dq
// of the sums.
#pragma once

#include "families/backward_mma/shared/backward_mma_config.h"
#include "portable/backward_mma/shared_terms.cuh"
#include "portable/rows/row_output.cuh"
#include "shared/backward_tiles.h"

namespace heddle::portable {

/// The fragments of dQ in a pass that computes none.
struct NoQueries {};

/// `F`: the architecture's fragments for queries_side().
template <auto kConfig, class F>
class AddedQueries {
 public:
  /// By all waves, when all have left their dS. `memory`: the CTA's; `sums`: those of the step's first query.
  __device__ __forceinline__ static void add(char* memory, float* sums) {
    const int part = F::wave(), first_row = part % kStep.row_parts * kStep.rows_of_wave(),
              first_column = part / kStep.row_parts * kStep.columns_of_wave();
#pragma unroll 1
    for (int d = 0; d < kStep.columns_of_wave(); d += kColumnsAtOnce) {
      // The last waves may have no columns: with head dimension 96 four parts of two fragments cover eight of six.
      if (kStep.column_parts * kStep.columns_of_wave() != kStep.columns && first_column + d >= kStep.columns) break;
      add(memory, sums, first_row, first_column + d);
    }
  }

  /// A wave's own dS: d_s[][n] are of its keys and of fragment n of the step's queries. The first queries are left
  /// before add_own() adds all: where there are no others, registers are free from then on.
  template <int kFragments, int kSteps>
  __device__ __forceinline__ static void leave_own(char* memory, const typename F::Scores (&d_s)[kFragments][kSteps],
                                                   int wave, int n = 0) {
    F::wave_barrier();  // the terms before have been read
    F::leave_turned(turned_of(memory, wave), d_s, n);
    F::wave_barrier();
  }
  template <int kFragments, int kSteps>
  __device__ __forceinline__ static void add_own(char* memory, float* sums,
                                                 const typename F::Scores (&d_s)[kFragments][kSteps], int wave) {
    constexpr int kTurned = kShape.turned_queries / F::kKeys, kRowFragments = kShape.turned_queries / kShape.rows;
    static_assert(kSteps % kTurned == 0 && kRowFragments == 2);
    const typename F::Turned terms = turned_of(memory, wave);
    const typename F::Stream keys(memory + kKeys);
    const int first_key = wave * kConfig.wave_rows();
#pragma unroll
    for (int n = 0; n < kSteps; n += kTurned) {
      if (n > 0) leave_own(memory, d_s, wave, n);
      float* const own_sums = sums + n / kTurned * (kRowFragments * kStep.columns * kFloats);
#pragma unroll 1
      for (int column = 0; column < kStep.columns; ++column) {
        typename F::Out o[kRowFragments][1];  // more have no registers in good banks beside dk and dv
        clear(o);
        F::template add_turned<kConfig.wave_rows()>(o, terms, keys, first_key, column);
#pragma unroll
        for (int f = 0; f < kRowFragments; ++f) {
          add_fragment(own_sums + (f * kStep.columns + column) * kFloats, o[f][0]);
        }
      }
    }
  }

  /// Where the sums of a query begin, the first one of a fragment; `number`: of its block and head.
  __device__ __forceinline__ static float* sums_of(float* sums, long long number, int query) {
    return sums + number * shared::d_q_floats(kConfig) +
           query % shared::kBackwardBlock / kShape.rows * (kStep.columns * kFloats);
  }

  /// dq of a block of 64 queries and a head, of its sums, by a wave for each fragment of rows.
  __device__ __forceinline__ static void store(const shared::BackwardRowsParams& params, int cta) {
    constexpr StorageType kType = output_type(kConfig.d_q_type, kConfig.storage);
    using Bits = typename OutputElement<kType, F>::Bits;
    const shared::RowBlock block = params.blocks[cta / params.q_heads];
    const int head = cta % params.q_heads, first = F::wave() * kShape.rows;
    if (row_of(first, 0) >= block.stored) return;
    typename F::Out o[kStep.columns];
    const float* const sums = sums_of(params.d_q, cta, first);
#pragma unroll
    for (int d = 0; d < kStep.columns; ++d) load_fragment(sums + d * kFloats, o[d]);
    const shared::RowOutput& out = params.d_q_out;
#pragma unroll
    for (int r = 0; r < F::kOwnRows; ++r) {
      const int row = row_of(first, r);
      if (row >= block.stored) continue;
      Bits* const to = static_cast<Bits*>(out.data) + block.batch * out.stride[0] + head * out.stride[1] +
                       (block.row + row) * out.stride[2];
      const float factor = row < block.live ? params.d_q_scale : 0.0F;
      store_columns<kType, kConfig.qk_dim, kConfig.d_q_bytes, F>(to, factor, o, r);
    }
  }

 private:
  static constexpr shared::Fragments kShape = kConfig.shape();
  static constexpr shared::BackwardMmaMemory kMemory = shared::backward_mma_memory(kConfig);
  static constexpr shared::StepFragments kStep = shared::step_fragments(kConfig);
  // kValues of a fragment belong to one thread; kTogether of them stand side by side in memory.
  static constexpr int kValues = F::kOwnRows * F::kOwnOuts, kFloats = kValues * kShape.wave,
                       kTogether = F::kFloatsAdded;
  static_assert(kValues % kTogether == 0);
  // Fragments of columns whose sums have registers beside those of dk and dv.
  static constexpr int columns_at_once() {
    constexpr int kMostSums = 32;
    int columns = kStep.columns_of_wave();
    while (columns > 1 && (columns * kStep.rows_of_wave() * kValues > kMostSums || kStep.columns_of_wave() % columns)) {
      --columns;
    }
    return columns;
  }
  static constexpr int kColumnsAtOnce = columns_at_once();
  // The tile's keys stand where the rows' operands of S do.
  static constexpr int kKeys = kMemory.scores + shared::forward_mma_memory(shared::scores_side(kConfig)).q;

  /// The query of a block that is the thread's row r of the fragment whose sums stand where those of query `first` do.
  __device__ __forceinline__ static int row_of(int first, int r) {
    if constexpr (kConfig.adds_alone()) {
      constexpr int kTurned = kShape.turned_queries;
      return first / kTurned * kTurned + F::turned_row(first % kTurned / kShape.rows, r);
    } else {
      return first + F::own_row(r);
    }
  }
  __device__ __forceinline__ static auto turned_of(char* memory, int wave) {
    char* const own = memory + wave * kMemory.turned_wave;
    return typename F::Turned{own + kMemory.turned[0], own + kMemory.turned[1]};
  }
  template <int kRows, int kColumns>
  __device__ __forceinline__ static void clear(typename F::Out (&o)[kRows][kColumns]) {
#pragma unroll
    for (auto& row : o) {
#pragma unroll
      for (auto& fragment : row) F::clear(fragment);
    }
  }

  __device__ __forceinline__ static void add(char* memory, float* sums, int first_row, int first_column) {
    typename F::Out o[kStep.rows_of_wave()][kColumnsAtOnce];
    clear(o);
    const SharedTerms<kConfig> terms(memory);
    F::template add_terms<true>(o, terms.of_query(terms.slopes(), first_row * kShape.rows), kMemory.term_pitch,
                                typename F::Stream(memory + kKeys), first_column);
#pragma unroll
    for (int f = 0; f < kStep.rows_of_wave(); ++f) {
#pragma unroll
      for (int d = 0; d < kColumnsAtOnce; ++d) {
        const int column = first_column + d;
        if (kStep.columns % kColumnsAtOnce == 0 || column < kStep.columns) {
          add_fragment(sums + ((first_row + f) * kStep.columns + column) * kFloats, o[f][d]);
        }
      }
    }
  }

  /// In the order in which they stand in memory. Four sums that are added at once stand in registers beside each other,
  /// as the four columns of a key do which they are multiplied by; neighbours change places, so that a sum and its
  /// column are in different banks of registers.
  template <class Out>
  __device__ __forceinline__ static auto& element(Out& o, int i) {
    const int at = kConfig.adds_alone() ? i ^ 1 : i;
    return o.x[at / F::kOwnOuts][at % F::kOwnOuts];
  }
  template <class Sums>
  __device__ __forceinline__ static Sums* own(Sums* fragment) {
    return fragment + F::thread() % kShape.wave * kTogether;
  }
  __device__ __forceinline__ static void add_fragment(float* to, const typename F::Out& o) {
#pragma unroll
    for (int i = 0; i < kValues; i += kTogether) {
      float x[kTogether];
#pragma unroll
      for (int e = 0; e < kTogether; ++e) x[e] = element(o, i + e);
      F::add_floats(own(to) + i * kShape.wave, x);
    }
  }
  __device__ __forceinline__ static void load_fragment(const float* from, typename F::Out& o) {
    struct alignas(4 * kTogether) Neighbours {
      float x[kTogether];
    };
#pragma unroll
    for (int i = 0; i < kValues; i += kTogether) {
      const auto of = *reinterpret_cast<const Neighbours*>(own(from) + i * kShape.wave);
#pragma unroll
      for (int e = 0; e < kTogether; ++e) element(o, i + e) = of.x[e];
    }
  }
};

}  // namespace heddle::portable
