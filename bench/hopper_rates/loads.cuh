// Tiles of 128 rows of 128 bytes by TMA, as fast as they come: from L2 or from memory, as the caller lays them out.
#include "rates/instructions.cuh"

namespace rates {
constexpr int kStages = 8;  // in flight
constexpr int kTileRows = 128;
constexpr unsigned kTileBytes = kTileRows * 128;
}  // namespace rates

/// The CTA's tiles are `own`, from `apart` * its number on, taken in turn. spans: one a CTA.
extern "C" __global__ void __launch_bounds__(32, 1)
    loads(const __grid_constant__ rates::TensorMap map, rates::Span* spans, int tiles, int own, int apart) {
  using namespace rates;
  extern __shared__ __align__(1024) char shared[];
  __shared__ unsigned long long filled[kStages];
  if (threadIdx.x != 0) return;
  for (int i = 0; i < kStages; ++i) barrier_init(address_of(&filled[i]));
  barrier_init_done();
  const int first = blockIdx.x * apart;
  const auto load = [&](int tile) {
    const int stage = tile % kStages;
    const unsigned barrier = address_of(&filled[stage]);
    barrier_expect(barrier, kTileBytes);
    tma_load(address_of(shared) + stage * kTileBytes, map, barrier, 0, (first + tile % own) * kTileRows);
  };
  Span span;
  begin(span);
  for (int tile = 0; tile < min(tiles, kStages); ++tile) load(tile);
  for (int tile = 0; tile < tiles; ++tile) {
    barrier_wait(address_of(&filled[tile % kStages]), tile / kStages & 1);
    if (tile + kStages < tiles) load(tile + kStages);
  }
  end(span, tiles);
  spans[blockIdx.x] = span;
}
