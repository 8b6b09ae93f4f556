// Stands in for kernels/nvidia/ptx/warpgroup_products.cuh on the host.
#pragma once

#include "ptx/wgmma.cuh"

namespace heddle::ptx {

template <bool kF16>
float value_of_bits(unsigned short bits) {
  return half_of<kF16>(bits, 0);
}
template <bool kF16>
void product_of_32(float (&d)[16], unsigned long long a, unsigned long long b, int accumulate) {
  asked_products[threadIdx.x].open.push_back({d, {}, false, accumulate != 0, false, a, b, 32, value_of_bits<kF16>});
}
template <bool kF16>
void product_of_64(float (&d)[32], unsigned long long a, unsigned long long b, int accumulate) {
  asked_products[threadIdx.x].open.push_back({d, {}, false, accumulate != 0, false, a, b, 64, value_of_bits<kF16>});
}
template <bool kF16>
void add_product_of_128(float* d, unsigned long long a, unsigned long long b) {
  asked_products[threadIdx.x].open.push_back({d, {}, false, true, true, a, b, 128, value_of_bits<kF16>});
}
template <bool kF16>
void add_product_of_64(float* d, const unsigned* a, unsigned long long b) {
  asked_products[threadIdx.x].open.push_back(
      {d, {a[0], a[1], a[2], a[3]}, true, true, true, 0, b, 64, value_of_bits<kF16>});
}
template <bool kF16>
void add_product_of_128(float* d, const unsigned* a, unsigned long long b) {
  asked_products[threadIdx.x].open.push_back(
      {d, {a[0], a[1], a[2], a[3]}, true, true, true, 0, b, 128, value_of_bits<kF16>});
}

}  // namespace heddle::ptx
