// The kernels around the passes of the portable backward: for each query its lse in powers of two and its delta = sum
// of dO o - d_lse, in blocks of 64 rows of a head, and for each block its share of d_sinks; then d_sinks. Sums have one
// order. A row that attends nothing (lse = -inf), and a place without a row, get lse = +inf and delta = 0: e^(t - lse)
// is 0 then, whatever t is that is below +inf.
//
// With lse in two words p is 2^((x - first) unit log2 e - low), x the scores, of which t is unit times, and with
// low = (lse + rest - first unit) log2 e: x - first is exact where x and first are close to each other, however large
// they are. Rows that attend nothing have first = 0 and low = +inf.
#pragma once

#include "families/backward_mma/shared/backward_mma_config.h"
#include "families/backward_mma/shared/backward_mma_params.h"
#include "mods/captures.cuh"
#include "portable/rows/row_output.cuh"
#include "ptx/math.cuh"

namespace heddle::portable {

/// Elements of that type, which become numbers of type Real.
template <StorageType kType, class Real>
struct ElementOf {
  using Type = ops::F32;
};
template <class Real>
struct ElementOf<StorageType::f16, Real> {
  using Type = ops::F16;
};
template <class Real>
struct ElementOf<StorageType::bf16, Real> {
  using Type = ops::Bf16;
};
template <>
struct ElementOf<StorageType::f64, float> {
  using Type = ops::F64;
};
template <>
struct ElementOf<StorageType::f64, double> {
  using Type = ops::ExactF64;
};

/// The type of lse, of sums and of rows' numbers.
template <int kBytes>
struct RealOfBytes {
  using Type = float;
};
template <>
struct RealOfBytes<8> {
  using Type = double;
};

/// OutputElement's 16 bits, outside of fragments.
struct RoundedHalves {
  static __device__ __forceinline__ unsigned short half_bits(float x) {
    return static_cast<unsigned short>(ptx::pack<true>(x, 0));
  }
  static __device__ __forceinline__ unsigned short bfloat_bits(float x) {
    return static_cast<unsigned short>(ptx::pack<false>(x, 0));
  }
};

/// Threads that share a row; and a row's stride in the shares of a block: one more number keeps rows out of each
/// other's banks.
inline constexpr int kSharesOfRow = 16, kShareStep = kSharesOfRow + 1;
inline constexpr int kRowShares = shared::kBlockRows * kShareStep;

template <auto kRows>
class BackwardRows {
 public:
  using Real = typename RealOfBytes<shared::real_bytes(kRows.storage)>::Type;

  /// `shares`: kRowShares reals of shared memory.
  __device__ __forceinline__ BackwardRows(const shared::BackwardRowsParams& params, Real* shares)
      : params_(params), shares_(shares) {}

  /// Block and head number `cta`, by kRowThreads threads.
  __device__ __forceinline__ void run(int cta) {
    const int head = cta % params_.q_heads;
    const shared::RowBlock block = params_.blocks[cta / params_.q_heads];
    const int thread = static_cast<int>(threadIdx.x);
    for (int row = thread / kSharesOfRow; row < block.live; row += shared::kRowThreads / kSharesOfRow) {
      const bool sunk = lse_of(block, head, row) == sink_of(head);
      shares_[row * kShareStep + thread % kSharesOfRow] = share_of(block, head, row, thread % kSharesOfRow, sunk);
    }
    __syncthreads();
    Real of_sink = 0;
    if (thread < shared::kBlockRows) of_sink = finish_row(block, head, thread, cta);
    if constexpr (kRows.sinks) {
      __syncthreads();
      if (thread < shared::kBlockRows) shares_[thread * kShareStep] = of_sink;
      __syncthreads();
      if (thread != 0) return;
      Real sum = 0;
      for (int row = 0; row < block.live; ++row) sum += shares_[row * kShareStep];
      sink_parts()[cta] = sum;
    }
  }

  /// d_sinks of a head: the blocks' shares in a fixed order, by kRowThreads threads.
  __device__ __forceinline__ void sum_sinks(int head) {
    using Element = SinkElement;
    const int thread = static_cast<int>(threadIdx.x);
    Real sum = 0;
    for (int block = thread; block < params_.block_count; block += shared::kRowThreads) {
      sum += sink_parts()[static_cast<long long>(block) * params_.q_heads + head];
    }
    shares_[thread] = sum;
    for (int distance = shared::kRowThreads / 2; distance > 0; distance /= 2) {
      __syncthreads();
      if (thread < distance) shares_[thread] += shares_[thread + distance];
    }
    if (thread != 0) return;
    const shared::RowOutput& out = params_.d_sinks;
    static_cast<typename Element::Bits*>(out.data)[head * out.stride[0]] = Element::of(shares_[0]);
  }

 private:
  static constexpr StorageType kOType = output_type(kRows.o_type, kRows.storage),
                               kDOType = output_type(StorageType::same, kRows.storage);
  using O = typename ElementOf<kOType, Real>::Type;
  using DO = typename ElementOf<kDOType, Real>::Type;
  using SinkElement = OutputElement<output_type(kRows.d_sinks_type, kRows.storage), RoundedHalves>;

