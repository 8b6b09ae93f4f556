// The lists that decode_mma's cases are drawn from, on the host and on a GPU alike.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/portable/specs.h"

namespace heddle::test {

/// Cases of the whole forward with few queries: any group, pages, sequences, layouts, mods.
class DecodeSpecs {
 public:
  /// `keys`: the most that a sequence may have.
  DecodeSpecs(std::uint64_t first_seed, std::int64_t most_elements, std::int64_t keys)
      : source_(first_seed, most_elements, {DType::bf16, DType::bf16, DType::f16}),
        kv_rows_({1, 16, 60, 129, 300, std::min<std::int64_t>(keys, 500), keys}, 2) {}

  CaseSpec draw() {
    for (;;) {
      CaseSpec spec = source_.draw();
      spec.q_rows = q_rows_.deal();
      spec.kv_rows = kv_rows_.deal();
      spec.group = group_.deal();
      spec.page_rows = pages_.deal();
      spec.listed_pages = spec.page_rows > 0 && listed_.deal() != 0;
      spec.sequences = sequences_.deal();
      spec.kv_heads = kv_heads_.deal();
      spec.rows = "built";
      spec.block = {};
      if (spec.page_rows > 0) {
        spec.layout = Layout::bshd;
        spec.share_q_batch = spec.share_kv_batch = false;
      }
      if (spec.q_rows > 2) spec.group = std::min<std::int64_t>(spec.group, 8);
      if (fits(spec)) return spec;
    }
  }

 private:
  PortableSpecs source_;
  Deck<std::int64_t> kv_rows_, q_rows_{{1, 1, 1, 2, 3, 5, 16, 31}, 1}, group_{{1, 2, 4, 7, 8, 20, 71}, 3},
      pages_{{0, 0, 1, 5, 16, 64}, 4}, kv_heads_{{1, 2, 3}, 5};
  Deck<int> listed_{{0, 1}, 7};
  Deck<std::string> sequences_{{"whole", "lengths", "packed"}, 6};
};

/// Such cases of several sequences that begin with equal keys, of 16 bits or of 8.
class DecodePrefixSpecs {
 public:
  DecodePrefixSpecs(std::uint64_t first_seed, std::int64_t most_elements, std::int64_t keys)
      : source_(first_seed, most_elements, keys), kv_rows_({keys, 400, 300, keys, 200}, 51) {}

  CaseSpec draw() {
    for (;;) {
      CaseSpec spec = source_.draw();
      spec.prefixes = true;
      spec.batch = spec.sequences == "packed" ? 1 : batch_.deal();
      spec.kv_rows = kv_rows_.deal();
      if (spec.sequences == "packed") spec.kv_rows *= 4;
      spec.q_rows = spec.sequences == "packed" ? 9 : q_rows_.deal();
      spec.group = group_.deal();
      spec.kv_heads = kv_heads_.deal();
      spec.share_kv_batch = false;
      if (masks_.deal() != 0) spec.mask = mask_.deal();
      if (scores_.deal() != 0) spec.score = score_.deal();
      spec.q_start = starts_.deal();
      if (bytes_.deal() != 0) spec.k_dtype = spec.v_dtype = DType::e4m3;
      if (spec.k_dtype == DType::e4m3) spec.spread = std::min(spec.spread, 4.0);
      if (spec.k_dtype == DType::e4m3 && spec.weight == "drops_most") continue;
      spec.descale = spec.k_dtype == DType::e4m3 && spec.seed % 2 == 0;
      if (fits(spec)) return spec;
    }
  }

