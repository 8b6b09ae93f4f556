// Cases that backward_mma takes, and backward_sm90 does not.
#pragma once

#include <cstddef>
#include <string>

#include "kernels/cuda/backward_capture_specs.h"

namespace heddle::test {

/// q, k and v of batch 1, or k alone, that serve several sequences, of whose lengths and starts each has its own.
inline BackwardList serving_all() {
  BackwardList list;
  for (const bool of_keys : {true, false}) {
    for (const char* sequences : {"whole", "lengths"}) {
      CaseSpec spec = backward_spec(of_keys ? 70 : 150, of_keys ? 190 : 90, list.size() == 1 ? 128 : 64);
      spec.batch = 3;
      spec.group = 2;
      spec.share_kv_batch = of_keys;
      spec.share_q_batch = !of_keys;
      spec.sequences = sequences;
      spec.q_start = spec.kv_start = list.size() % 2 == 0 ? "none" : "ahead";
      spec.mask = "causal_lower_right";
      spec.score = of_keys ? "alibi" : "";
      list.push_back({spec, rows_wanted(list.empty() ? "all" : "qkv")});
      spec.mask = spec.score = "";
      spec.normalizer = of_keys ? Normalizer::softmax : Normalizer::sigmoid;
      spec.device_lengths = spec.sequences == "lengths";
      spec.q_start = spec.kv_start = "none";
      list.push_back({spec, rows_wanted(of_keys ? "kv" : "q")});
    }
  }
  CaseSpec keys_alone = backward_spec(100, 140, 64);
  keys_alone.batch = 2;
  keys_alone.share_k_batch = true;
  keys_alone.mask = "by_head";
  list.push_back({keys_alone, rows_wanted()});
  return list;
}
/// Captures that each sequence reads for itself, beside them.
inline BackwardList captured_serving_all() {
  BackwardList list;
  for (const char* score : {"padded", "full_bias", "t5_bias"}) {
    CaseSpec spec = backward_spec(70, 100, 64);
    const bool padded = score == std::string("padded");
    spec.batch = padded ? 5 : 2;
    spec.group = padded ? 1 : 2;
    spec.score = score;
    spec.sequences = padded ? "lengths" : "whole";
    spec.share_kv_batch = score != std::string("t5_bias");
    spec.share_q_batch = !spec.share_kv_batch;
    list.push_back({spec, rows_wanted("all")});
  }
  return list;
}

/// The list with k and v of 8 bits, beside q of 16 bits or of 8, with factors for two cases of three.
inline BackwardList of_8_bits(BackwardList list) {
  static constexpr DType kQueries[] = {DType::bf16, DType::e4m3, DType::f16, DType::e5m2, DType::bf16};
  std::size_t number = list.size();
  for (BackwardSpecs& at : list) {
    at.spec.q_dtype = kQueries[number % 5];
    at.spec.k_dtype = number % 2 == 0 ? DType::e4m3 : DType::e5m2;
    at.spec.v_dtype = number % 3 == 0 ? DType::e5m2 : DType::e4m3;
    at.spec.descale = number % 3 != 1;
    ++number;
  }
  return list;
}

}  // namespace heddle::test