  __device__ __forceinline__ Real* sink_parts() const { return reinterpret_cast<Real*>(params_.sink_parts); }
  template <class Storage>
  __device__ __forceinline__ static Real element(const char* row, int column) {
    return Storage::value(ops::read_if<Storage::kRead>(
        reinterpret_cast<unsigned long long>(row) + static_cast<unsigned long long>(column) * Storage::kApart, true));
  }
  __device__ __forceinline__ static const char* row_of(const shared::RowInput& of, int bytes, int batch, int head,
                                                       int row) {
    return static_cast<const char*>(of.data) +
           (batch * of.stride[0] + head * of.stride[1] + row * of.stride[2]) * bytes;
  }
  __device__ __forceinline__ Real lse_of(const shared::RowBlock& block, int head, int row) const {
    return *reinterpret_cast<const Real*>(row_of(params_.lse, sizeof(Real), block.batch, head, block.row + row));
  }
  __device__ __forceinline__ Real rest_of(const shared::RowBlock& block, int head, int row) const {
    if constexpr (!kRows.lse_rest) return 0;
    return *reinterpret_cast<const Real*>(row_of(params_.lse_rest, sizeof(Real), block.batch, head, block.row + row));
  }
  /// The head's sink. A head without one has no lse either: NaN.
  __device__ __forceinline__ Real sink_of(int head) const {
    if constexpr (!kRows.sinks) return __int_as_float(0x7fffffff);
    return reinterpret_cast<const Real*>(params_.sinks.data)[head * params_.sinks.stride];
  }

  /// Every sixteenth element's product, or 16 bytes'. If a row attends its sink alone (`sunk`), its o is 0, and its dO
  /// may be anything: products with an o of 0 are then left out.
  __device__ __forceinline__ Real share_of(const shared::RowBlock& block, int head, int row, int share,
                                           bool sunk) const {
    const char* o = row_of(params_.o, O::kApart, block.batch, head, block.row + row);
    const char* d_o = row_of(params_.d_o, DO::kApart, block.batch, head, block.row + row);
    Real sum = 0;
    const auto add = [&](Real x, Real y) { sum += sunk && x == 0 ? Real(0) : x * y; };
    if constexpr (kVectorised) {
      constexpr int kTogether = 16 / O::kApart;
      for (int column = share * kTogether; column < kRows.v_dim; column += kSharesOfRow * kTogether) {
        const Words x = words_of<O>(o, column), y = words_of<DO>(d_o, column);
#pragma unroll
        for (int e = 0; e < kTogether; ++e) add(element_of<O>(x, e), element_of<DO>(y, e));
      }
    } else {
      for (int column = share; column < kRows.v_dim; column += kSharesOfRow) {
        add(element<O>(o, column), element<DO>(d_o, column));
      }
    }
    return sum;
  }

  static constexpr bool kVectorised =
      kRows.row_bytes == 16 && O::kApart == DO::kApart && O::kApart <= 4 && kRows.v_dim * O::kApart % 16 == 0;
  struct alignas(16) Words {
    unsigned x[4];
  };
  template <class Storage>
  __device__ __forceinline__ static Words words_of(const char* row, int column) {
    return *reinterpret_cast<const Words*>(row + column * Storage::kApart);
  }
  template <class Storage>
  __device__ __forceinline__ static Real element_of(const Words& words, int e) {
    if constexpr (Storage::kApart == 4) return Storage::value(words.x[e]);
    return Storage::value(words.x[e / 2] >> 16 * (e % 2) & 0xffff);
  }

  /// The row's numbers become `cta`'s. Returns its share of d_sinks.
  __device__ __forceinline__ Real finish_row(const shared::RowBlock& block, int head, int row, int cta) const {
    Real lse2 = ptx::infinity(), first = 0, delta = 0, of_sink = 0;
    const Real lse = row < block.live ? lse_of(block, head, row) : Real(-ptx::infinity());
    if (lse != -ptx::infinity()) {
      for (int share = 0; share < kSharesOfRow; ++share) delta += shares_[row * kShareStep + share];
      if (params_.d_lse.data != nullptr) {
        delta -=
            *reinterpret_cast<const Real*>(row_of(params_.d_lse, sizeof(Real), block.batch, head, block.row + row));
      }
      const Real rest = rest_of(block, head, row);
      lse2 = kRows.lse_rest ? low_of(lse, rest, first) : lse * kLog2E;
      if constexpr (kRows.sinks) {
        const Real sink = sink_of(head), below = lse == sink ? 0 : sink - lse;  // equal infinities give 0
        if constexpr (kRows.lse_rest) {
          of_sink = -power_of_two((below - rest) * kLog2E) * delta;
        } else {
          of_sink = lse == sink ? -delta : -power_of_two(below * kLog2E) * delta;
        }
      }
    }
    Real* numbers =
        reinterpret_cast<Real*>(params_.rows) + static_cast<long long>(cta) * shared::portable_numbers(kRows.lse_rest);
    numbers[row] = kRows.lse_rest ? first : lse2;
    numbers[shared::kBlockRows + row] = delta;
    if constexpr (kRows.lse_rest) numbers[2 * shared::kBlockRows + row] = lse2;
    return of_sink;
  }

  /// Lse in two words: what of both is left beside `first`, in powers of two.
  __device__ __forceinline__ Real low_of(Real lse, Real rest, Real& first) const {
    if constexpr (sizeof(Real) == 8) {
      first = lse / params_.unit_f64;
      if (!(first - first == 0)) first = 0;
      return (__fma_rn(-first, params_.unit_f64, lse) + rest) * kLog2E;
    }
    first = static_cast<float>(lse / params_.unit);
    if (!(first - first == 0)) first = 0;
    const double exact = static_cast<double>(first) * static_cast<double>(params_.unit);
    return static_cast<float>((static_cast<double>(lse) - exact + static_cast<double>(rest)) * kLog2EDouble);
  }

  __device__ __forceinline__ static Real power_of_two(Real x) {
    if constexpr (sizeof(Real) == 8) {
      return exp2(x);
    } else {
      return exp2f(x);
    }
  }

  static constexpr Real kLog2E = static_cast<Real>(1.44269504088896341);
  static constexpr double kLog2EDouble = 1.44269504088896341;
  const shared::BackwardRowsParams& params_;
  Real* shares_;
};

}  // namespace heddle::portable
