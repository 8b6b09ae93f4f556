// How near does decoding on the CPU come to what the machine reads and multiplies?
//
//   bench_cpu_decode [--threads N] [--seconds S] [--all] [--avx2] [FILTER]
//
// Each cell runs in turns with a plain read of its own keys and values, on as many threads, and with an FMA probe; the
// table has the best of each. `bound` is min(read bandwidth x intensity, 0.85 x the multiply-add peak), and the last
// column is the cell's share of it. A small part of the grid runs without --all; --avx2 leaves AVX-512 unused.
#include <fmt/format.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cpu_windows.h"
#include "heddle/heddle.h"
#include "peaks/fma_peak.h"
#include "peaks/plain_read.h"

namespace heddle::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kPageRows = 16;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;  // of a cell's keys and values; larger cells are left out

struct Cell {
  DType q, kv;
  std::int64_t batch, keys, q_heads, kv_heads, q_rows, dim;
  bool paged;
  bool common;  // without --all, too

  std::int64_t elements() const { return 2 * batch * kv_heads * keys * dim; }
  std::int64_t bytes() const { return elements() * size_of(kv); }
  double flops() const { return 4.0 * static_cast<double>(batch * q_heads * q_rows * keys * dim); }
  std::string name() const {
    return fmt::format("{}_b{}_s{}_h{}_{}_q{}_d{}{}", heddle::name(kv), batch, keys, q_heads, kv_heads, q_rows, dim,
                       paged ? "_paged" : "");
  }
};

/// Query heads, kv heads and queries: 1, 4, 8, 16 and 64 rows for each kv head.
struct Rows {
  std::int64_t q_heads, kv_heads, q_rows;
};
constexpr Rows kRows[] = {{8, 8, 1}, {8, 8, 4}, {32, 8, 1}, {64, 8, 1}, {32, 8, 4}, {64, 1, 1}, {32, 8, 16}};

std::vector<Cell> cells() {
  std::vector<Cell> all;
  for (const std::int64_t dim : {128, 64}) {
    for (const DType kv : {DType::f32, DType::bf16, DType::f16, DType::e4m3, DType::e5m2}) {
      for (const std::int64_t batch : {1, 4, 16}) {
        for (const std::int64_t keys : {1024, 8192, 32768}) {
          for (const auto& [q_heads, kv_heads, q_rows] : kRows) {
            for (const bool paged : {false, true}) {
              const bool common = dim == 128 && batch == 1 && kv != DType::e5m2 &&
                                  (paged ? keys == 8192 && q_heads == 32 && q_rows == 1
                                         : keys == 8192 || (keys == 1024 && (q_heads == 64 || q_heads == 32)));
              const DType q = size_of(kv) == 1 ? DType::bf16 : kv;
              all.push_back({q, kv, batch, keys, q_heads, kv_heads, q_rows, dim, paged, common});
            }
          }
        }
      }
    }
  }
  std::erase_if(all, [](const Cell& cell) { return cell.bytes() > kMostBytes; });
  return all;
}

/// A block of normally distributed numbers, again and again: large tensors are filled at the speed of memory.
Tensor filled_tensor(DType dtype, const Dims& shape, unsigned seed) {
  constexpr std::int64_t kBlock = 1 << 16;
  const Tensor block = random_tensor(dtype, {kBlock}, seed);
  Tensor x = Tensor::empty(dtype, shape);
  auto* to = static_cast<std::byte*>(x.data());
  const std::int64_t bytes = x.count() * size_of(dtype), step = kBlock * size_of(dtype);
  for (std::int64_t first = 0; first < bytes; first += step) {
    std::memcpy(to + first, block.data(), static_cast<std::size_t>(std::min(step, bytes - first)));
  }
  return x;
}

/// Best seconds of one run.
struct Times {
  double run = std::numeric_limits<double>::infinity(), read = run, gflops = 0;
};

void keep_best(double& best, double seconds) { best = std::min(best, seconds); }

/// Processor time of one thread, which other people's work does not lengthen; the time that passes for several.
template <class F>
double seconds_of(int threads, F&& f) {
  const auto now = [&] {
    return threads == 1 ? process_seconds() : std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
  };
  const double begin = now();
  f();
  return now() - begin;
}

