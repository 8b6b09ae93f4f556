// Stands in for kernels/nvidia/ptx/mma_sync.cuh on the host: the same instructions, by the layouts that PTX documents
// for mma and ldmatrix.
#pragma once

#include <cmath>

#include "lanes.h"
#include "ptx/math.cuh"
#include "ptx/tf32_operands.cuh"

namespace heddle::ptx {

using SharedAddress = unsigned;
inline char* dynamic_memory() { return lanes::cta.memory; }
inline SharedAddress shared_address(const void* pointer) {
  return static_cast<unsigned>(static_cast<const char*>(pointer) - lanes::cta.memory);
}

template <bool kF16>
float half_of(unsigned word, int half) {
  const auto bits = static_cast<unsigned short>(half == 0 ? word : word >> 16);
  if constexpr (kF16) return static_cast<float>(std::bit_cast<_Float16>(bits));
  return std::bit_cast<float>(static_cast<unsigned>(bits) << 16);
}

template <bool kF16>
void mma(float& d0, float& d1, float& d2, float& d3, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Operands {
    unsigned a[4], b[2];
    float d[4];
  };
  struct Result {
    float d[4];
  };
  const Operands own = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {d0, d1, d2, d3}};
  const Result result = lanes::together<Result>("mma", own, [](const Operands* const* in, Result* const* out) {
    float left[16][16], right[16][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int group = lane / 4, pair = lane % 4 * 2;
      for (int half = 0; half < 2; ++half) {
        for (int i = 0; i < 4; ++i) {
          left[group + 8 * (i % 2)][pair + half + 8 * (i / 2)] = half_of<kF16>(in[lane]->a[i], half);
        }
        for (int i = 0; i < 2; ++i) right[pair + half + 8 * i][group] = half_of<kF16>(in[lane]->b[i], half);
      }
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
        double sum = in[lane]->d[i];
        for (int k = 0; k < 16; ++k) sum += static_cast<double>(left[row][k]) * right[k][column];
        out[lane]->d[i] = static_cast<float>(sum);
      }
    }
  });
  d0 = result.d[0], d1 = result.d[1], d2 = result.d[2], d3 = result.d[3];
}

inline void mma_tf32(float& d0, float& d1, float& d2, float& d3, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  struct Operands {
    unsigned a[4], b[2];
    float d[4];
  };
  struct Result {
    float d[4];
  };
  const Operands own = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {d0, d1, d2, d3}};
  const Result result = lanes::together<Result>("mma of tf32", own, [](const Operands* const* in, Result* const* out) {
    const auto read = [](unsigned bits) { return std::bit_cast<float>(bits & 0xffffe000U); };
    float left[16][8], right[8][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int group = lane / 4, own_column = lane % 4;
      for (int i = 0; i < 4; ++i) left[group + 8 * (i % 2)][own_column + 4 * (i / 2)] = read(in[lane]->a[i]);
      for (int i = 0; i < 2; ++i) right[own_column + 4 * i][group] = read(in[lane]->b[i]);
    }
    for (int lane = 0; lane < 32; ++lane) {
      for (int i = 0; i < 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
        double sum = in[lane]->d[i];
        for (int k = 0; k < 8; ++k) sum += static_cast<double>(left[row][k]) * right[k][column];
        out[lane]->d[i] = static_cast<float>(sum);
      }
    }
  });
  d0 = result.d[0], d1 = result.d[1], d2 = result.d[2], d3 = result.d[3];
}

