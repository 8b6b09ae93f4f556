// The source of a CTA's tiles: one thread that draws them, and brings their words into shared memory, while the
// producer goes on loading. Both take about half a step of the consumers'.
#pragma once

#include "forward_sm90/memory.cuh"

namespace heddle {

/// Wishes of the producer, and answers.
inline constexpr int kNoTile = -1;       // none: an answer where none is left, a wish where none is needed
inline constexpr int kDraw = -2;         // wish: the next of the list that no CTA has begun
inline constexpr int kNoMoreTiles = -3;  // wish: the thread may end
inline constexpr int kSafely = 1 << 30;  // with an item's number, in a wish and its answer: with the running maximum
static_assert(kSafely >= shared::kMaxTiles);

/// `Params`: the kernel's parameters, with tiles, listed, group, mod, sinks, descales and mask_words.
template <auto kConfig, class Params>
class TileSource {
 public:
  using Memory = SharedMemory<kConfig>;

  __device__ __forceinline__ TileSource(const Memory& memory, const Params& params)
      : memory_(memory), params_(params) {}

  /// Fetches the CTA's own tile, which it need not draw. Call it before the first __syncthreads.
  __device__ __forceinline__ static void fetch_own(const Memory& memory, const Params& params) {
    if (has_own(params)) fetch(memory, params, blockIdx.x, 0);
  }
  __device__ __forceinline__ static int own(const Params& params) {
    return has_own(params) ? static_cast<int>(blockIdx.x) : kNoTile;
  }

  __device__ __forceinline__ void run() {
    unsigned fetched = 1;
    for (unsigned parity = 0;; parity ^= 1) {
      ptx::barrier_wait(memory_.wished(), parity);
      int wish = ptx::load_word(memory_.wish());
      if (wish == kNoMoreTiles) break;
      if (wish == kDraw) wish = draw();
      if (wish >= 0) fetch(memory_, params_, wish & ~kSafely, fetched++);
      ptx::store_word(memory_.wish(), wish);
      ptx::barrier_arrive(memory_.answered());
    }
  }