void print_cell(const Cell& cell, const Times& times, int threads) {
  const double gflops = cell.flops() / times.run * 1e-9;
  const double bandwidth = static_cast<double>(cell.bytes()) / times.read * 1e-9;
  const double peak = times.gflops * threads;
  const double from_memory = bandwidth * cell.flops() / static_cast<double>(cell.bytes());
  const double bound = std::min(from_memory, 0.85 * peak);
  fmt::print("{:<38} {:10.1f} {:8.1f} {:8.1f} {:8.1f} {:8.1f} {:>6} {:6.2f}\n", cell.name(), times.run * 1e6,
             static_cast<double>(cell.bytes()) / times.run * 1e-9, bandwidth, gflops, peak,
             from_memory < 0.85 * peak ? "read" : "fma", gflops / bound);
  std::fflush(stdout);
}

void measure(const Cell& cell, int threads, double seconds) {
  const auto& [q_dtype, kv_dtype, batch, keys, q_heads, kv_heads, q_rows, dim, paged, common] = cell;
  const std::int64_t pages = keys / kPageRows;
  const Dims kv_shape = paged ? Dims{batch * pages, kv_heads, kPageRows, dim} : Dims{batch, kv_heads, keys, dim};
  const Tensor q = random_tensor(q_dtype, {batch, q_heads, q_rows, dim}, 1);
  const Tensor k = filled_tensor(kv_dtype, kv_shape, 2), v = filled_tensor(kv_dtype, kv_shape, 3);
  const Tensor o = Tensor::empty(q_dtype, {batch, q_heads, q_rows, dim});
  AttentionOptions options;
  options.threads = threads;
  Tensor table = Tensor::empty(DType::i32, {batch, pages}), lengths = Tensor::empty(DType::i64, {batch});
  if (paged) {
    auto* entries = static_cast<std::int32_t*>(table.data());
    std::iota(entries, entries + batch * pages, 0);
    std::shuffle(entries, entries + batch * pages, std::mt19937(4));
    std::fill_n(static_cast<std::int64_t*>(lengths.data()), batch, keys);
    options.page_table = table;
    options.kv_lengths = lengths;
  }
  const AttentionTensors tensors = {q, k, v, o, {}};
  const AttentionPlan plan(tensors, options);
  const Tensor workspace = Tensor::empty(DType::u8, {plan.workspace_bytes()});
  const auto run = [&] { plan.run(tensors, {.workspace = workspace.data()}); };
  const auto bytes_of = [&](const Tensor& x) {
    return std::span(static_cast<const std::byte*>(x.data()), static_cast<std::size_t>(cell.bytes() / 2));
  };
  const auto read = [&] { peaks::plain_read(threads, bytes_of(k), bytes_of(v)); };
  run();
  Times times;
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  for (int round = 0; round < 5 || Clock::now() < end; ++round) {
    keep_best(times.read, seconds_of(threads, read));
    keep_best(times.run, seconds_of(threads, run));
    times.gflops = std::max(times.gflops, peaks::fma_peak_gflops(0.5));
  }
  print_cell(cell, times, threads);
}

int main(int count, char** arguments) {
  bool all = false;
  std::vector<char*> others = {arguments[0]};
  for (int i = 1; i < count; ++i) {
    if (std::string_view(arguments[i]) == "--all") {
      all = true;
    } else if (std::string_view(arguments[i]) == "--avx2") {
      hwy::SetSupportedTargetsForTest(hwy::SupportedTargets() & ~(HWY_AVX3 | (HWY_AVX3 - 1)));
    } else {
      others.push_back(arguments[i]);
    }
  }
  const CpuArguments asked = cpu_arguments(static_cast<int>(others.size()), others.data());
  fmt::print("{} threads\n{:<38} {:>10} {:>8} {:>8} {:>8} {:>8} {:>6} {:>6}\n", asked.threads, "cell", "us", "GB/s",
             "read", "GFLOP/s", "peak", "bound", "share");
  for (const Cell& cell : cells()) {
    if ((all || cell.common) && cell.name().find(asked.filter) != std::string::npos) {
      measure(cell, asked.threads, asked.seconds);
    }
  }
  return 0;
}

}  // namespace
}  // namespace heddle::bench

int main(int count, char** arguments) { return heddle::bench::main(count, arguments); }
