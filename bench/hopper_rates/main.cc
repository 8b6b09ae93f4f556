// hopper_rates: what the parts of a Hopper GPU do, alone and together, as the planner's costs need it
// (src/families/forward_sm90/forward_sm90_costs.h). Kernels are in the .cuh files of this folder; they go through the
// library's own compiler and driver rooms.
//
//   bench_hopper_rates [--json] [--compile]
//
// Ends with 2 and the reason where there is no such GPU. --compile only compiles the kernels, which needs none.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "heddle/error.h"
#include "plan/hopper/sm90_chip.h"
#include "rates.h"

namespace heddle::bench {
namespace {

using Json = nlohmann::ordered_json;

struct AllRates {
  device::CudaCaps device;
  std::vector<ProductRate> products;
  std::vector<PipeRate> pipes;
  MemoryRates memory;
  LaunchRates launches;
  std::vector<ClockRate> clocks;
};

/// The rows of the planner's table that come from here, under its names.
Json planner_rates(const AllRates& rates) {
  const auto product = std::ranges::find_if(rates.products, [](const ProductRate& rate) {
    return rate.columns == 128 && !rate.from_registers && rate.warpgroups == 2;
  });
  const PipeRate& softmax = rates.pipes.at(kSoftmax);
  const LoadRate& distinct = rates.memory.loads.at(1);
  return {{"clocks_per_second", rates.clocks.back().clocks_per_second},
          {"wgmma_clocks", product->clocks / product->columns},
          {"softmax_clocks", softmax.clocks_an_element()},
          {"softmax_beside_wgmma", softmax.lost_share()},
          {"l2_bytes_per_clock", distinct.bytes_per_clock},
          {"memory_bytes_per_second", rates.memory.copied_bytes_per_second}};
}

Json json_of(const AllRates& rates) {
  Json products = Json::array(), pipes = Json::array(), loads = Json::array(), clocks = Json::array();
  for (const ProductRate& rate : rates.products) {
    products.push_back({{"columns", rate.columns},
                        {"left", rate.from_registers ? "registers" : "shared"},
                        {"warpgroups", rate.warpgroups},
                        {"clocks", rate.clocks}});
  }
  for (const PipeRate& rate : rates.pipes) {
    pipes.push_back({{"name", rate.name},
                     {"meaning", rate.meaning},
                     {"alone", rate.alone},
                     {"beside", rate.beside},
                     {"products_beside", rate.products_beside}});
  }
  for (const LoadRate& rate : rates.memory.loads) {
    loads.push_back({{"what", rate.what},
                     {"multiprocessors", rate.multiprocessors},
                     {"bytes_per_clock", rate.bytes_per_clock},
                     {"bytes_per_second", rate.bytes_per_second}});
  }
  for (const ClockRate& rate : rates.clocks) {
    clocks.push_back({{"what", rate.what},
                      {"clocks_per_second", rate.clocks_per_second},
                      {"flops_per_second", rate.flops_per_second}});
  }
  const LaunchRates& launch = rates.launches;
  return {{"program", "hopper_rates"},
          {"device", rates.device.name},
          {"multiprocessors", rates.device.multiprocessors},
          {"driver_version", rates.device.driver_version},
          {"nvrtc", cuda::jit::compiler_version()},
          {"planner", planner_rates(rates)},
          {"products", products},
          {"pipes", pipes},
          {"loads", loads},
          {"launch_microseconds",
           {{"cpu", launch.cpu},
            {"back_to_back", launch.back_to_back},
            {"overlapping", launch.overlapping},
            {"and_wait", launch.and_wait},
            {"encode_map", launch.encode_map},
            {"replace_address", launch.replace_address}}},
          {"clocks", clocks}};
}

void print(const AllRates& rates) {
  fmt::print("{}, {} multiprocessors, driver of CUDA {}.{}, NVRTC {}\n", rates.device.name,
             rates.device.multiprocessors, rates.device.driver_version / 1000, rates.device.driver_version % 1000 / 10,
             cuda::jit::compiler_version());
  fmt::print("\n{:44} {:>9} {:>9} {:>9}\n", "m64nNk16, clocks", "1 wg", "2 wgs", "N / 2");
  for (std::size_t i = 0; i + 1 < rates.products.size(); i += 2) {
    const ProductRate& one = rates.products[i];
    fmt::print("{:44} {:9.1f} {:9.1f} {:9}\n",
               fmt::format("n{}, left operand in {}", one.columns, one.from_registers ? "registers" : "shared memory"),
               one.clocks, rates.products[i + 1].clocks, one.columns / 2);
  }
  fmt::print("\n{:44} {:>9} {:>9} {:>9}\n", "a warp instruction of a scheduler, clocks", "alone", "beside", "wgmma %");
  for (const PipeRate& rate : rates.pipes) {
    fmt::print("{:44} {:9.2f} {:9.2f} {:9.0f}\n", rate.meaning, rate.alone, rate.beside, 100 * rate.products_beside);
  }
  fmt::print("\n{:44} {:>9} {:>9}\n", "TMA loads of 16 KiB", "B/clk/SM", "TB/s");
  for (const LoadRate& rate : rates.memory.loads) {
    fmt::print("{:44} {:9.1f} {:9.2f}\n", rate.what, rate.bytes_per_clock, 1e-12 * rate.bytes_per_second);
  }
  fmt::print("{:44} {:>9} {:9.2f}\n", "copy, bytes read and written", "", 1e-12 * rates.memory.copied_bytes_per_second);
  const LaunchRates& launch = rates.launches;
  fmt::print("\n{:44} {:>9}\n", "a launch", "us");
  for (const auto& [what, microseconds] :
       {std::pair{"CPU time of the call", launch.cpu}, std::pair{"back to back in a stream", launch.back_to_back},
        std::pair{"the same, each may overlap the last", launch.overlapping},
        std::pair{"launch and wait", launch.and_wait}, std::pair{"encode a tensor map", launch.encode_map},
        std::pair{"replace its address", launch.replace_address}}) {
    fmt::print("{:44} {:9.3f}\n", what, microseconds);
  }
  fmt::print("\n{:44} {:>9} {:>9}\n", "clock", "GHz", "TFLOP/s");
  for (const ClockRate& rate : rates.clocks) {
    fmt::print("{:44} {:9.3f} {:9.0f}\n", rate.what, 1e-9 * rate.clocks_per_second, 1e-12 * rate.flops_per_second);
  }
  fmt::print("\n{:44} {:>12}\n", "for the planner (kSm90Rates)", "");
  const Json planner = planner_rates(rates);
  for (const auto& [name, value] : planner.items()) fmt::print("{:44} {:12.4g}\n", name, value.get<double>());
}

/// Why nothing can be measured here; empty when it can.
std::string missing() {
  if (std::string reason = cuda::driver_missing(); !reason.empty()) return reason;
  const device::CudaCaps& first = cuda::devices().front();
  if (first.major != 9 || first.minor != 0) {
    return fmt::format("CUDA device 0 is {} of compute capability {}.{}; 9.0 is needed", first.name, first.major,
                       first.minor);
  }
  return cuda::jit::compiler_missing();
}

int compile_all() {
  for (const cuda::jit::Source& source : all_sources()) {
    const auto cubin = cuda::jit::build(source);
    fmt::print("{:28} {:4} registers, {:6.0f} ms\n", source.name, cubin->registers, cubin->compile_ms);
  }
  return 0;
}

int measure_all(bool json) {
  const int multiprocessors = cuda::devices().front().multiprocessors;
  const Gpu gpu;
  AllRates rates{.device = cuda::devices().front(),
                 .products = product_rates(gpu),
                 .pipes = pipe_rates(gpu),
                 .memory = memory_rates(gpu, multiprocessors),
                 .launches = launch_rates(gpu, multiprocessors),
                 .clocks = {}};
  rates.clocks = clock_rates(gpu, multiprocessors);  // last: it makes the chip hot
  if (json) {
    fmt::print("{}\n", json_of(rates).dump(2));
  } else {
    print(rates);
  }
  return 0;
}

int run(bool json, bool compile) {
  const std::string reason = compile ? cuda::jit::compiler_missing() : missing();
  if (!reason.empty()) {
    fmt::print(stderr, "hopper_rates: {}\n", reason);
    return 2;
  }
  try {
    return compile ? compile_all() : measure_all(json);
  } catch (const std::exception& error) {
    fmt::print(stderr, "hopper_rates: {}\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace heddle::bench

int main(int count, char** arguments) {
  CLI::App app("What the parts of a Hopper GPU do, alone and together.", "bench_hopper_rates");
  bool json = false, compile = false;
  app.add_flag("--json", json, "prints JSON");
  app.add_flag("--compile", compile, "only compiles the kernels, which needs no GPU");
  CLI11_PARSE(app, count, arguments);
  return heddle::bench::run(json, compile);
}
