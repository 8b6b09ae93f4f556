// Lengths, cumulative lengths and starts in a GPU's memory: what the host's give, to the bit where nothing classifies
// blocks otherwise; changed between runs and under a captured graph; and numbers that the host would have refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "base/element.h"
#include "engine/deck.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "heddle/mods.h"
#include "kernels/cuda/gpu_runs.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

using Lengths = std::vector<std::int64_t>;

class GpuLengths : public GpuTest {};

CaseSpec spec_of(std::uint64_t seed) {
  CaseSpec spec;
  spec.seed = seed;
  spec.batch = 4;
  spec.kv_heads = 2;
  spec.group = 2;
  spec.q_rows = 300;
  spec.kv_rows = 333;
  spec.qk_dim = spec.v_dim = 128;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = seed % 3 == 0 ? DType::f16 : DType::bf16;
  spec.layout = Layout::bshd;
  spec.device_lengths = true;
  spec.threads = 1;
  return spec;
}

// Packed keys of which not all count, with NaN in the others: the host's lengths and the device's give the same bits.
TEST_F(GpuLengths, OfPackedKeysThatCount) {
  for (const std::int64_t dim : {64, 128, 256}) {
    for (const char* mask : {"", "causal_lower_right"}) {
      CaseSpec spec = spec_of(static_cast<std::uint64_t>(700 + dim));
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
        CaseSpec spec = spec_of(++seed);
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
        CaseSpec spec = spec_of(++seed);
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
        CaseSpec spec = spec_of(++seed);
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
      CaseSpec spec = spec_of(++seed);
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
      CaseSpec spec = spec_of(++seed);
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
      CaseSpec spec = spec_of(++seed);
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

Lengths clamped(const Lengths& values, std::int64_t most) {
  Lengths all = values;
  for (std::int64_t& value : all) value = std::clamp<std::int64_t>(value, 0, most);
  return all;
}

/// Judges the results of `run`, as if lengths and starts were these.
template <class Run>
void judge_with(GpuCase& c, const Lengths& q, const Lengths& kv, const Lengths& starts, Run&& run) {
  AttentionOptions& options = c.options();
  const auto view = [](const Lengths& values) {
    return ConstTensorView(values.data(), DType::i64, {std::ssize(values)});
  };
  options.q_lengths = view(q);
  options.kv_lengths = view(kv);
  options.q_start = view(starts);
  run();
  judge(c.host());
  options.q_lengths = options.kv_lengths = options.q_start = {};
}

struct Change {
  Lengths q, kv, starts;
};
constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max(), kLow = std::numeric_limits<std::int64_t>::min();

/// Lengths out of 300 queries and 333 keys: none, all, and some.
std::vector<Change> changes() {
  return {{{300, 300, 300, 300}, {333, 333, 333, 333}, {0, 0, 0, 0}},
          {{0, 1, 128, 299}, {0, 1, 80, 332}, {0, 7, -7, 100}},
          {{0, 0, 0, 0}, {0, 0, 0, 0}, {0, 0, 0, 0}},
          {{300, 5, 0, 64}, {0, 0, 333, 129}, {33, 0, -100, 1000}},
          {{301, kFar, -1, kLow}, {334, kLow, 5, kFar}, {0, 0, 3, 0}}};
}

void expect_each_change(CaseSpec spec, bool graph) {
  GpuCase c(spec);
  Numbers<std::int64_t> q({4}), kv({4}), starts({4});
  AttentionOptions options = c.options();
  options.q_lengths = q.view();
  options.kv_lengths = kv.view();
  options.q_start = starts.view();
  Runs runs(c, options);
  std::optional<cuda::ContextScope> scope;
  if (gpu_backend() == BackendChoice::cuda) scope.emplace(0);
  if (graph) runs.capture();
  for (const Change& change : changes()) {
    q.set(change.q);
    kv.set(change.kv);
    starts.set(change.starts);
    judge_with(c, clamped(change.q, 300), clamped(change.kv, 333), change.starts,
               [&] { graph ? runs.replay() : runs.run(); });
  }
  if (graph) runs.destroy_graph();
}

TEST_F(GpuLengths, MayChangeBetweenRunsAndBeNonsense) {
  for (const char* mask : {"", "causal"}) {
    CaseSpec spec = spec_of(3001);
    spec.mask = mask;
    expect_each_change(spec, false);
  }
}

TEST_F(GpuLengths, AreReadAgainByEachReplayOfAGraph) {
  CaseSpec spec = spec_of(3101);
  spec.mask = "causal";
  spec.group = 20;  // more tiles than multiprocessors: they are drawn
  expect_each_change(spec, true);
}

TEST_F(GpuLengths, KvStartsMayChangeBetweenRuns) {
  for (const bool graph : {false, true}) {
    CaseSpec spec = spec_of(graph ? 3402 : 3401);
    spec.mask = "causal";
    spec.score = "alibi";
    GpuCase c(spec);
    Numbers<std::int64_t> starts({4});
    AttentionOptions options = c.options_there();
    options.kv_start = starts.view();
    Runs runs(c, options);
    std::optional<cuda::ContextScope> scope;
    if (gpu_backend() == BackendChoice::cuda) scope.emplace(0);
    if (graph) runs.capture();
    for (const Lengths& values : {Lengths{0, 0, 0, 0}, {0, 64, -7, 333}, {1000, 5, -1000, 1}}) {
      starts.set(values);
      c.options().kv_start = ConstTensorView(values.data(), DType::i64, {4});
      graph ? runs.replay() : runs.run();
      judge(c.host());
      c.options().kv_start.reset();
    }
    if (graph) runs.destroy_graph();
  }
}

/// Sequences as the device must take cumulative lengths that may be anything, as a right packed batch: rows and keys
/// that none has are sequences of their own, of the one or the other alone.
struct RightLengths {
  Lengths q = {0}, kv = {0};
  RightLengths(const Lengths& q_given, const Lengths& kv_given, std::int64_t q_rows, std::int64_t kv_rows,
               std::int64_t max_q, std::int64_t max_kv) {
    const auto end_of = [](std::int64_t before, std::int64_t given, std::int64_t rows) {
      return std::max(before, std::clamp<std::int64_t>(given, 0, rows));
    };
    for (std::size_t i = 1; i < q_given.size(); ++i) {
      const std::int64_t q_end = end_of(q.back(), q_given[i], q_rows), kv_end = end_of(kv.back(), kv_given[i], kv_rows);
      add(std::min(q.back() + max_q, q_end), std::min(kv.back() + max_kv, kv_end));
      add(q_end, kv.back());
      add(q.back(), kv_end);
    }
    add(q_rows, kv.back());
    add(q.back(), kv_rows);
  }
  void add(std::int64_t q_end, std::int64_t kv_end) {
    q.push_back(q_end);
    kv.push_back(kv_end);
  }
};

TEST_F(GpuLengths, GarbageInCumulativeLengthsTouchesNothingElse) {
  CaseSpec spec = spec_of(3201);
  spec.batch = 1;
  GpuCase c(spec);
  Numbers<std::int64_t> q({5}), kv({5});
  AttentionOptions options = c.options();
  options.cu_seqlens_q = q.view();
  options.cu_seqlens_kv = kv.view();
  options.max_q_len = 140;
  options.max_kv_len = 150;
  Runs runs(c, options);
  const std::vector<Change> all = {{{0, 100, 140, 200, 300}, {0, 90, 200, 210, 333}, {}},
                                   {{0, 0, 0, 0, 0}, {0, 0, 0, 0, 0}, {}},
                                   {{50, 200, 100, 250, 280}, {7, 20, 200, 190, 300}, {}},
                                   {{-5, kFar, kLow, 3, 4}, {kLow, kLow, 200, kFar, -9}, {}},
                                   {{0, 20, 30, 30, 290}, {0, 0, 160, 160, 333}, {}}};
  for (const Change& change : all) {
    q.set(change.q);
    kv.set(change.kv);
    const RightLengths right(change.q, change.kv, 300, 333, 140, 150);
    const std::int64_t count = std::ssize(right.q);
    c.options().cu_seqlens_q = ConstTensorView(right.q.data(), DType::i64, {count});
    c.options().cu_seqlens_kv = ConstTensorView(right.kv.data(), DType::i64, {count});
    runs.run();
    judge(c.host());
  }
}

// One sequence's NaN is its own.
TEST_F(GpuLengths, KeepPackedSequencesApart) {
  CaseSpec spec = spec_of(3301);
  spec.sequences = "packed";
  spec.mask = "causal";
  GpuCase clean(spec), poisoned(spec);
  const auto* q_ends = static_cast<const std::int32_t*>(clean.options().cu_seqlens_q->data);
  const auto* kv_ends = static_cast<const std::int64_t*>(clean.options().cu_seqlens_kv->data);
  const std::int64_t count = clean.options().cu_seqlens_q->shape[0] - 1, last = count - 1;
  const auto poison = [&](const GuardedTensor& tensor, std::int64_t begin) {
    tensor.for_each_element([&](const Dims& at, std::int64_t offset) {
      if (at[2] < begin) return;
      base::store_element(tensor.view().data, tensor.view().dtype, offset, std::numeric_limits<double>::quiet_NaN());
    });
  };
  poison(poisoned.host().q, q_ends[last]);
  poison(poisoned.host().k, kv_ends[last]);
  poison(poisoned.host().v, kv_ends[last]);
  clean.run_and_judge();
  poisoned.run();
  const GuardedTensor &o = clean.host().o, &other = poisoned.host().o;
  o.for_each_element([&](const Dims& at, std::int64_t offset) {
    if (at[2] >= q_ends[last]) return;
    EXPECT_EQ(base::load_element(o.view().data, o.view().dtype, offset),
              base::load_element(other.view().data, other.view().dtype, offset));
  });
}

}  // namespace
}  // namespace heddle::test