 private:
  DecodeSpecs source_;
  Deck<std::int64_t> kv_rows_, q_rows_{{1, 1, 2, 4}, 52}, group_{{1, 4, 8, 3}, 53}, batch_{{2, 5, 9, 3}, 54},
      kv_heads_{{1, 2}, 55};
  // Positions and biases differ by the sequence.
  Deck<std::string> mask_{{"causal_lower_right", "last_window_and_first", "causal"}, 56},
      score_{{"full_bias", "alibi"}, 59}, starts_{{"aligned", "ahead", "none"}, 60};
  Deck<int> masks_{{0, 1}, 57}, bytes_{{0, 0, 1}, 58}, scores_{{1, 0}, 61};
};

/// Such cases with 17 to 64 rows of each head of keys.
class DecodeRowsSpecs {
 public:
  DecodeRowsSpecs(std::uint64_t first_seed, std::int64_t most_elements, std::int64_t keys)
      : source_(first_seed, most_elements, keys) {}

  CaseSpec draw() {
    for (;;) {
      CaseSpec spec = source_.draw();
      spec.q_rows = q_rows_.deal();
      spec.group = std::min<std::int64_t>(group_.deal(), 64 / spec.q_rows);
      if (spec.group * spec.q_rows <= 16) continue;
      if (bytes_.deal() != 0) spec.k_dtype = spec.v_dtype = DType::e4m3;
      if (spec.k_dtype == DType::e4m3) spec.spread = std::min(spec.spread, 4.0);
      if (spec.k_dtype == DType::e4m3 && spec.weight == "drops_most") continue;
      if (fits(spec)) return spec;
    }
  }

 private:
  DecodeSpecs source_;
  Deck<std::int64_t> q_rows_{{33, 64, 40, 4, 8, 17, 20, 32, 50}, 31}, group_{{1, 2, 3, 8, 16}, 32};
  Deck<int> bytes_{{0, 0, 1}, 33};
};

/// Such cases as warpgroups of Hopper compute: head dimensions of whole panels, keys of 16 bits, many rows of each head
/// of keys or of sequences that share keys. `Specs`: DecodeRowsSpecs or DecodePrefixSpecs.
template <class Specs>
class WarpgroupSpecs {
 public:
  WarpgroupSpecs(std::uint64_t first_seed, std::int64_t most_elements, std::int64_t keys)
      : source_(first_seed, most_elements, keys) {}

  CaseSpec draw() {
    for (;;) {
      CaseSpec spec = source_.draw();
      if (spec.k_dtype == DType::e4m3) continue;
      const PortableDims dims = dims_.deal();
      spec.qk_dim = dims.qk;
      spec.v_dim = dims.v;
      if (spec.prefixes) {
        spec.batch = spec.sequences == "packed" ? 1 : 12;
        spec.group = 8;
      } else if (spec.group * spec.q_rows < 42) {
        continue;
      }
      if (fits(spec)) return spec;
    }
  }

 private:
  Specs source_;
  Deck<PortableDims> dims_{{{128, 128}, {64, 64}, {192, 128}, {256, 256}, {128, 64}, {64, 192}}, 71};
};

/// Cases of sequences that share keys, of 16 bits, at head dimensions of whole panels: a kernel may have these keys
/// alone.
class SharedKeysSpecs {
 public:
  SharedKeysSpecs(std::uint64_t first_seed, std::int64_t most_elements, std::int64_t keys)
      : source_(first_seed, most_elements, keys) {}

  CaseSpec draw() {
    for (;;) {
      CaseSpec spec = source_.draw();
      if (spec.k_dtype == DType::e4m3) continue;
      const PortableDims dims = dims_.deal();
      spec.qk_dim = dims.qk;
      spec.v_dim = dims.v;
      spec.page_rows = pages_.deal();
      spec.listed_pages = spec.page_rows > 0 && spec.listed_pages;
      if (spec.page_rows > 0) {
        spec.layout = Layout::bshd;
        spec.share_q_batch = false;
      }
      if (spec.sequences != "packed") spec.batch = batch_.deal();
      if (fits(spec)) return spec;
    }
  }

