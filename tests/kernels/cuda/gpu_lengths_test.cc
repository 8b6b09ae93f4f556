// Lengths, cumulative lengths and starts in a GPU's memory: what the host's give, to the bit where nothing classifies
// blocks otherwise.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/deck.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "heddle/mods.h"
#include "kernels/cuda/gpu_case.h"
#include "kernels/cuda/gpu_test.h"
#include "kernels/cuda/lengths_spec.h"

namespace heddle::test {
namespace {

class GpuLengths : public GpuTest {};

// Packed keys of which not all count, with NaN in the others: the host's lengths and the device's give the same bits.
TEST_F(GpuLengths, OfPackedKeysThatCount) {
  for (const std::int64_t dim : {64, 128, 256}) {
    for (const char* mask : {"", "causal_lower_right"}) {
      CaseSpec spec = spec_with_lengths(static_cast<std::uint64_t>(700 + dim));
      spec.qk_dim = spec.v_dim = dim;
      spec.sequences = "slots";
      spec.mask = mask;
      spec.q_rows = 300;
      spec.kv_rows = 700;
      SCOPED_TRACE(spec.text());
      GpuCase there(spec);
      there.run_and_judge();
    }
  }
}

// Every kernel, few CTAs that draw and many; NaN past the ends of padded sequences.
TEST_F(GpuLengths, GiveTheBitsOfTheHosts) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 100;
  Deck<int> ctas({0, 1, 2, 5}, 31);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    for (const char* sequences : {"lengths", "packed"}) {
      for (const char* mask : {"", "causal"}) {
        CaseSpec spec = spec_with_lengths(++seed);
        spec.qk_dim = kernel.qk_dim;
        spec.v_dim = kernel.v_dim;
        spec.sequences = sequences;
        spec.mask = mask;
        spec.tile = {kernel.config().rows(), kernel.kv_block};
        spec.rows = "given";  // which spare kernels are offered for
        spec.block = BlockSize{64, kernel.kv_block};
        spec.ctas = ctas.deal();
        spec.q_rows = 2 * kernel.config().rows() + 30;
        spec.kv_rows = 3 * kernel.kv_block + 30;
        specs.push_back(spec);
      }
    }
  }
  for_each_spec(some_if_reduced(specs, 9), [](CaseSpec spec) {
    GpuCase there(spec);
    there.run_and_judge();
    if (!other_family().empty()) return;  // forward_mma's CTAs share keys by what planning knows of lengths
    spec.device_lengths = false;
    GpuCase here(spec);
    here.run();
    EXPECT_EQ(outputs_of(there.host()), outputs_of(here.host()));
  });
}

