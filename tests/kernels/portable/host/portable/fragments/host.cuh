// Fragments of the host: a wave is one thread, which holds whole fragments, 16 rows by 16 keys, as arrays. Plain loops;
// storage is rounded where the others round it. For tests: what they find here is the kernel's own, not a layout's.
#pragma once

#include <cmath>
#include <cstring>
#include <limits>

#include "backend/portable/shared/forward_mma_config.h"
#include "lanes.h"
#include "portable/fragments/halves_of_eight_bits.cuh"
#include "portable/fragments/own_elements.cuh"
#include "portable/fragments/ring_slot.cuh"
#include "portable/fragments/split_rows.cuh"
#include "shared/strided.h"

namespace heddle::portable {

template <shared::Storage kStorage>
struct HostElement {
  using Real = float;
  using Bits = unsigned short;
  static float value(Bits bits) {
    if constexpr (kStorage == shared::Storage::f16) return static_cast<float>(std::bit_cast<_Float16>(bits));
    return std::bit_cast<float>(static_cast<unsigned>(bits) << 16);
  }
  static Bits bits(float x) {
    if constexpr (kStorage == shared::Storage::f16) return std::bit_cast<Bits>(static_cast<_Float16>(x));
    const auto word = std::bit_cast<unsigned>(x);
    return x != x ? 0x7fff : static_cast<Bits>((word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
};
template <>
struct HostElement<shared::Storage::f32> {
  using Real = float;
  using Bits = float;
  static float value(float x) { return x; }
  static float bits(float x) { return x; }
};
template <>
struct HostElement<shared::Storage::f64> {
  using Real = double;
  using Bits = double;
  static double value(double x) { return x; }
  static double bits(double x) { return x; }
};

/// A number of 8 bits.
template <shared::Fp8 kType>
float value_of_byte(unsigned char byte) {
  return HostElement<shared::Storage::f16>::value(static_cast<unsigned short>(halves_of_neighbours<kType>(byte).low));
}

template <auto kConfig>
struct HostFragments {
  using Element = HostElement<kConfig.storage>;
  using Real = typename Element::Real;
  using Bits = typename Element::Bits;
  static constexpr int kKeys = 16, kOuts = 16, kOwnRows = 16, kOwnKeys = 16, kOwnOuts = 16, kOutRun = 8;
  static constexpr shared::ForwardMmaMemory kMemory = shared::forward_mma_memory(kConfig);

  static int own_row(int r) { return r; }
  static int own_key(int c) { return c; }
  static int own_out(int c) { return c; }
  static bool first_of_row() { return true; }
  static int thread() { return static_cast<int>(threadIdx.x); }
  static int threads() { return static_cast<int>(blockDim.x); }
  static int wave() { return thread(); }
  static void barrier() { __syncthreads(); }
  static void fence() {}
  static void fork() {}
  static void step() {}
  static bool any_of_wave(bool x) { return x; }
  static unsigned long long compare_and_swap(unsigned long long* at, unsigned long long from, unsigned long long to) {
    return atomicCAS(at, from, to);
  }

  template <class Params>
  static Real scale(const Params& params) {
    return sizeof(Real) == 8 ? static_cast<Real>(params.scale) : params.scale32;
  }
  static Real infinity() { return std::numeric_limits<Real>::infinity(); }
  static Real nan() { return std::numeric_limits<Real>::quiet_NaN(); }
  static Real fused(Real x, Real y, Real z) { return std::fma(x, y, z); }
  static Real larger(Real x, Real y) { return std::fmax(x, y); }
  static Real magnitude(Real x) { return std::fabs(x); }
  static Real floor(Real x) { return std::floor(x); }
  static Real exp2(Real x) { return std::exp2(x); }
  static Real log2(Real x) { return std::log2(x); }
  static Real reciprocal(Real x) { return 1 / x; }
  static Real row_max(Real x) { return x; }
  static Real row_sum(Real x) { return x; }
  static unsigned short half_bits(float x) { return HostElement<shared::Storage::f16>::bits(x); }
  static unsigned short bfloat_bits(float x) { return HostElement<shared::Storage::bf16>::bits(x); }

  using Scores = OwnElements<Real, kOwnRows, kOwnKeys>;
  using Out = Scores;
  static void clear(Scores& s) { s = {}; }
  struct Queries {
    Real x[kOwnRows][kConfig.qk_columns()];
    Real factor[kOwnRows];  // converts()
  };

  class Stream {
   public:
    explicit Stream(char* memory) : memory_(memory) {}

    template <class Source>
    void ask_keys(const Source& keys, int first, int end) {
      ask(keys, kMemory.k + (kMemory.stage - read_), kMemory.k_pitch, kConfig.qk_dim, kConfig.qk_columns(), first, end);
    }
    template <class Source>
    void ask_values(const Source& values, int first, int end) {
      ask(values, kMemory.v, kMemory.v_pitch, kConfig.v_dim, kConfig.v_columns(), first, end);
    }
    void keys_arrive() {
      read_ = kMemory.stage - read_;
      arrive();
    }
    void values_arrive() const { arrive(); }
    template <class Keys, class Values>
    void ask_block(const Keys& keys, const Values& values, int first, int end) {
      ask(keys, kMemory.k + asked_.at, kMemory.k_pitch, kConfig.qk_dim, kConfig.qk_columns(), first, end);
      ask(values, kMemory.v + asked_.at, kMemory.v_pitch, kConfig.v_dim, kConfig.v_columns(), first, end);
      asked_.advance();
    }
    void end_of_block() const { lanes::commit_copies(); }
    void block_arrives() {
      lanes::await_groups(kConfig.stages - 2);
      barrier();
      ring_.advance();
      read_ = ring_.at;
    }
    void end() const {}
    void skip_columns(int columns) { read_ += columns * kKvBytes; }

    template <int kFragments, class Row>
    void load_queries(Queries (&q)[kFragments], Row&& row) {
      for (int i = 0; i < kFragments * kOwnRows; ++i) {
        const auto from = row(i);
        q[i / kOwnRows].factor[i % kOwnRows] = 1;
        for (int d = 0; d < kConfig.qk_columns(); ++d) {
          const bool there = from != nullptr && d < kConfig.qk_dim;
          Real& x = q[i / kOwnRows].x[i % kOwnRows][d];
          x = 0;
          if (there) x = query_at(byte_of(from, d * kConfig.q_element_bytes()));
          if constexpr (kConfig.shared_queries && !kConfig.converts()) {
            const int row = wave() % kConfig.row_waves * kConfig.wave_rows() + i;
            reinterpret_cast<Bits*>(memory_ + kMemory.q + row * kMemory.q_pitch)[d] = Element::bits(x);
          }
        }
      }
    }
    Real key(int j, int d) const { return at<kConfig.k_fp8>(kMemory.k + read_ + j * kMemory.k_pitch, d); }
    Real value(int j, int d) const { return at<kConfig.v_fp8>(kMemory.v + read_ + j * kMemory.v_pitch, d); }

   private:
    static void arrive() {
      lanes::await_copies();
      barrier();
    }
    static Real query_at(const char* from) {
      if constexpr (kConfig.q_fp8 != shared::Fp8::none) {
        return value_of_byte<kConfig.q_fp8>(static_cast<unsigned char>(*from));
      } else {
        using Stored = HostElement<kConfig.q_bf16 ? shared::Storage::bf16 : kConfig.storage>;
        return Stored::value(*reinterpret_cast<const typename Stored::Bits*>(from));
      }
    }
    template <shared::Fp8 kType>
    Real at(int row, int d) const {
      if constexpr (kType != shared::Fp8::none) {
        return value_of_byte<kType>(static_cast<unsigned char>(memory_[row + d]));
      } else {
        return Element::value(reinterpret_cast<const Bits*>(memory_ + row)[d]);
      }
    }
    template <class Source>
    void ask(const Source& source, int to, int pitch, int dim, int columns, int first, int end) const {
      for (int row = thread(); row < kConfig.kv_block; row += threads()) {
        const int key = first + row, last = end > 0 ? end - 1 : 0, bytes = kKvBytes;
        copy_row(memory_ + to + row * pitch, source.row(key < last ? key : last), columns * bytes,
                 key < end ? dim * bytes : 0);
      }
    }
    static void copy_row(char* to, const char* from, int bytes, int valid) { lanes::copy({to, from, bytes, valid}); }
    template <int kFirst>
    static void copy_row(char* to, const SplitRow<kFirst>& from, int bytes, int valid) {
      copy_row(to, from.first, kFirst, valid < kFirst ? valid : kFirst);
      copy_row(to + kFirst, from.rest + kFirst, bytes - kFirst, valid < kFirst ? 0 : valid - kFirst);
    }
    static constexpr int kKvBytes = kConfig.kv_element_bytes();
    char* memory_;
    int read_ = kMemory.stage;  // where the buffer of keys that is read begins; the other one is filled
    using Slot = RingSlot<kConfig.stages, kMemory.stage>;
    Slot asked_ = {0}, ring_ = {(kConfig.stages - 1) * kMemory.stage};  // rings: of the next block asked for; read_
  };

  template <int kFragments, int kKeyFragments>
  static void multiply_keys(Scores (&s)[kFragments][kKeyFragments], const Queries (&q)[kFragments],
                            const Stream& stream, int key) {
    for (int f = 0; f < kFragments; ++f) {
      for (int n = 0; n < kKeyFragments; ++n) {
        clear(s[f][n]);
        for (int c = 0; c < kOwnKeys; ++c) {
          for (int d = 0; d < kConfig.qk_columns(); ++d) {
            const Real x = stream.key(key + kKeys * n + c, d);
            for (int r = 0; r < kOwnRows; ++r) s[f][n].x[r][c] += q[f].x[r][d] * x;
          }
          if constexpr (kConfig.converts()) {
            for (int r = 0; r < kOwnRows; ++r) s[f][n].x[r][c] *= q[f].factor[r];
          }
        }
      }
    }
  }

  static constexpr int kFloatsAdded = 4;
  static void add_floats(float* to, const float (&x)[kFloatsAdded]) {
    for (int i = 0; i < kFloatsAdded; ++i) to[i] += x[i];
  }
  static void leave_terms(char* to, int pitch, const Scores& x) {
    for (int r = 0; r < kOwnRows; ++r) {
      for (int c = 0; c < kOwnKeys; ++c) reinterpret_cast<Bits*>(to + r * pitch)[c] = Element::bits(x.x[r][c]);
    }
  }
  template <bool kTransposed, int kFragments, int kOutFragments>
  static void add_terms(Out (&o)[kFragments][kOutFragments], const char* x, int pitch, const Stream& stream,
                        int first) {
    for (int key = 0; key < kConfig.kv_block; ++key) {
      for (int row = 0; row < kFragments * kOwnRows; ++row) {
        const char* const of_row = x + (kTransposed ? key : row) * pitch;
        const Real term = Element::value(reinterpret_cast<const Bits*>(of_row)[kTransposed ? row : key]);
        for (int d = 0; d < kOutFragments && first + d < kConfig.v_columns() / kOuts; ++d) {
          for (int c = 0; c < kOuts; ++c) {
            o[row / kOwnRows][d].x[row % kOwnRows][c] += term * stream.value(key, (first + d) * kOuts + c);
          }
        }
      }
    }
  }

  template <int kFragments, int kKeyFragments, int kOutFragments>
  static void add_values(Out (&o)[kFragments][kOutFragments], const Scores (&p)[kFragments][kKeyFragments],
                         const Stream& stream, int key) {
    for (int f = 0; f < kFragments; ++f) {
      for (int n = 0; n < kKeyFragments; ++n) {
        for (int c = 0; c < kOwnKeys; ++c) {
          Real weight[kOwnRows];
          for (int r = 0; r < kOwnRows; ++r) weight[r] = Element::value(Element::bits(p[f][n].x[r][c]));
          for (int d = 0; d < kOutFragments * kOuts; ++d) {
            const Real x = stream.value(key + kKeys * n + c, d);
            for (int r = 0; r < kOwnRows; ++r) o[f][d / kOuts].x[r][d % kOuts] += weight[r] * x;
          }
        }
      }
    }
  }
};

}  // namespace heddle::portable
