// The portable backward's plans: what it refuses, in sentences, its passes, and that the lists of both kinds of tiles
// name the same pairs.
#include "families/backward_mma/backward_mma.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "families/backward_mma/portable_call.h"
#include "heddle/mods.h"
#include "plan/hopper.h"

namespace heddle::test {
namespace {

TEST(BackwardMma, RefusesInSentences) {
  PortableCall call;
  EXPECT_EQ(call.refusal(call.tensors()), "");
  call.call.o_dtype = DType::f32;
  EXPECT_EQ(call.refusal(call.tensors()), "dO is f32; bf16, q's type, is accepted");
  call.call.o_dtype.reset();
  BackwardTensors tensors = call.tensors();
  tensors.dq->dtype = DType::e4m3;
  EXPECT_EQ(call.refusal(tensors), "dq is e4m3; f16, bf16, f32 and f64 are accepted");
  call.call.dim = 577;
  EXPECT_EQ(call.refusal(call.tensors()), "q and k have head dimension 577; 1 to 576 are accepted");
  call.call.dim = 513;
  EXPECT_EQ(call.refusal(call.tensors()), "v has head dimension 513; 1 to 512 are accepted");
  call.call.dim = 512;
  EXPECT_EQ(call.refusal(call.tensors()), "");
  call.call.dim = 64;
  call.call.dtype = DType::f64;
  tensors = call.tensors();
  tensors.lse->dtype = DType::f64;
  EXPECT_EQ(call.refusal(tensors), "");
  call.call.dim = 257;
  tensors = call.tensors();
  tensors.lse->dtype = DType::f64;
  EXPECT_EQ(call.refusal(tensors),
            "q and k have head dimension 257; 1 to 256 are accepted of f64, whose sums take a thread's registers "
            "there");
  call.call.dim = 64;
  call.call.dtype = DType::bf16;
  call.call.shared_kv = true;
  EXPECT_EQ(call.refusal(call.tensors()), "");
}

// Products are those of 16 bits; copies have rows of whole 16 bytes.
TEST(BackwardMma, CopiesTensorsOf8Bits) {
  PortableCall call;
  call.call.kv_dtype = DType::e4m3;
  call.call.dim = 33;
  BackwardTensors tensors = call.tensors();
  tensors.dk->dtype = tensors.dv->dtype = DType::bf16;
  EXPECT_EQ(call.refusal(tensors), "");
  const auto kernels_of = [&](const BackwardTensors& given) {
    return call.with_request(given, [&](const plan::Request& request) {
      const plan::Choice choice =
          plan::backward_mma(request, h200(), [&](BlockSize block) { return call.call.rows_of(block); }).front();
      const auto& kernels = choice.plan.part<plan::BackwardMmaKernels>();
      EXPECT_EQ(choice.plan.workspace_bytes - kernels.copies.bytes,
                plan::backward_mma_workspace(request.problem, kernels).copies);
      return kernels;
    });
  };
  plan::BackwardMmaKernels kernels = kernels_of(tensors);
  EXPECT_EQ(kernels.copies.at, (std::array<std::int64_t, 3>{-1, 0, 2 * 2 * 300 * 40 * 2}));
  EXPECT_EQ(kernels.passes.front().row_bytes, 16);  // keys; queries stand at odd places
  EXPECT_EQ(kernels.passes.front().step_bytes, 2);
  EXPECT_TRUE(kernels.passes.front().descaled);
  EXPECT_EQ(kernels.rows.storage, shared::Storage::bf16);
  // dO says which type products have beside q of 8 bits.
  call.call.dtype = DType::e5m2;
  call.call.o_dtype = DType::f16;
  tensors = call.tensors();
  for (auto* gradient : {&tensors.dq, &tensors.dk, &tensors.dv}) (*gradient)->dtype = DType::bf16;
  kernels = kernels_of(tensors);
  EXPECT_EQ(kernels.rows.storage, shared::Storage::f16);
  EXPECT_GE(kernels.copies.at[0], 0);
  call.call.o_dtype = DType::f32;
  tensors = call.tensors();
  for (auto* gradient : {&tensors.dq, &tensors.dk, &tensors.dv}) (*gradient)->dtype = DType::bf16;
  EXPECT_EQ(call.refusal(tensors), "dO is f32; f16 and bf16 are accepted beside q of 8 bits");
}

TEST(BackwardMma, HasThePassesThatAreAskedFor) {
  PortableCall call;
  EXPECT_EQ(call.passes(), std::vector<std::string>{"dq, dk and dv"});
  call.call.options.deterministic = true;
  EXPECT_EQ(call.passes(), (std::vector<std::string>{"dk and dv", "dq"}));
  call.dq = false;
  EXPECT_EQ(call.passes(), std::vector<std::string>{"dk and dv"});
  call.dk = false;
  EXPECT_EQ(call.passes(), std::vector<std::string>{"dv"});
  call = {.dk = false, .dv = false};
  EXPECT_EQ(call.passes(), std::vector<std::string>{"dq"});
  call = {};
  call.call.dim = 256;
  EXPECT_EQ(call.passes(), (std::vector<std::string>{"dk", "dv", "dq"}));
}

TEST(BackwardMma, LooksUpPositions) {
  PortableCall call;
  const Tensor granules = Tensor::zeros(DType::i32, {5});
  for (const char* name : {"q_granules", "kv_granules"}) call.call.options.bindings.captures[name] = granules;
  const auto placed = [](const Expr& mod) {
    return mods::by_granules(mod, Capture("q_granules", DType::i32, 1), Capture("kv_granules", DType::i32, 1), 64);
  };
  call.call.mask = placed(mods::causal());
  const plan::Plan plan = call.plan();
  EXPECT_EQ(plan.forms.places, "queries by granules of 64 rows, keys by granules of 64 rows");
  for (const shared::BackwardMmaConfig& pass : plan.part<plan::BackwardMmaKernels>().passes) {
    EXPECT_TRUE(pass.placed_queries && pass.placed_keys);
  }
  // Two granules may have one position, so an element of a bias may be read by many pairs.
  const Tensor bias = Tensor::zeros(DType::f32, {1 << 12, 1 << 12});
  call.call.options.bindings.captures["bias"] = bias;
  call.call.options.score_mod =
      mods::by_granules(leaf::score() + Capture("bias", DType::f32, 2)(leaf::q_idx(), leaf::kv_idx()),
                        Capture("q_granules", DType::i32, 1), Capture("kv_granules", DType::i32, 1), 64, 1 << 12);
  call.call.mask = mods::by_granules(mods::causal(), Capture("q_granules", DType::i32, 1),
                                     Capture("kv_granules", DType::i32, 1), 64, 1 << 12);
  call.call.options.deterministic = true;
  BackwardTensors tensors = call.tensors();
  tensors.d_captures["bias"] = bias;
  call.with_request(tensors, [](const plan::Request& request) {
    const plan::BackwardMods mods = plan::backward_mods(request.problem, plan::OfPlaces::native);
    const plan::MmaReads reads = plan::mma_reads(request.problem, request.options.bindings, mods);
    EXPECT_EQ(print(reads.reads.at(0).indices.at(0)), "q_idx");
    EXPECT_EQ(reads.bits(0), 19);
    return 0;
  });
}

// Integers have room for all parts of an element, whoever sums them: a pass of keys, or one of queries.
TEST(BackwardMma, CountsThePartsOfReads) {
  const Expr keys = Capture("table", DType::f32, 1)(leaf::kv_idx()),
             pairs = Capture("table", DType::f32, 1)(leaf::kv_idx() + leaf::q_idx()),
             own = Capture("bias", DType::f32, 2)(leaf::q_idx(), leaf::kv_idx());
  const auto bits = [](const Expr& term, bool d_k) {
    PortableCall call{.dk = d_k};
    call.call.options.score_mod = leaf::score() + term;
    call.call.options.deterministic = true;
    const std::string name = symbols_of(term).captures.begin()->first;
    static std::vector<float> values(200 * 300);
    const TensorView table(values.data(), DType::f32, name == "bias" ? Dims{200, 300} : Dims{600});
    call.call.options.bindings.captures[name] = table;
    BackwardTensors tensors = call.tensors();
    tensors.d_captures[name] = table;
    return call.with_request(tensors, [](const plan::Request& request) {
      const plan::MmaReads reads = plan::mma_reads(request.problem, request.options.bindings, {});
      EXPECT_TRUE(reads.ordered);
      EXPECT_EQ(plan::refuses_mma_reads(reads), "");
      return reads.bits(0);
    });
  };
  EXPECT_EQ(bits(keys, true), 12);   // 2 sequences x 300 keys x 4 heads: a part of each key of a tile
  EXPECT_EQ(bits(keys, false), 19);  // a part a pair
  EXPECT_EQ(bits(pairs, true), 19);
  EXPECT_EQ(bits(own, true), 4);  // sequences and heads
}

// One CTA sums a gradient over the sequences that a tensor of batch 1 serves: its items stand beside each other.
TEST(BackwardMma, SumsWhatServesAllSequences) {
  PortableCall call;
  call.call.shared_kv = true;
  const plan::Plan planned = call.plan();
  const auto& passes = planned.part<plan::BackwardMmaKernels>().passes;
  ASSERT_EQ(call.passes(), (std::vector<std::string>{"dk and dv", "dq"}));
  EXPECT_TRUE(passes[0].all_sequences);
  EXPECT_FALSE(passes[1].all_sequences);
  const problem::AttentionProblem problem = call.problem(call.tensors());
  const plan::BackwardSchedule schedule = plan::backward_mma_schedule(problem, passes[0], nullptr);
  ASSERT_EQ(schedule.items.size(), 2U * 2U * 3U);  // sequences, heads, tiles of 128 keys
  EXPECT_EQ(plan::backward_mma_ctas(problem, passes[0], 12), 6);
  EXPECT_EQ(plan::backward_mma_ctas(problem, passes[1], 16), 16);
  for (std::size_t i = 0; i < schedule.items.size(); ++i) {
    const shared::BackwardItem &item = schedule.items[i], &first = schedule.items[i / 2 * 2];
    EXPECT_EQ(item.batch, static_cast<int>(i % 2));
    EXPECT_EQ(std::tuple(item.kv_head, item.kv_tile), std::tuple(first.kv_head, first.kv_tile));
  }
  // k alone serves all: dk and dv have a pass each.
  BackwardTensors tensors = call.tensors();
  tensors.v.shape[0] = tensors.dv->shape[0] = 2;
  const auto kernels = call.with_request(tensors, [&](const plan::Request& request) {
    return plan::backward_mma(request, h200(), [&](BlockSize block) { return call.call.rows_of(block); })
        .front()
        .plan.part<plan::BackwardMmaKernels>();
  });
  ASSERT_EQ(kernels.passes.size(), 3U);
  EXPECT_TRUE(kernels.passes[0].all_sequences && kernels.passes[0].d_qk && !kernels.passes[0].d_v);
  EXPECT_TRUE(!kernels.passes[1].all_sequences && kernels.passes[1].d_v);
}

/// Query head, sequence, block of queries, block of keys, and whether the mask decides there: each step of a schedule.
using Pair = std::tuple<int, int, int, int, bool>;
std::set<Pair> pairs_of(const plan::BackwardSchedule& schedule, bool of_keys, const shared::TileShape& shape) {
  std::set<Pair> pairs;
  for (const shared::BackwardItem& item : schedule.items) {
    for (int r = item.first_run; r < item.first_run + item.runs; ++r) {
      const shared::QueryRun& run = schedule.runs[static_cast<std::size_t>(r)];
      for (int step = run.begin; step < run.end; ++step) {
        for (int unit = 0; unit < shape.warpgroups; ++unit) {
          const int flags = run.flags >> unit, row = item.kv_tile * shape.warpgroups + unit;
          if ((flags & shared::kStepAttends) == 0) continue;
          const bool partial = (flags & shared::kStepPartial) != 0;
          const bool fresh =
              pairs.insert({run.head, item.batch, of_keys ? step : row, of_keys ? row : step, partial}).second;
          EXPECT_TRUE(fresh) << "a step is listed twice";
        }
      }
    }
  }
  return pairs;
}

TEST(BackwardMma, TilesOfQueriesAndOfKeysNameTheSamePairs) {
  for (const bool causal : {false, true}) {
    PortableCall call;
    call.call.q_rows = call.call.kv_rows = 300;
    if (causal) call.call.mask = mods::causal();
    const problem::AttentionProblem problem = call.problem(call.tensors());
    const auto rows = call.call.rows_of({shared::kBackwardBlock, shared::kBackwardBlock});
    const shared::TileShape one{1, shared::kBackwardBlock}, two{2, shared::kBackwardBlock};
    const std::set<Pair> of_keys =
        pairs_of(plan::backward_schedule(problem, plan::TileRows::keys, two, false, rows.get()), true, two);
    EXPECT_EQ(of_keys.size(), 2U * 4U * (causal ? 15U : 25U));
    for (const shared::TileShape& shape : {one, two}) {
      const plan::BackwardSchedule schedule =
          plan::backward_schedule(problem, plan::TileRows::queries, shape, false, rows.get());
      EXPECT_EQ(std::ssize(schedule.items), plan::count_tiles_of(problem, plan::TileRows::queries, shape));
      EXPECT_EQ(pairs_of(schedule, false, shape), of_keys);
    }
  }
}

TEST(BackwardMma, WorkspaceHasWhatRowsNeed) {
  PortableCall call;
  call.call.options.deterministic = true;
  // 2 sequences of 4 blocks, 4 heads, 128 floats each.
  constexpr std::int64_t kBlocks = 2 * 4 * 4, kNumbers = kBlocks * 128 * 4;
  EXPECT_EQ(call.plan().workspace_bytes, kNumbers);
  // The sums of dq, of 64 queries each.
  call.call.options.deterministic = false;
  EXPECT_EQ(call.plan().workspace_bytes, kNumbers + kBlocks * 64 * call.call.dim * 4);
}

}  // namespace
}  // namespace heddle::test