// Query heads that share a tile: sequences that end inside of a head's rows, or before a tile's first query; heads and
// warpgroups that attend nothing.
TEST_F(GpuLengths, OfHeadsThatArePacked) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 500;
  Deck<int> ctas({0, 1, 3}, 33);
  Deck<std::int64_t> groups({3, 4, 5, 8, 9}, 34), rows({1, 16, 17, 33, 64}, 35);
  Deck<std::string> masks({"", "causal", "causal_lower_right", "by_head", "some_queries_blind", "nothing"}, 36),
      sinks({"none", "normal", "mixed"}, 37), scores({"", "alibi", "softcap"}, 38);
  for (const plan::ForwardSm90Kernel& kernel : plan::kForwardSm90Kernels) {
    if (kernel.spare) continue;
    for (const int packed : {16, 32, 64}) {
      for (const char* sequences : {"lengths", "packed"}) {
        CaseSpec spec = spec_with_lengths(++seed);
        spec.qk_dim = kernel.qk_dim;
        spec.v_dim = kernel.v_dim;
        spec.group = groups.deal();
        spec.q_rows = rows.deal();
        spec.kv_rows = 2 * kernel.kv_block + 30;
        spec.sequences = sequences;
        spec.mask = masks.deal();
        spec.score = scores.deal();
        spec.sinks = sinks.deal();
        spec.tile = {kernel.config().rows(), kernel.kv_block};
        spec.packed = packed;
        spec.ctas = ctas.deal();
        if (seed % 4 == 0) spec.o_dtype = DType::f32;
        if (seed % 5 == 0) spec.late = 100;
        if (seed % 7 == 0) {
          spec.v_dim = kernel.v_dim - 3;
          spec.layout = Layout::padded;
        }
        specs.push_back(spec);
      }
    }
  }
  for_each_spec(some_if_reduced(specs, 9), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Masks that blocks are classified by, and those that only the device can decide; scores of each form; starts.
TEST_F(GpuLengths, WithModsAndStarts) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 1000;
  Deck<std::string> starts({"none", "ahead", "aligned", "none"}, 41);
  Deck<std::int64_t> dims({64, 128, 64, 256}, 42);
  for (const char* sequences : {"lengths", "packed"}) {
    for (const char* mask : {"", "causal", "causal_lower_right", "sliding_window", "by_head", "nothing"}) {
      for (const char* score : {"", "alibi", "softcap"}) {
        CaseSpec spec = spec_with_lengths(++seed);
        spec.sequences = sequences;
        spec.mask = mask;
        spec.score = score;
        spec.q_start = starts.deal();
        spec.qk_dim = spec.v_dim = dims.deal();
        spec.late = *score == '\0' && seed % 4 == 0 ? 100 : 1;  // tiles are computed again
        specs.push_back(spec);
      }
    }
    for (const char* weight : {"dropout", "weights_by_key"}) {
      CaseSpec spec = spec_with_lengths(++seed);
      spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
      spec.sequences = sequences;
      spec.mask = "causal";
      spec.weight = weight;
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 7), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Rows of o that TMA does not store.
TEST_F(GpuLengths, OddHeadDims) {
  std::vector<CaseSpec> specs;
  std::uint64_t seed = 2000;
  for (const auto& [qk, v] : {std::pair(20, 33), {100, 65}, {1, 1}, {40, 8}, {192, 128}}) {
    for (const char* sequences : {"lengths", "packed"}) {
      CaseSpec spec = spec_with_lengths(++seed);
      spec.sequences = sequences;
      spec.mask = seed % 2 == 0 ? "causal" : "nothing";
      spec.qk_dim = qk;
      spec.v_dim = v;
      spec.layout = Layout::padded;
      specs.push_back(spec);
    }
  }
  for_each_spec(specs, [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

/// Every other head dim is one that 8 does not divide.
std::vector<CaseSpec> crossings(std::uint64_t seed) {
  std::vector<CaseSpec> specs;
  for (const auto& [qk, v] : {std::pair(128, 128), {64, 64}, {20, 33}}) {
    for (const char* sequences : {"lengths", "packed"}) {
      CaseSpec spec = spec_with_lengths(++seed);
      spec.sequences = sequences;
      spec.qk_dim = qk;
      spec.v_dim = v;
      spec.layout = v % 8 == 0 ? Layout::bshd : Layout::padded;
      specs.push_back(spec);
    }
  }
  return specs;
}

// Rows of a sequence that attend nothing have their sink, also where that is what no key, no tile or no sequence with
// keys leaves; rows past its end have none. NaN and infinite sinks poison the former alone.
TEST_F(GpuLengths, WithSinks) {
  std::vector<CaseSpec> specs;
  Deck<std::string> masks({"", "causal", "some_queries_blind", "nothing", "causal_lower_right"}, 51);
  Deck<std::optional<DType>> types({std::nullopt, DType::f32, std::nullopt, DType::e4m3, DType::f64}, 52);
  Deck<std::int64_t> keys({333, 333, 0, 333}, 53);
  for (const char* sinks : {"mixed", "normal", "mixed"}) {
    for (CaseSpec spec : crossings(4000 + 10 * specs.size())) {
      spec.sinks = sinks;
      spec.mask = masks.deal();
      spec.o_dtype = types.deal();
      spec.kv_rows = keys.deal();
      spec.late = spec.seed % 3 == 1 ? 100 : 1;
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 4), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

TEST_F(GpuLengths, WithOtherNormalizersAndTypesOfO) {
  std::vector<CaseSpec> specs;
  Deck<std::string> masks({"", "causal", "nothing", "some_queries_blind"}, 54);
  Deck<std::optional<DType>> types({DType::f64, std::nullopt, DType::f32, DType::e5m2, DType::e4m3}, 55);
  for (const Normalizer normalizer : {Normalizer::softmax, Normalizer::none, Normalizer::sigmoid}) {
    for (CaseSpec spec : crossings(4100 + 10 * specs.size())) {
      spec.normalizer = normalizer;
      spec.mask = masks.deal();
      spec.o_dtype = types.deal();
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 4), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// A bias that one more thread loads, which passes over tiles of sequences without keys as the consumers do.
TEST_F(GpuLengths, WithStreamedBiases) {
  std::vector<CaseSpec> specs;
  Deck<std::string> masks({"", "causal", "nothing"}, 56);
  for (const char* score : {"streamed_bias", "streamed_bias_f32", "streamed_in_cap"}) {
    for (CaseSpec spec : crossings(4300 + 10 * specs.size())) {
      spec.score = score;
      spec.mask = masks.deal();
      if (spec.v_dim % 8 == 0 && spec.seed % 2 == 0) spec.sinks = "normal";
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 4), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// And with starts that the device alone knows: the bias stands where there are positions.
TEST_F(GpuLengths, WithStreamedBiasesAndStarts) {
  for (CaseSpec spec : crossings(4500)) {
    spec.score = "streamed_inside";
    spec.q_start = spec.seed % 2 == 0 ? "ahead" : "aligned";
    GpuCase(spec).run_and_judge();
  }
}

// Keys lie in a longer sequence, and each run reads where; indices that only the device knows need `at`.
TEST_F(GpuLengths, WithKvStartsThere) {
  std::vector<CaseSpec> specs;
  Deck<std::string> masks({"causal", "sliding_window", "causal_lower_right", "dilated", "tree", "by_head", ""}, 71);
  Deck<std::string> scores({"alibi", "", "full_bias", "relative_bias"}, 72), weights({"", "", "dropout"}, 73);
  for (int i = 0; i < 2; ++i) {
    for (CaseSpec spec : crossings(5200 + 10 * specs.size())) {
      spec.mask = masks.deal();
      spec.score = scores.deal();
      spec.weight = weights.deal();
      spec.kv_start = spec.seed % 2 == 0 ? "ahead" : "uniform";
      spec.q_start = spec.seed % 3 == 0 ? "none" : "aligned";
      if (!spec.weight.empty()) spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 4), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// And where the host knows them: what it proves of a mod keeps its form, a bias by tiles is read element by element,
// the bits of documents are stored, and block masks are found where their captures are.
TEST_F(GpuLengths, WithKvStartsOfTheHost) {
  std::vector<CaseSpec> specs;
  Deck<std::string> masks({"long_documents_causal", "causal", "sliding_window", "dilated_documents",
                           "causal_lower_right", "dense", "tree", ""},
                          75);
  Deck<std::string> scores({"streamed_bias", "alibi", "", "t5_bias", "streamed_odd", "relative_bias"}, 76),
      sequences({"whole", "lengths", "packed"}, 77), weights({"", "dropout", "weights_by_key", ""}, 78);
  for (int i = 0; i < 3; ++i) {
    for (CaseSpec spec : crossings(5300 + 10 * specs.size())) {
      spec.device_lengths = false;
      spec.sequences = sequences.deal();
      spec.mask = masks.deal();
      spec.score = scores.deal();
      spec.weight = weights.deal();
      spec.kv_start = spec.seed % 2 == 0 ? "ahead" : "uniform";
      spec.q_start = spec.seed % 3 == 0 ? "ahead" : "aligned";
      if (!spec.weight.empty()) spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 4), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

// Both know elements by where they stand in their own sequence.
TEST_F(GpuLengths, WithDropoutAndMasksByBits) {
  std::vector<CaseSpec> specs;
  Deck<std::string> masks({"long_documents_causal", "dilated", "dilated_documents", "dilated_by_3", "tree"}, 57);
  Deck<std::string> weights({"dropout", "", "dropout_by_head", "", "drops_most"}, 58);
  for (int i = 0; i < 3; ++i) {
    for (CaseSpec spec : crossings(4600 + 10 * specs.size())) {
      spec.mask = masks.deal();
      spec.weight = weights.deal();
      if (!spec.weight.empty()) spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
      if (spec.mask.find("dilated") == 0 && spec.mask != "dilated_documents") spec.q_start = "ahead";
      specs.push_back(spec);
    }
  }
  for_each_spec(some_if_reduced(specs, 4), [](const CaseSpec& spec) { GpuCase(spec).run_and_judge(); });
}

}  // namespace
}  // namespace heddle::test
