// dQ where one pass computes all gradients (kConfig.adds_d_q). A wave multiplies dS of some queries of a step, which
// stands in shared memory, by all keys of the tile, for some columns, and adds the products to sums in memory. Tiles of
// keys add in any order. A kernel behind the pass makes dq of the sums.
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
    if (first >= block.stored) return;
    typename F::Out o[kStep.columns];
    const float* const sums = sums_of(params.d_q, cta, first);
#pragma unroll
    for (int d = 0; d < kStep.columns; ++d) load_fragment(sums + d * kFloats, o[d]);
    const shared::RowOutput& out = params.d_q_out;
#pragma unroll
    for (int r = 0; r < F::kOwnRows; ++r) {
      const int row = first + F::own_row(r);
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
  // A thread has some values of each fragment; so many of them stand side by side in memory.
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

  __device__ __forceinline__ static void add(char* memory, float* sums, int first_row, int first_column) {
    typename F::Out o[kStep.rows_of_wave()][kColumnsAtOnce];
#pragma unroll
    for (auto& row : o) {
#pragma unroll
      for (auto& fragment : row) F::clear(fragment);
    }
    // The tile's keys stand where the rows' operands of S do.
    constexpr int kKeys = kMemory.scores + shared::forward_mma_memory(shared::scores_side(kConfig)).q;
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

  template <class Sums>
  __device__ __forceinline__ static Sums* own(Sums* fragment) {
    return fragment + F::thread() % kShape.wave * kTogether;
  }
  __device__ __forceinline__ static void add_fragment(float* to, const typename F::Out& o) {
#pragma unroll
    for (int i = 0; i < kValues; i += kTogether) {
      float x[kTogether];
#pragma unroll
      for (int e = 0; e < kTogether; ++e) x[e] = o.x[(i + e) / F::kOwnOuts][(i + e) % F::kOwnOuts];
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
      for (int e = 0; e < kTogether; ++e) o.x[(i + e) / F::kOwnOuts][(i + e) % F::kOwnOuts] = of.x[e];
    }
  }
};

}  // namespace heddle::portable
