// Small cases of backward_sm90 whose mods read captures or params that have gradients.
#pragma once

#include "kernels/cuda/backward_specs.h"

namespace heddle::test {

/// Two sequences and heads whose mods read captures or params that have gradients.
inline BackwardSpecs captured(const char* score, const char* weight, std::int64_t dim, const std::string& wanted) {
  CaseSpec spec = backward_spec(150, 200, dim);
  spec.batch = 2;
  spec.kv_heads = 2;
  spec.group = 2;
  spec.score = score;
  spec.weight = weight;
  spec.mask = "causal_lower_right";
  return {spec, rows_wanted(wanted)};
}
inline BackwardSpecs of_packed(BackwardSpecs at) {
  at.spec.sequences = "packed";
  at.spec.batch = 3;
  at.spec.q_start = at.spec.kv_start = "ahead";
  return at;
}

/// Its lengths in the device's memory; starts there would leave indices of captures without bounds.
inline BackwardSpecs on_device(BackwardSpecs at) {
  at.spec.q_start = at.spec.kv_start = "none";
  at.spec.device_lengths = true;
  return at;
}

/// Gradients whose place reads the key alone, or neither; and one of the query, in closed form.
inline BackwardList captured_by_keys() {
  BackwardList list = {captured("alibi", "", 64, "all"),
                       captured("temperature_and_gate", "", 64, "reads"),
                       captured("scaled_by_param", "dropout_by_params", 64, "reads"),
                       captured("padded", "weights_by_key", 128, "all"),
                       of_packed(captured("temperature_and_gate", "", 64, "reads")),
                       captured("scaled_keys_of_head", "", 64, "all")};
  list[1].spec.sinks = "normal";
  list[3].spec.sequences = "lengths";
  list[4] = on_device(list[4]);
  return list;
}

/// The query, or the distance.
inline BackwardList captured_by_rows() {
  BackwardList list = {captured("t5_bias", "", 128, "all"), of_packed(captured("relative_bias", "", 64, "reads")),
                       captured("temperature_and_gate", "", 64, "reads"),
                       of_packed(captured("t5_bias", "", 64, "reads"))};
  list[2].spec.normalizer = Normalizer::sigmoid;
  list[3] = on_device(list[3]);
  list[3].backward.deterministic = true;
  return list;
}

/// Both.
inline BackwardList captured_by_pairs() {
  BackwardList list = {captured("full_bias", "", 128, "all"), captured("streamed_bias_f32", "", 64, "reads"),
                       captured("grid_bias", "", 64, "reads"), captured("streamed_bias", "", 64, "reads"),
                       captured("streamed_in_cap", "", 64, "all")};
  CaseSpec& f16 = list[2].spec;
  f16.q_dtype = f16.k_dtype = f16.v_dtype = DType::f16;
  list[2].backward.gradient_dtype = DType::f16;
  list[3].backward.deterministic = list[4].backward.deterministic = true;
  return list;
}

/// No mask hides what lies past the ends of sequences, where the mods of keys and queries are not 0.
inline BackwardList captured_without_mask() {
  BackwardList list;
  for (const char* score : {"padded", "full_bias", "alibi", "t5_bias"}) {
    for (const char* wanted : {"all", "k reads", "q reads"}) {
      BackwardSpecs at = captured(score, score == std::string("padded") ? "weights_by_key" : "", 64, wanted);
      at.spec.mask = "";
      at.spec.q_rows = 70;
      at.spec.kv_rows = 77;
      list.push_back(at);
    }
  }
  list[0].spec.sequences = list[3].spec.sequences = "lengths";
  list[3] = on_device(list[3]);
  list[1] = on_device(of_packed(list[1]));
  list[4] = of_packed(list[4]);
  list[6].spec.normalizer = Normalizer::sigmoid;
  list[9].spec.normalizer = Normalizer::none;
  return list;
}

inline BackwardList far_reads() {
  return with_lse_rest(joined({captured_by_keys(), captured_by_rows(), captured_by_pairs()}), -3000);
}

/// Gradients of captures and params by position, too: of heads, keys, queries and distances, in any order and in one.
inline BackwardList captured_in_granules() {
  const BackwardList any = {captured("alibi", "", 64, "all"), captured("temperature_and_gate", "", 64, "reads"),
                            captured("padded", "weights_by_key", 64, "all"), captured("t5_bias", "", 128, "all"),
                            captured("relative_bias", "", 64, "reads")};
  BackwardList list = joined({in_any_order(any), in_order(any)});
  for (std::size_t i = 0; i < list.size(); ++i) {
    CaseSpec& spec = list[i].spec;
    spec.granule = i % 2 == 0 ? 64 : 128;
    spec.q_rows = 200;
    spec.kv_rows = 150;
  }
  return list;
}

}  // namespace heddle::test
