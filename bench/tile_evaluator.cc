// Costs of mods on a tile: processor cycles per element, in place as in the CPU forward, on tiles of 96 x 128 (48 KiB:
// the scores come from the second cache) and of 12 x 128 (in the first).
//
//   bench_tile_evaluator [--benchmark_filter=REGEX]
//
// Each figure is the median of windows in which an FMA probe (peaks/fma_peak.h) before and after reached 90 % of the
// best probe seen, so that neighbours on the machine do not count; the clock is measured beside each window, by a chain
// of rotations.
#include "tile_evaluator/tile_evaluator.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <ctime>
#include <limits>
#include <string>
#include <vector>

#include "heddle/mods.h"
#include "peaks/fma_peak.h"

namespace heddle::bench {
namespace {

constexpr int kColumns = 128;
constexpr std::int64_t kLength = 2048;
constexpr std::int64_t kHeads = 4;

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Cycles per second: a rotation takes one cycle and waits for the one before.
double clock_rate() {
  constexpr int kChains = 20000;
  std::uint64_t x = 1;
  const double begin = thread_seconds();
  for (int i = 0; i < kChains; ++i) {
#pragma GCC unroll 16
    for (int k = 0; k < 16; ++k) {
      x = std::rotl(x, 7);
      asm volatile("" : "+r"(x));
    }
  }
  return 16.0 * kChains / (thread_seconds() - begin);
}

struct Case {
  std::string name;
  Expr e;
};

Bindings bindings() {
  static const Tensor slopes = mods::alibi_slopes(kHeads);
  static const Tensor documents = [] {
    const Tensor ids = Tensor::zeros(DType::i32, {kLength});
    for (std::int64_t i = 0; i < kLength; ++i) static_cast<std::int32_t*>(ids.data())[i] = static_cast<int>(i / 300);
    return ids;
  }();
  static const Tensor bias = Tensor::zeros(DType::f32, {kHeads, kLength, kLength});
  static const Tensor bias_bf16 = Tensor::zeros(DType::bf16, {kHeads, kLength, kLength});
  static const Tensor allowed = Tensor::zeros(DType::boolean, {kLength, kLength});
  static const Tensor table = Tensor::zeros(DType::f32, {kHeads, 257});
  static const Tensor buckets = Tensor::zeros(DType::f32, {32, kHeads});
  return {.captures = {{"slopes", slopes},
                       {"doc", documents},
                       {"bias", bias},
                       {"bias_bf16", bias_bf16},
                       {"allowed", allowed},
                       {"table", table},
                       {"buckets", buckets}},
          .params = {{"seed", 17}}};
}

std::vector<Case> cases() {
  const Expr score = leaf::score(), h = leaf::h(), q = leaf::q_idx(), kv = leaf::kv_idx();
  const Expr out = -std::numeric_limits<double>::infinity();
  const Capture slopes("slopes", DType::f32, 1), doc("doc", DType::i32, 1), bias("bias", DType::f32, 3);
  const Capture bias_bf16("bias_bf16", DType::bf16, 3), allowed("allowed", DType::boolean, 2);
  const Capture table("table", DType::f32, 2), buckets("buckets", DType::f32, 2);
  const auto masked = [&](const Expr& mask) { return where(mask, score, out); };
  return {
      {"scale", score * -1.0},
      {"scale_and_shift", score * 0.7 + 0.1},
      {"add", score + score},
      {"divide", score / 1.01},
      {"exp2", exp2(score)},
      {"exp", exp(score)},
      {"tanh", tanh(score)},
      {"sigmoid", sigmoid(score)},
      {"log", log(score)},
      {"erf", erf(score)},
      {"softcap", mods::softcap(30)},
      {"compare_select", where(score < 0.5, score, out)},
      {"causal", masked(mods::causal())},
      {"window", masked(mods::sliding_window(256))},
      {"documents", masked(mods::documents(doc))},
      {"documents_causal", masked(mods::documents(doc) & mods::causal())},
      {"dense_mask", masked(allowed(q, kv))},
      {"alibi", mods::alibi(slopes)},
      {"alibi_causal", where(mods::causal(), mods::alibi(slopes), out)},
      {"bias_f32", score + bias(h, q, kv)},
      {"bias_bf16", score + bias_bf16(h, q, kv)},
      {"relative_bias", mods::relative_bias(table, 128)},
      {"t5", mods::t5_bias(buckets, 32, 128, true)},
      {"gather", score + table(h, (q * kv) % 257)},
      {"block_diagonal", masked(floor_div(q, 48) == floor_div(kv, 48))},
      {"dropout", mods::dropout(0.1, param("seed", ExprType::i32))},
  };
}

void measure(benchmark::State& state, const Case& bench, int rows) {
  const cpu::TileProgram program(bench.e, expr::Precision::f32);
  const Bindings values = bindings();
  cpu::TileProgram::Scratch scratch(program, values);
  alignas(64) static float tile[96 * kColumns];
  cpu::TilePosition at{.sequence = {.q_len = kLength, .kv_len = kLength}, .q_first = 960, .kv_first = 896};
  at.h = 1;
  at.rows = rows;
  at.columns = kColumns;

  static double best_probe = 0;
  const int calls = 400'000 / (rows * kColumns) + 1;
  std::vector<double> cycles;
  double before = peaks::fma_peak_gflops(0.2);
  for (auto _ : state) {
    std::fill(std::begin(tile), std::end(tile), 0.25F);
    const double begin = thread_seconds();
    for (int i = 0; i < calls; ++i) program.run(at, tile, tile, kColumns, scratch);
    const double seconds = (thread_seconds() - begin) / calls;
    const double rate = clock_rate();  // at once, before the clock of wide vectors rises again
    state.SetIterationTime(seconds);
    const double after = peaks::fma_peak_gflops(0.2);
    best_probe = std::max({best_probe, before, after});
    if (std::min(before, after) >= 0.9 * best_probe) cycles.push_back(seconds * rate / (rows * kColumns));
    before = after;
  }
  if (cycles.empty()) return state.SkipWithError("the machine was never quiet");
  std::nth_element(cycles.begin(), cycles.begin() + static_cast<std::ptrdiff_t>(cycles.size() / 2), cycles.end());
  state.counters["cycles_per_element"] = cycles[cycles.size() / 2];
  state.counters["windows"] = static_cast<double>(cycles.size());
}

}  // namespace
}  // namespace heddle::bench

int main(int argc, char** argv) {
  using namespace heddle::bench;
  for (const int rows : {96, 12}) {
    for (const Case& bench : cases()) {
      const std::string name = bench.name + "/" + std::to_string(rows) + "x" + std::to_string(kColumns);
      benchmark::RegisterBenchmark(name.c_str(),
                                   [bench, rows](benchmark::State& state) { measure(state, bench, rows); })
          ->UseManualTime()
          ->Iterations(200);
    }
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
