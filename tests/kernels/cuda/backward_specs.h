// Small cases of backward_sm90, for emulated CTAs and for a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "engine/backward_case.h"

namespace heddle::test {

struct BackwardSpecs {
  CaseSpec spec;
  BackwardSpec backward;
};

inline CaseSpec backward_spec(std::int64_t q_rows, std::int64_t kv_rows, std::int64_t dim) {
  CaseSpec spec;
  spec.seed = 3;
  spec.batch = spec.kv_heads = spec.group = 1;
  spec.q_rows = q_rows;
  spec.kv_rows = kv_rows;
  spec.qk_dim = spec.v_dim = dim;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  return spec;
}
inline BackwardSpec rows_wanted(const std::string& wanted = "qkv") {
  BackwardSpec spec;
  spec.wanted = wanted;
  return spec;
}
using BackwardList = std::vector<BackwardSpecs>;

inline BackwardList one_tile() {
  return {{backward_spec(64, 128, 128), rows_wanted()}, {backward_spec(64, 128, 64), rows_wanted()}};
}

/// Ends inside of a block of queries, of a warpgroup's keys, and of a tile; more steps than buffers.
inline BackwardList ragged_ends() {
  BackwardList list;
  for (const std::int64_t dim : {64, 128}) {
    for (const auto& [q, kv] : {std::pair(330, 300), std::pair(1, 65), std::pair(100, 1)}) {
      list.push_back({backward_spec(q, kv, dim), rows_wanted()});
    }
  }
  return list;
}

/// More heads than a ring of dQ's sums has slots, so that slots are used again.
inline BackwardList many_heads() {
  BackwardList list;
  for (const std::int64_t dim : {64, 128}) {
    for (const char* mask : {"", "causal"}) {
      CaseSpec spec = backward_spec(150, 140, dim);
      spec.batch = 6;
      spec.kv_heads = 40;
      spec.mask = mask;
      list.push_back({spec, rows_wanted()});
    }
  }
  for (const char* sequences : {"packed", "lengths"}) {
    CaseSpec spec = backward_spec(100, 140, 64);
    spec.batch = 9;
    spec.kv_heads = 20;
    spec.group = 2;
    spec.sequences = sequences;
    list.push_back({spec, rows_wanted()});
  }
  for (const std::size_t i : {std::size_t{1}, std::size_t{2}}) {
    list.push_back(list[i]);
    list.back().backward.deterministic = true;
  }
  return list;
}

inline BackwardList masked() {
  BackwardList list;
  for (const char* mask : {"causal", "sliding_window", "documents", "some_queries_blind", "nothing"}) {
    CaseSpec spec = backward_spec(130, 140, 64);
    spec.mask = mask;
    list.push_back({spec, rows_wanted()});
  }
  CaseSpec given = backward_spec(200, 140, 64);
  given.mask = "causal";
  given.rows = "given";
  given.block = BlockSize{128, 64};
  list.push_back({given, rows_wanted()});
  return list;
}

inline BackwardList grouped() {
  BackwardList list;
  for (const char* mask : {"", "causal_lower_right", "by_head"}) {
    CaseSpec spec = backward_spec(130, 140, 128);
    spec.kv_heads = 2;
    spec.group = 3;
    spec.mask = mask;
    list.push_back({spec, rows_wanted()});
  }
  return list;
}

inline BackwardList scored() {
  BackwardList list;
  for (const char* score :
       {"alibi", "softcap", "full_bias", "t5_bias", "scaled_by_param", "padded", "some_rows_masked"}) {
    CaseSpec spec = backward_spec(70, 140, 64);
    spec.group = 2;
    spec.score = score;
    spec.mask = "causal_lower_right";
    list.push_back({spec, rows_wanted()});
  }
  // With 128 columns a mapped score reads lse and delta where they stand.
  CaseSpec wide = backward_spec(200, 140, 128);
  wide.score = "softcap";
  wide.mask = "causal";
  list.push_back({wide, rows_wanted()});
  return list;
}

inline BackwardList weighted() {
  BackwardList list;
  for (const char* weight : {"dropout", "weights_by_key", "drops_all"}) {
    CaseSpec spec = backward_spec(70, 140, 64);
    spec.weight = weight;
    spec.mask = "causal_lower_right";
    list.push_back({spec, rows_wanted()});
  }
  return list;
}

inline BackwardList normalized() {
  BackwardList list;
  for (const Normalizer normalizer : {Normalizer::none, Normalizer::sigmoid}) {
    for (const char* score : {"", "softcap"}) {
      CaseSpec spec = backward_spec(70, 140, 64);
      spec.normalizer = normalizer;
      spec.score = score;
      spec.mask = "causal";
      list.push_back({spec, rows_wanted()});
    }
  }
  return list;
}

/// Granules of a longer sequence, in any order.
inline BackwardList in_granules() {
  BackwardList list;
  struct Mods {
    const char *mask, *score, *weight;
  };
  for (const Mods& mods : {Mods{"causal", "alibi", ""},
                           {"sliding_window", "t5_bias", "dropout"},
                           {"documents", "softcap", ""},
                           {"", "padded", "weights_by_key"},
                           {"causal", "", ""}}) {
    CaseSpec spec = backward_spec(330, 300, list.size() % 2 == 0 ? 64 : 128);
    spec.group = 2;
    spec.granule = list.size() % 2 == 0 ? 128 : 64;
    spec.mask = mods.mask;
    spec.score = mods.score;
    spec.weight = mods.weight;
    list.push_back({spec, rows_wanted()});
  }
  CaseSpec lengths = backward_spec(330, 300, 64);
  lengths.sequences = "lengths";
  lengths.batch = 3;
  lengths.granule = 128;
  lengths.mask = "causal";
  list.push_back({lengths, rows_wanted()});
  return list;
}

inline BackwardList sequences() {
  BackwardList list;
  for (const char* sequences : {"lengths", "packed"}) {
    CaseSpec spec = backward_spec(150, 190, 64);
    spec.sequences = sequences;
    spec.batch = 3;
    spec.group = 2;
    spec.mask = "causal";
    spec.q_start = "ahead";
    spec.kv_start = "ahead";
    list.push_back({spec, rows_wanted()});
    spec.mask = "";
    list.push_back({spec, rows_wanted("q")});
    list.push_back({spec, rows_wanted("kv")});
  }
  return list;
}

/// Lengths, cumulative lengths and starts in the device's memory.
inline BackwardList lengths_there() {
  BackwardList list;
  for (const char* sequences : {"lengths", "packed"}) {
    for (const char* starts : {"none", "ahead"}) {
      CaseSpec spec = backward_spec(150, 190, list.size() % 2 == 0 ? 64 : 128);
      spec.device_lengths = true;
      spec.sequences = sequences;
      spec.batch = 4;
      spec.group = 2;
      spec.q_start = starts;
      spec.kv_start = starts;
      spec.mask = "causal";
      list.push_back({spec, rows_wanted()});
    }
  }
  CaseSpec plain = list.back().spec;
  plain.mask = "";
  plain.score = "alibi";
  list.push_back({plain, rows_wanted()});
  for (const char* sequences : {"lengths", "packed"}) {  // head dims above 128 have a kernel of their own
    CaseSpec wide = backward_spec(100, 190, sequences == std::string("packed") ? 192 : 256);
    wide.device_lengths = true;
    wide.sequences = sequences;
    wide.batch = 3;
    wide.mask = "causal";
    list.push_back({wide, rows_wanted()});
  }
  return list;
}

inline BackwardList sunk() {
  BackwardList list;
  for (const char* mask : {"", "some_queries_blind"}) {
    CaseSpec spec = backward_spec(70, 100, 64);
    spec.group = 9;  // each of the sinks
    spec.sinks = "mixed";
    spec.mask = mask;
    list.push_back({spec, rows_wanted("all")});
  }
  return list;
}

/// Few tiles of many steps, which several CTAs share.
inline BackwardList shared_tiles() {
  BackwardList list;
  for (const std::int64_t dim : {64, 128, 40, 256, 192}) {
    for (const char* mask : {"", "causal_lower_right"}) {
      CaseSpec spec = backward_spec(900, 200, dim);
      spec.mask = mask;
      list.push_back({spec, rows_wanted()});
    }
    CaseSpec spec = backward_spec(300, 130, dim);
    spec.group = 4;
    spec.batch = 2;
    spec.sequences = "packed";
    spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f16;
    spec.score = "alibi";
    list.push_back({spec, rows_wanted(dim == 128 ? "kv" : "qkv")});
  }
  return list;
}

/// Without an order of adds.
inline BackwardList in_any_order(BackwardList list) {
  for (BackwardSpecs& at : list) at.backward.deterministic = false;
  return list;
}

/// With one that no run changes.
inline BackwardList in_order(BackwardList list) {
  for (BackwardSpecs& at : list) at.backward.deterministic = true;
  return list;
}

/// dq of several tiles of keys, in order.
inline BackwardList deterministic() {
  BackwardList list;
  for (const char* mask : {"", "causal", "sliding_window"}) {
    const bool causal = mask == std::string("causal");
    CaseSpec spec = backward_spec(causal ? 400 : 200, causal ? 420 : 520, causal ? 128 : 64);
    spec.group = 2;
    spec.mask = mask;
    list.push_back({spec, rows_wanted("q")});
  }
  CaseSpec packed = backward_spec(300, 600, 64);
  packed.sequences = "packed";
  packed.batch = 2;
  packed.mask = "causal_lower_right";
  list.push_back({packed, rows_wanted()});
  packed.device_lengths = true;
  list.push_back({packed, rows_wanted()});
  return in_order(list);
}

inline BackwardList types_and_layouts(std::initializer_list<std::pair<int, int>> dims) {
  BackwardList list;
  for (const Layout layout : {Layout::bshd, Layout::gaps, Layout::reversed}) {
    for (const auto& [qk, v] : dims) {
      CaseSpec spec = backward_spec(70, 130, qk);
      spec.v_dim = v;
      spec.layout = layout;
      spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::f16;
      BackwardSpec backward = rows_wanted();
      backward.layout = layout;
      if (layout == Layout::gaps) backward.gradient_dtype = DType::f32;
      list.push_back({spec, backward});
    }
  }
  return list;
}
inline BackwardList dims_types_and_layouts() { return types_and_layouts({{40, 100}, {33, 7}, {128, 64}}); }

// Head dims above 128.

/// Tiles and ends, of either number of buffers; ends that leave the second CTA of a pair without keys.
inline BackwardList wide_tiles() {
  BackwardList list = {{backward_spec(200, 190, 256), rows_wanted()}, {backward_spec(64, 128, 256), rows_wanted()}};
  for (const auto& [qk, v] : {std::pair(192, 128), std::pair(256, 256)}) {
    for (const auto& [q_rows, kv_rows] : {std::pair(330, 300), std::pair(1, 65), std::pair(100, 1)}) {
      CaseSpec spec = backward_spec(q_rows, kv_rows, qk);
      spec.v_dim = v;
      list.push_back({spec, rows_wanted()});
    }
  }
  return list;
}

/// The list with head dims above 128: one to four panels of qk and of v, beginning with a pair that the list chooses.
inline BackwardList widened(BackwardList list) {
  static constexpr std::pair<int, int> kDims[] = {{256, 256}, {192, 128}, {136, 200}, {192, 192}, {64, 256}, {256, 40}};
  std::size_t next = list.size();
  for (BackwardSpecs& at : list) {
    const auto& [qk, v] = kDims[next++ % std::size(kDims)];
    at.spec.qk_dim = qk;
    at.spec.v_dim = v;
  }
  return list;
}

/// The list with head dims whose gradients' columns CTAs of backward_mma share, beginning with a pair that it chooses.
inline BackwardList sliced(BackwardList list, DType dtype = DType::bf16) {
  static constexpr std::pair<int, int> kDims[] = {{512, 512}, {576, 512}, {320, 320}, {64, 300}, {511, 257}, {300, 64}};
  static constexpr std::pair<int, int> kDimsOfF64[] = {{256, 256}, {160, 160}, {64, 129}, {200, 255}, {256, 64}};
  for (std::size_t next = list.size(); auto& at : list) {
    at.spec.q_dtype = at.spec.k_dtype = at.spec.v_dtype = dtype;
    const auto [qk, v] = dtype == DType::f64 ? kDimsOfF64[next % 5] : kDims[next % 6];
    at.spec.qk_dim = qk, at.spec.v_dim = v, ++next;
  }
  return list;
}

/// lse in two words; and with it rows of which some are far from 0 (CaseSpec::far).
inline BackwardList with_lse_rest(BackwardList list, double far = 0) {
  for (BackwardSpecs& at : list) {
    at.spec.with_lse_rest = true;
    at.spec.far = far;
  }
  return list;
}
/// One list of several.
inline BackwardList joined(std::initializer_list<BackwardList> lists) {
  BackwardList all;
  for (const BackwardList& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

/// With it every kind of scores, weights, masks, rows, sequences and gradients.
inline BackwardList far_scores() {
  return with_lse_rest(joined({ragged_ends(), masked(), scored(), weighted()}), -3000);
}
inline BackwardList far_rows() {
  return with_lse_rest(joined({grouped(), sequences(), lengths_there(), sunk(), deterministic()}), -3000);
}
inline BackwardList wide_far() {
  return with_lse_rest(widened(joined({ragged_ends(), grouped(), scored(), weighted(), sequences(), sunk()})), -3000);
}

/// Packed sequences of a few keys and queries, or of none: a tile's second half has no keys.
inline BackwardList few_rows() {
  BackwardList list;
  for (const std::int64_t dim : {256, 192, 64}) {
    for (const bool device_lengths : {true, false}) {
      CaseSpec spec = backward_spec(7, 9, dim);
      spec.batch = 4;
      spec.group = 4;
      spec.sequences = "packed";
      spec.device_lengths = device_lengths;
      list.push_back({spec, rows_wanted()});
    }
  }
  return list;
}

inline BackwardList sliced_dims_types_and_layouts() { return types_and_layouts({{512, 500}, {33, 511}, {300, 257}}); }
inline BackwardList wide_dims_types_and_layouts() { return types_and_layouts({{140, 100}, {33, 247}, {256, 129}}); }

}  // namespace heddle::test
