#include "rates.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>
#include <numeric>

namespace heddle::bench {
namespace {

constexpr void* kNoSink = nullptr;  // kernels write results there only when asked to go -1 steps

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

template <class Value>
double mean_of(const std::vector<Span>& spans, Value value) {
  std::vector<double> values;
  for (const Span& span : spans) values.push_back(std::invoke(value, span));
  return mean(values);
}

/// From the first to begin to the last to end.
double clocks_of_all(const std::vector<Span>& spans) {
  const auto begin = std::ranges::min(spans, {}, &Span::begin).begin;
  return static_cast<double>(std::ranges::max(spans, {}, &Span::end).end - begin);
}
double seconds_of_all(const std::vector<Span>& spans) {
  const auto begin = std::ranges::min(spans, {}, &Span::begin_ns).begin_ns;
  return 1e-9 * static_cast<double>(std::ranges::max(spans, {}, &Span::end_ns).end_ns - begin);
}

/// Time of `work` on this thread.
template <class Work>
double host_seconds(Work&& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

constexpr int kWarmRounds = 2;  // the first launch of a kernel loads its code

}  // namespace

std::vector<ProductRate> product_rates(const Gpu& gpu) {
  constexpr int kSteps = 4000;
  std::vector<ProductRate> rates;
  for (const int columns : kProductColumns) {
    const LoadedKernel kernel(products_source(columns), "products", operand_bytes(columns, 2));
    for (const bool from_registers : {false, true}) {
      for (const int warpgroups : {1, 2}) {
        const Spans spans(warpgroups);
        for (int round = 0; round < kWarmRounds; ++round) {
          gpu.launch(kernel, {.threads = 128 * warpgroups}, spans.data(), kNoSink, kSteps,
                     static_cast<int>(from_registers));
        }
        gpu.wait();
        rates.push_back({columns, from_registers, warpgroups,
                         clocks_of_all(spans.read()) / (kSteps * kProductsAStep * warpgroups)});
      }
    }
  }
  return rates;
}

namespace {

/// The spans of the warps of "pipes".
std::vector<Span> run_pipes(const Gpu& gpu, const LoadedKernel& kernel, int operation, int steps,
                            int product_warpgroups) {
  const int threads = 128 * (2 + product_warpgroups);
  const Spans spans(threads / 32);
  for (int round = 0; round < kWarmRounds; ++round) {
    gpu.launch(kernel, {.threads = threads}, spans.data(), kNoSink, operation, steps, product_warpgroups, 0.999F);
  }
  gpu.wait();
  return spans.read();
}

/// Clocks of one warp instruction for a scheduler that has two warps with `steps` of them.
double clocks_a_warp_instruction(const std::vector<Span>& pipe_warps, int steps) {
  return mean_of(pipe_warps, &Span::clocks) / (2.0 * steps * kOperationsAStep);
}

}  // namespace

std::vector<PipeRate> pipe_rates(const Gpu& gpu) {
  constexpr int kSteps = 2000;
  const LoadedKernel kernel(pipes_source(), "pipes", operand_bytes(kPipeColumns, 1));
  std::vector<PipeRate> rates;
  for (int operation = 0; operation < static_cast<int>(kOperations.size()); ++operation) {
    const std::vector<Span> alone = run_pipes(gpu, kernel, operation, kSteps, 0);
    const std::vector<Span> beside = run_pipes(gpu, kernel, operation, kSteps, 1);
    const std::vector<Span> products(beside.begin(), beside.begin() + 4);
    const std::vector<Span> pipes(beside.begin() + 4, beside.end());
    const double product_clocks = mean_of(
        products, [](const Span& span) { return span.clocks() / static_cast<double>(span.steps * kProductsAStep); });
    const Operation& meant = kOperations[static_cast<std::size_t>(operation)];
    rates.push_back({.name = meant.name,
                     .meaning = meant.meaning,
                     .alone = clocks_a_warp_instruction(alone, kSteps),
                     .beside = clocks_a_warp_instruction(pipes, kSteps),
                     .products_beside = kPipeColumns / 2 / product_clocks});
  }
  return rates;
}

namespace {

constexpr int kTilesOfMemory = 1024;  // a CTA, 16 MiB: all of them are many times the L2 cache
constexpr int kTilesOfL2 = 16;        // a CTA, 256 KiB: all of them stay in the L2 cache

/// Rows of 64 two-byte elements, loaded in boxes of kTileRows.
cuda::CUtensorMap map_of(const cuda::DeviceMemory& memory) {
  cuda::CUtensorMap map{};
  const std::uint64_t extents[] = {kTileRowBytes / 2, memory.bytes() / kTileRowBytes};
  const std::uint64_t strides[] = {kTileRowBytes};
  const std::uint32_t box[] = {kTileRowBytes / 2, kTileRows};
  const std::uint32_t steps[] = {1, 1};
  cuda::check(cuda::driver().TensorMapEncodeTiled(
                  &map, cuda::CUtensorMapDataType::bfloat16, 2, memory.data(), extents, strides, box, steps,
                  cuda::CUtensorMapInterleave::none, cuda::CUtensorMapSwizzle::bytes128,
                  cuda::CUtensorMapL2promotion::bytes128, cuda::CUtensorMapFloatOOBfill::zeros),
              "encoding a tensor map");
  return map;
}

struct LoadPattern {
  const char* what;
  int blocks, tiles, own, apart;
};

LoadRate load_rate(const Gpu& gpu, const LoadedKernel& kernel, const cuda::CUtensorMap& map,
                   const LoadPattern& pattern) {
  const Spans spans(pattern.blocks);
  for (int round = 0; round < kWarmRounds; ++round) {
    gpu.launch(kernel, {.blocks = pattern.blocks}, map, spans.data(), pattern.tiles, pattern.own, pattern.apart);
  }
  gpu.wait();
  const std::vector<Span> found = spans.read();
  const double bytes = static_cast<double>(pattern.tiles) * kTileBytes;
  return {.what = pattern.what,
          .multiprocessors = pattern.blocks,
          .bytes_per_clock = bytes / mean_of(found, &Span::clocks),
          .bytes_per_second = bytes * pattern.blocks / seconds_of_all(found)};
}

double copy_rate(const Gpu& gpu, const cuda::DeviceMemory& memory, int multiprocessors) {
  constexpr int kRounds = 9;
  const LoadedKernel kernel(copies_source(), "copies", 0);
  const long long half = static_cast<long long>(memory.bytes() / 2);
  void* to = static_cast<char*>(memory.data()) + half;
  std::vector<double> seconds;
  for (int round = 0; round < kRounds; ++round) {
    gpu.mark_begin();
    gpu.launch(kernel, {.blocks = 4 * multiprocessors, .threads = 512}, to, memory.data(), half / 16);
    gpu.mark_end();
    seconds.push_back(gpu.seconds_between_marks());
  }
  std::ranges::nth_element(seconds, seconds.begin() + kRounds / 2);
  return 2.0 * static_cast<double>(half) / seconds[kRounds / 2];
}

}  // namespace

MemoryRates memory_rates(const Gpu& gpu, int multiprocessors) {
  const cuda::DeviceMemory memory(0, static_cast<std::size_t>(multiprocessors) * kTilesOfMemory * kTileBytes);
  cuda::check(cuda::driver().MemsetD8Async(reinterpret_cast<cuda::CUdeviceptr>(memory.data()), 0x5b, memory.bytes(),
                                           gpu.stream()),
              "filling memory");
  const cuda::CUtensorMap map = map_of(memory);
  const LoadedKernel kernel(loads_source(), "loads", kLoadStages * kTileBytes);
  const int all = multiprocessors;
  MemoryRates rates{};
  for (const LoadPattern& pattern :
       {LoadPattern{"one multiprocessor, L2", 1, 4096, kTilesOfL2, kTilesOfL2},
        LoadPattern{"all, distinct tiles, L2", all, 4096, kTilesOfL2, kTilesOfL2},
        LoadPattern{"all, the same tiles, L2", all, 4096, kTilesOfL2, 0},
        LoadPattern{"all, distinct tiles, memory", all, kTilesOfMemory, kTilesOfMemory, kTilesOfMemory}}) {
    rates.loads.push_back(load_rate(gpu, kernel, map, pattern));
  }
  rates.copied_bytes_per_second = copy_rate(gpu, memory, multiprocessors);
  return rates;
}

namespace {

constexpr int kLaunches = 500;  // fewer than a stream takes before a launch waits
constexpr int kLaunchRounds = 5;

/// Microseconds from kernel to kernel. They queue behind products of some milliseconds, so that the CPU is ahead.
double gap(const Gpu& gpu, const LoadedKernel& blocker, const LoadedKernel& nothing, const Shape& shape) {
  double least = std::numeric_limits<double>::infinity();
  const Spans spans(2 * shape.blocks);
  for (int round = 0; round < kLaunchRounds; ++round) {
    gpu.launch(blocker, {.blocks = shape.blocks, .threads = 256}, spans.data(), kNoSink, 8000, 0);
    gpu.mark_begin();
    for (int i = 0; i < kLaunches; ++i) gpu.launch(nothing, shape, NothingParameters{});
    gpu.mark_end();
    least = std::min(least, gpu.seconds_between_marks());
  }
  return 1e6 * least / kLaunches;
}

}  // namespace

LaunchRates launch_rates(const Gpu& gpu, int multiprocessors) {
  const LoadedKernel nothing(nothing_source(), "nothing", 0);
  const LoadedKernel blocker(products_source(256), "products", operand_bytes(256, 2));
  const Shape shape{.blocks = multiprocessors, .threads = 384};
  LaunchRates rates{};
  rates.cpu = rates.and_wait = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kLaunchRounds; ++round) {
    const double seconds = host_seconds([&] {
      for (int i = 0; i < kLaunches; ++i) gpu.launch(nothing, shape, NothingParameters{});
    });
    gpu.wait();
    rates.cpu = std::min(rates.cpu, 1e6 * seconds / kLaunches);
    const double waited = host_seconds([&] {
      for (int i = 0; i < kLaunches; ++i) {
        gpu.launch(nothing, shape, NothingParameters{});
        gpu.wait();
      }
    });
    rates.and_wait = std::min(rates.and_wait, 1e6 * waited / kLaunches);
  }
  rates.back_to_back = gap(gpu, blocker, nothing, shape);
  rates.overlapping = gap(gpu, blocker, nothing, {shape.blocks, shape.threads, true});