/// d += a b of kRows x 8 x kDepth, in f64: `Operands` has a and b as PTX has them, by its registers.
template <int kRows, int kDepth>
struct F64Operands {
  double a[kRows * kDepth / 32], b[kDepth / 4], d[kRows / 4];
};
template <int kRows, int kDepth>
void multiply_f64(const char* name, F64Operands<kRows, kDepth>& own) {
  using Operands = F64Operands<kRows, kDepth>;
  own = lanes::together<Operands>(name, own, [](const Operands* const* in, Operands* const* out) {
    constexpr int kGroups = kRows / 8;
    double left[kRows][kDepth], right[kDepth][8];
    for (int lane = 0; lane < 32; ++lane) {
      const int group = lane / 4, own_column = lane % 4;
      for (int i = 0; i < kRows * kDepth / 32; ++i) {
        left[group + 8 * (i % kGroups)][own_column + 4 * (i / kGroups)] = in[lane]->a[i];
      }
      for (int i = 0; i < kDepth / 4; ++i) right[own_column + 4 * i][group] = in[lane]->b[i];
    }
    for (int lane = 0; lane < 32; ++lane) {
      *out[lane] = *in[lane];
      for (int i = 0; i < kRows / 4; ++i) {
        const int row = lane / 4 + 8 * (i / 2), column = lane % 4 * 2 + i % 2;
        for (int k = 0; k < kDepth; ++k) out[lane]->d[i] = std::fma(left[row][k], right[k][column], out[lane]->d[i]);
      }
    }
  });
}
inline void mma_f64_of_8(double& d0, double& d1, double a, double b) {
  F64Operands<8, 4> own = {{a}, {b}, {d0, d1}};
  multiply_f64<8, 4>("mma of f64, 8 x 8 x 4", own);
  d0 = own.d[0], d1 = own.d[1];
}
inline void mma_f64(double& d0, double& d1, double& d2, double& d3, const double (&a)[4], double b0, double b1) {
#if __CUDA_ARCH__ / 10 == 90
  F64Operands<16, 8> own = {{a[0], a[1], a[2], a[3]}, {b0, b1}, {d0, d1, d2, d3}};
  multiply_f64<16, 8>("mma of f64, 16 x 8 x 8", own);
  d0 = own.d[0], d1 = own.d[1], d2 = own.d[2], d3 = own.d[3];
#else
  mma_f64_of_8(d0, d1, a[0], b0);
  mma_f64_of_8(d2, d3, a[1], b0);
  mma_f64_of_8(d0, d1, a[2], b1);
  mma_f64_of_8(d2, d3, a[3], b1);
#endif
}

template <bool kTransposed>
void load_matrices(unsigned (&x)[4], SharedAddress row) {
  struct Result {
    unsigned x[4];
  };
  if (row % 16 != 0) lanes::fail("ldmatrix of an address that 16 does not divide");
  const Result result = lanes::together<Result>("ldmatrix", row, [](const unsigned* const* in, Result* const* out) {
    for (int matrix = 0; matrix < 4; ++matrix) {
      unsigned short elements[8][8];
      for (int r = 0; r < 8; ++r) std::memcpy(elements[r], lanes::cta.memory + *in[8 * matrix + r], 16);
      for (int lane = 0; lane < 32; ++lane) {
        const int major = lane / 4, minor = lane % 4 * 2;
        const unsigned low = kTransposed ? elements[minor][major] : elements[major][minor],
                       high = kTransposed ? elements[minor + 1][major] : elements[major][minor + 1];
        out[lane]->x[matrix] = high << 16 | low;
      }
    }
  });
  for (int i = 0; i < 4; ++i) x[i] = result.x[i];
}

template <int kBytes>
void copy_async(SharedAddress to, const void* from, int valid) {
  if (to % kBytes != 0 || reinterpret_cast<std::uintptr_t>(from) % kBytes != 0) {
    lanes::fail("cp.async of an address that its size does not divide");
  }
  lanes::copy({lanes::cta.memory + to, static_cast<const char*>(from), kBytes, valid});
}
inline void copy_async_of_line(SharedAddress to, const void* from, int valid) { copy_async<16>(to, from, valid); }
inline void copy_async_of_line(SharedAddress to, const void* from, int valid, bool asks) {
  if (asks) copy_async<16>(to, from, valid);
}
inline void await_copies() { lanes::await_copies(); }
inline void commit_copies() { lanes::commit_copies(); }
template <int kGroups>
void await_copies() {
  lanes::await_groups(kGroups);
}
template <int kThreads>
void barrier_of(int number) {
  lanes::meet(number, kThreads);
}
template <int kThreads>
void arrive_at(int number) {
  lanes::come(number, kThreads);
}
inline void store_two(SharedAddress to, unsigned halves) { std::memcpy(lanes::cta.memory + to, &halves, 4); }
inline void store_half(SharedAddress to, unsigned short x) { std::memcpy(lanes::cta.memory + to, &x, 2); }

}  // namespace heddle::ptx
