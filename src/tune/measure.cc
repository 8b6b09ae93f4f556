#include "tune/measure.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>

#include "backend/device.h"
#include "tune/stand_in.h"

namespace heddle::tune {
namespace {

constexpr double kTurn = 0.01;  // seconds that a turn takes, at least a run
constexpr int kMostRuns = 500;  // of a turn: a queue of a GPU holds about a thousand launches
constexpr int kRounds = 5;
constexpr double kHopeless = 1.5;  // times the fastest after the first round

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

std::vector<double> measure_in_turns(std::size_t contenders, const TimedRuns& run) {
  std::vector<int> runs(contenders);
  std::vector<std::vector<double>> times(contenders);
  const auto take_turn = [&](std::size_t i) { times[i].push_back(run(i, runs[i]) / runs[i]); };
  for (std::size_t i = 0; i < contenders; ++i) {
    run(i, 1);  // brings code and tensors near
    const double once = run(i, 1);
    runs[i] = static_cast<int>(std::clamp(std::ceil(kTurn / std::max(once, 1e-9)), 1.0, double{kMostRuns}));
    take_turn(i);
  }
  double fastest = HUGE_VAL;
  for (const std::vector<double>& of_one : times) fastest = std::min(fastest, of_one.front());
  for (int round = 1; round < kRounds; ++round) {
    for (std::size_t i = 0; i < contenders; ++i) {
      if (times[i].front() <= kHopeless * fastest) take_turn(i);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& of_one : times) medians.push_back(median(std::move(of_one)));
  return medians;
}

std::vector<double> measure(const plan::Request& request, std::span<const Contender> contenders) {
  const StandIn stand_in(request);
  std::int64_t bytes = 0;
  for (const Contender& contender : contenders) bytes = std::max(bytes, contender.plan->workspace_bytes);
  const Device& device = request.problem.device;
  const Tensor workspace = bytes > 0 ? Tensor::empty_on(device, DType::u8, {bytes}) : Tensor();
  const Tensor flag = Tensor::empty_on(device, DType::u8, {1});
  const backend::DeviceInterface& there = *backend::find_device_kind(device.kind);
  return measure_in_turns(contenders.size(), [&](std::size_t i, int runs) {
    const backend::RunArguments arguments = stand_in.arguments(contenders[i].block_mask, workspace.data());
    const auto start = std::chrono::steady_clock::now();
    for (int run = 0; run < runs; ++run) contenders[i].kernel->launch(arguments);
    std::byte answer{};
    there.copy_and_wait(device.index, &answer, flag.data(), 1);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  });
}

}  // namespace heddle::tune
