// Features of a kernel, for tests of one feature together with each of the others.
#pragma once

#include <vector>

#include "engine/attention_case.h"

namespace heddle::test {

/// The case with each of: sinks, other normalizers, o of other types, dropped and weighted elements, masks by bits of
/// every kind, biases in tiles, and several of them at once. Each has a seed of its own, from the case's on.
inline std::vector<CaseSpec> crossings(const CaseSpec& base) {
  std::vector<CaseSpec> all;
  const auto add = [&](auto&& change) {
    CaseSpec spec = base;
    spec.seed = base.seed + all.size();
    spec.score = spec.mask = spec.weight = "";
    change(spec);
    all.push_back(spec);
  };
  for (const char* sinks : {"normal", "mixed"}) {
    add([&](CaseSpec& spec) {
      spec.sinks = sinks;
      spec.mask = "causal_lower_right";
    });
  }
  add([](CaseSpec& spec) { spec.normalizer = Normalizer::none; });
  add([](CaseSpec& spec) {
    spec.normalizer = Normalizer::sigmoid;
    spec.mask = "causal_lower_right";
  });
  for (const DType dtype : {DType::f32, DType::e4m3}) add([&](CaseSpec& spec) { spec.o_dtype = dtype; });
  for (const char* weight : {"dropout", "dropout_by_params", "weights_by_key"}) {
    add([&](CaseSpec& spec) {
      spec.weight = weight;
      spec.mask = "causal";
    });
  }
  for (const char* mask : {"dilated", "long_documents", "dilated_documents"}) {
    add([&](CaseSpec& spec) { spec.mask = mask; });
  }
  for (const char* score : {"streamed_bias", "streamed_bias_f32", "streamed_in_cap"}) {
    add([&](CaseSpec& spec) { spec.score = score; });
  }
  add([](CaseSpec& spec) {
    spec.score = "streamed_bias";
    spec.mask = "dilated_documents";
    spec.sinks = "normal";
    spec.o_dtype = DType::f32;
  });
  add([](CaseSpec& spec) {
    spec.score = "streamed_bias_f32";
    spec.mask = "causal_lower_right";
    spec.weight = "dropout";
    spec.sinks = "large";
  });
  return all;
}

}  // namespace heddle::test