 private:
  /// An item's number, or kNoTile.
  __device__ __forceinline__ int draw() {
    const int item_count = count(params_);
    if (item_count <= gridDim.x) return kNoTile;
    shared::TicketWord drawn = add_one();
    // The first CTA to draw in a run finds what others have left, and claims the word. Nothing is drawn meanwhile: that
    // would be one more change under another's exchange.
    while (drawn >> shared::kTicketBits != params_.tiles.launch) {
      shared::TicketWord found;
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(found) : "l"(params_.tiles.tickets) : "memory");
      while (found >> shared::kTicketBits != params_.tiles.launch) {
        const shared::TicketWord expected = found;
        asm volatile("atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3;"
                     : "=l"(found)
                     : "l"(params_.tiles.tickets), "l"(expected), "l"(params_.tiles.launch << shared::kTicketBits)
                     : "memory");
        if (found == expected) break;
      }
      drawn = add_one();
    }
    // Each CTA draws once in vain; whoever does so last leaves the word to the next run.
    const unsigned ticket = static_cast<unsigned>(drawn) & (shared::kMaxTiles - 1);
    if (ticket + 1 == item_count) {
      asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(params_.tiles.tickets), "l"(shared::TicketWord{0})
                   : "memory");
    }
    const unsigned number = ticket + gridDim.x;
    return number < item_count ? static_cast<int>(number) : kNoTile;
  }

  __device__ __forceinline__ shared::TicketWord add_one() const {
    shared::TicketWord old;
    asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], 1;" : "=l"(old) : "l"(params_.tiles.tickets) : "memory");
    return old;
  }

  __device__ __forceinline__ static bool has_own(const Params& params) {
    return static_cast<int>(blockIdx.x) < count(params);
  }
  __device__ __forceinline__ static int count(const Params& params) {
    return kConfig.device_lengths ? *params.listed.item_count : params.tiles.item_count;
  }

  /// Item number `number` becomes tile number `tile` of the CTA.
  __device__ __forceinline__ static void fetch(const Memory& memory, const Params& params, unsigned number,
                                               unsigned tile) {
    const int4* from = reinterpret_cast<const int4*>(params.tiles.items + number);
    int4 words[sizeof(shared::WorkItem) / 16];
    for (unsigned i = 0; i < sizeof(words) / 16; ++i) words[i] = from[i];
    store(memory.item(tile), words);
    if constexpr (kConfig.by_sequence) {
      const int batch = words[0].z;
      static_assert(shared::kItemBatch == 8);
      const int4* sequence = reinterpret_cast<const int4*>(params.mod.sequences + batch);
      const int4 span[sizeof(shared::SequenceSpan) / 16] = {sequence[0], sequence[1]};
      store(memory.item(tile) + static_cast<unsigned>(sizeof(shared::WorkItem)), span);
    }
    if constexpr (kConfig.stores_mask())
      ptx::store_word(memory.item_words_at(tile), params.mask_words.words_at[number]);
    if constexpr (kConfig.fp8()) {
      const int head = words[0].y, batch = words[0].z, kv_head = words[0].w;
      static_assert(shared::kItemHead == 4 && shared::kItemBatch == 8 && shared::kItemKvHead == 12);
      const ptx::Address to = memory.item(tile) + static_cast<unsigned>(shared::item_factors(kConfig));
      if constexpr (kConfig.packs()) {
        // Each of the tile's heads has its own; missing heads take the last one's.
        const float keys = factor(params.descales.k, batch, kv_head),
                    values = factor(params.descales.v, batch, kv_head);
#pragma unroll 1
        for (int i = 0; i < kConfig.heads(); ++i) {
          const int of_head = min(head + i, (kv_head + 1) * params.group - 1);
          store_factors(to + i * static_cast<int>(sizeof(shared::HeadFactors)),
                        factor(params.descales.q, batch, of_head) * keys, values);
        }
      } else {
        const float scores = factor(params.descales.q, batch, head) * factor(params.descales.k, batch, kv_head);
        store_factors(to, scores, factor(params.descales.v, batch, kv_head));
      }
    }
    if constexpr (kConfig.sinks && kConfig.packs()) {
      // Each of the tile's heads has its own; missing heads take the last one's.
      static_assert(shared::kItemHead == 4 && shared::kItemKvHead == 12);
      const int last = (words[0].w + 1) * params.group - 1;
#pragma unroll 1
      for (int i = 0; i < kConfig.heads(); ++i) {
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(memory.item_sink(tile) + 4 * i),
                     "f"(params.sinks.data[min(words[0].y + i, last) * params.sinks.stride])
                     : "memory");
      }
    } else if constexpr (kConfig.sinks) {
      static_assert(shared::kItemHead == 4);
      asm volatile("st.shared.f32 [%0], %1;" ::"r"(memory.item_sink(tile)),
                   "f"(params.sinks.data[words[0].y * params.sinks.stride])
                   : "memory");
    }
  }

  __device__ __forceinline__ static void store_factors(ptx::Address to, float scores, float values) {
    static_assert(shared::kFactorOfScores == 0 && shared::kFactorOfValues == 4);
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(scores), "f"(values) : "memory");
  }
  __device__ __forceinline__ static float factor(const shared::Descale& of, int batch, int head) {
    return of.factors == nullptr ? 1.0F : of.factors[batch * of.stride[0] + head * of.stride[1]];
  }

  template <unsigned kWords>
  __device__ __forceinline__ static void store(ptx::Address to, const int4 (&words)[kWords]) {
    for (unsigned i = 0; i < kWords; ++i) {
      asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(to + 16 * i), "r"(words[i].x), "r"(words[i].y),
                   "r"(words[i].z), "r"(words[i].w)
                   : "memory");
    }
  }

  const Memory& memory_;
  const Params& params_;
};

}  // namespace heddle