  constexpr int kMaps = 20000;
  const cuda::DeviceMemory memory(0, kTileBytes);
  cuda::CUtensorMap map{};
  rates.encode_map = 1e6 / kMaps * host_seconds([&] {
                       for (int i = 0; i < kMaps; ++i) map = map_of(memory);
                     });
  rates.replace_address = 1e6 / kMaps * host_seconds([&] {
                            for (int i = 0; i < kMaps; ++i) {
                              cuda::check(cuda::driver().TensorMapReplaceAddress(&map, memory.data()),
                                          "replacing the address of a tensor map");
                            }
                          });
  return rates;
}

std::vector<ClockRate> clock_rates(const Gpu& gpu, int multiprocessors) {
  constexpr int kColumns = 256, kSteps = 4000, kLaunchesAtOnce = 20;
  constexpr double kSecondsOfLoad = 1.5;
  std::vector<ClockRate> rates;
  {
    const LoadedKernel pipes(pipes_source(), "pipes", operand_bytes(kPipeColumns, 1));
    const std::vector<Span> spans = run_pipes(gpu, pipes, kExp2, 4000, 0);
    rates.push_back({"one multiprocessor, EX2 alone",
                     mean_of(spans, [](const Span& span) { return span.clocks() / span.seconds(); }), 0});
  }
  const LoadedKernel kernel(products_source(kColumns), "products", operand_bytes(kColumns, 2));
  const Spans spans(2 * multiprocessors);
  const auto launch = [&] {
    gpu.launch(kernel, {.blocks = multiprocessors, .threads = 256}, spans.data(), kNoSink, kSteps, 0);
  };
  const auto rate = [&](const char* what) {
    gpu.wait();
    const std::vector<Span> found = spans.read();
    const double flops = 2.0 * 64 * kColumns * 16 * kProductsAStep * kSteps * 2 * multiprocessors;
    rates.push_back({what, mean_of(found, [](const Span& span) { return span.clocks() / span.seconds(); }),
                     flops / seconds_of_all(found)});
  };
  launch();
  rate("all, products, the first 5 ms");
  for (double seconds = 0; seconds < kSecondsOfLoad;) {
    seconds += host_seconds([&] {
      for (int i = 0; i < kLaunchesAtOnce; ++i) launch();
      gpu.wait();
    });
  }
  rate("all, products without a pause");
  return rates;
}

}  // namespace heddle::bench