 private:
  DecodePrefixSpecs source_;
  Deck<PortableDims> dims_{{{128, 128}, {64, 64}, {192, 128}, {128, 64}, {256, 256}}, 81};
  Deck<std::int64_t> pages_{{16, 0, 64, 0, 24, 128, 8}, 82}, batch_{{12, 3, 35, 2, 20}, 83};
};

/// Such cases of values that are the first columns of the keys, at head dimensions above 256.
class DecodeWideSpecs {
 public:
  DecodeWideSpecs(std::uint64_t first_seed, std::int64_t most_elements, std::int64_t keys)
      : source_(first_seed, most_elements, keys), kv_rows_({1, 63, 64, 65, 130, keys}, 41) {}

  CaseSpec draw() {
    for (;;) {
      CaseSpec spec = source_.draw();
      const PortableDims dims = dims_.deal();
      spec.qk_dim = dims.qk;
      spec.v_dim = dims.v;
      spec.values_in_keys = true;
      spec.kv_rows = kv_rows_.deal();
      spec.q_rows = q_rows_.deal();
      spec.group = group_.deal();
      spec.kv_heads = kv_heads_.deal();
      spec.batch = std::min<std::int64_t>(spec.batch, 2);
      spec.page_rows = pages_.deal();
      spec.listed_pages = spec.page_rows > 0 && spec.seed % 2 == 0;
      if (spec.page_rows > 0) {
        spec.layout = Layout::bshd;
        spec.share_q_batch = spec.share_kv_batch = false;
      }
      if (bytes_.deal() != 0) spec.k_dtype = spec.v_dtype = DType::e4m3;
      if (spec.k_dtype == DType::e4m3) spec.spread = std::min(spec.spread, 4.0);
      if (spec.k_dtype == DType::e4m3 && spec.weight == "drops_most") continue;
      if (fits(spec)) return spec;
    }
  }

 private:
  DecodeSpecs source_;
  Deck<std::int64_t> kv_rows_, q_rows_{{1, 1, 2, 3}, 42}, group_{{16, 32, 128, 5, 20, 64}, 43},
      kv_heads_{{1, 1, 2}, 44}, pages_{{0, 64, 0, 16, 5, 1}, 45};
  Deck<PortableDims> dims_{{{576, 512}, {576, 512}, {288, 256}, {300, 64}}, 46};
  Deck<int> bytes_{{0, 0, 1}, 47};
};

/// Such cases with keys and values of 8 bits, beside queries of 16 bits or of 8.
using DecodeBytesSpecs = BytesSpecs<DecodeSpecs>;

/// Masks that leave runs of keys, with any sequences and pages.
class KeyMaskSpecs {
 public:
  /// `keys`: how many there are of a sequence.
  KeyMaskSpecs(std::uint64_t first_seed, const std::vector<std::int64_t>& keys) : seed_(first_seed), keys_(keys, 1) {}

  CaseSpec draw() {
    CaseSpec spec;
    spec.seed = ++seed_;
    spec.threads = 1;
    spec.batch = 2;
    spec.group = 4;
    spec.qk_dim = spec.v_dim = 64;
    spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
    spec.kv_rows = keys_.deal();
    spec.q_rows = queries_.deal();
    spec.sequences = sequences_.deal();
    if (spec.sequences == "packed") spec.kv_rows *= 2;
    spec.page_rows = pages_.deal();
    spec.listed_pages = spec.page_rows > 0 && spec.seed % 2 == 0;
    if (spec.page_rows > 0) spec.layout = Layout::bshd;
    spec.q_start = starts_.deal();
    spec.mask = masks_.deal();
    return spec;
  }

 private:
  std::uint64_t seed_;
  Deck<std::int64_t> keys_, queries_{{1, 1, 2, 5, 16}, 2}, pages_{{0, 0, 16, 5, 64}, 3};
  Deck<std::string> sequences_{{"whole", "lengths", "packed"}, 4}, starts_{{"none", "aligned"}, 5},
      masks_{key_mask_names(), 6};
};

}  // namespace heddle::test
