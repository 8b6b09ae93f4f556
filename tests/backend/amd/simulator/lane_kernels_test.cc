// Kernels that exchange values between lanes, against what each exchange is documented to do.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "backend/amd/simulator/simulated.h"

namespace heddle::amd::simulator {
namespace {

using LaneKernels = OnEveryChip;
INSTANTIATE_TEST_SUITE_P(, LaneKernels, ::testing::ValuesIn(chips()), [](const auto& chip) { return chip.param; });

TEST_P(LaneKernels, exchanges) {
  Simulated gpu("lanes", GetParam());
  const auto in = random_integers<std::uint32_t>(64);
  const std::uint64_t to = gpu.output<std::uint32_t>(64 * 16);
  gpu.run("exchanges", {1, 1, 1}, 64, Arguments().add(to).add(gpu.input(in)));
  const auto out = gpu.values<std::uint32_t>(to, 64 * 16);
  const int lanes = gpu.lanes();
  const auto row = [](int l) { return l & ~15; };
  // The lane that lane l reads; -1 where it gets 0.
  std::vector<std::function<int(int)>> from = {
      [](int l) { return (l & ~3) + 3 - (l & 3); },
      [](int l) { return (l & 15) < 15 ? l + 1 : -1; },
      [](int l) { return (l & 15) >= 3 ? l - 3 : -1; },
      [&](int l) { return row(l) + ((l - 5) & 15); },
      [&](int l) { return row(l) + 15 - (l & 15); },
      [](int l) { return (l & ~7) + 7 - (l & 7); },
      [](int l) { return l ^ 5; },
      [](int l) { return l ^ 9; },
      [](int l) { return l ^ 16; },
      [](int) { return 3; },
      [](int) { return 0; },
  };
  if (lanes == 32) {
    from.insert(from.end(), {[&](int l) { return (row(l) ^ 16) + (l & 15); },
                             [&](int l) { return row(l) + ((l & 15) < 8 ? 7 - (l & 15) : 15 - (l & 7)); },
                             [&](int l) { return row(l) + 5; }, [](int l) { return l ^ 6; }});
  } else {
    from.insert(from.end(),
                {[&](int l) { return l >= 16 ? row(l) - 1 : -1; }, [](int l) { return l >= 32 ? 31 : -1; }});
  }
  for (int t = 0; t < 64; ++t) {
    const int wave = t / lanes * lanes, lane = t - wave;
    for (std::size_t n = 0; n < from.size(); ++n) {
      const int source = from[n](lane);
      EXPECT_EQ(out[static_cast<std::size_t>(t) * 16 + n], source < 0 ? 0 : in[static_cast<std::size_t>(wave + source)])
          << "exchange " << n << " of lane " << t;
    }
    EXPECT_EQ(out[static_cast<std::size_t>(t) * 16 + 15], static_cast<std::uint32_t>(lane));
  }
}

TEST_P(LaneKernels, sums_over_a_wave) {
  Simulated gpu("lanes", GetParam());
  std::vector<float> in(128);
  for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<float>(i * 37 % 101);
  const std::uint64_t to = gpu.output<float>(128 * 3);
  gpu.run("wave_sums", {2, 1, 1}, 64, Arguments().add(to).add(gpu.input(in)));
  const auto out = gpu.values<float>(to, 128 * 3);
  const auto lanes = static_cast<std::size_t>(gpu.lanes());
  for (std::size_t i = 0; i < 128; ++i) {
    const auto wave = in.begin() + static_cast<std::ptrdiff_t>(i / lanes * lanes),
               quad = in.begin() + static_cast<std::ptrdiff_t>(i / 4 * 4);
    EXPECT_EQ(out[i * 3], std::accumulate(wave, wave + static_cast<std::ptrdiff_t>(lanes), 0.0f));
    EXPECT_EQ(out[i * 3 + 1], *std::max_element(wave, wave + static_cast<std::ptrdiff_t>(lanes)));
    EXPECT_EQ(out[i * 3 + 2], std::accumulate(quad, quad + 4, 0.0f));
  }
}

TEST_P(LaneKernels, votes_of_the_lanes_that_are_left) {
  Simulated gpu("lanes", GetParam());
  auto in = random_integers<std::uint32_t>(64);
  for (std::uint32_t& value : in) value %= 1000;
  const std::uint32_t n = 45;
  const std::uint64_t to = gpu.output<std::uint32_t>(n * 3);
  gpu.run("votes", {1, 1, 1}, 64, Arguments().add(to).add(gpu.input(in)).add(n));
  const auto out = gpu.values<std::uint32_t>(to, n * 3);
  const auto lanes = static_cast<std::uint32_t>(gpu.lanes());
  for (std::uint32_t i = 0; i < n; ++i) {
    std::uint64_t odd = 0;
    for (std::uint32_t l = 0; l < lanes; ++l) {
      const std::uint32_t other = i / lanes * lanes + l;
      if (other < n) odd |= static_cast<std::uint64_t>(in[other] & 1) << l;
    }
    EXPECT_EQ(out[i * 3], static_cast<std::uint32_t>(odd));
    EXPECT_EQ(out[i * 3 + 1], static_cast<std::uint32_t>(odd >> 32));
    std::uint32_t left = in[i];
    while (left > 100) left -= 50;
    EXPECT_EQ(out[i * 3 + 2], left);
  }
}

}  // namespace
}  // namespace heddle::amd::simulator
