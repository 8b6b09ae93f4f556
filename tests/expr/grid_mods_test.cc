// Mods of tokens in a grid against the definitions of their papers, pair by pair.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "expr/dense_grid.h"
#include "heddle/mods.h"

namespace heddle {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

/// NATTEN's window along one axis: `kernel` places from here on, none outside of 0 to extent - 1.
int window_begin(int place, int extent, int kernel) {
  return std::min(std::max(place - kernel / 2, 0), extent - kernel);
}

bool in_window(int query, int key, int extent, int kernel) {
  const int begin = window_begin(query, extent, kernel);
  return begin <= key && key < begin + kernel;
}

TEST(GridMods, Neighbourhood2d) {
  expect_mask(mods::neighbourhood_2d(8, 1, 2), [](const Position& at) {
    return std::abs(at.q / 8 - at.kv / 8) <= 1 && std::abs(at.q % 8 - at.kv % 8) <= 2;
  });
}

TEST(GridMods, Natten2d) {
  for (const auto& [ky, kx] : {std::pair(3, 5), {1, 1}, {5, 7}, {5, 1}}) {
    expect_mask(mods::natten_2d(5, 8, ky, kx), [&, rows = ky, columns = kx](const Position& at) {
      return in_window(at.q / 8, at.kv / 8, 5, rows) && in_window(at.q % 8, at.kv % 8, 8, columns);
    });
  }
}

TEST(GridMods, Natten3d) {
  expect_mask(mods::natten_3d(3, 4, 4, 1, 3, 3), [](const Position& at) {
    return in_window(at.q / 16, at.kv / 16, 3, 1) && in_window(at.q / 4 % 4, at.kv / 4 % 4, 4, 3) &&
           in_window(at.q % 4, at.kv % 4, 4, 3);
  });
  expect_mask(mods::natten_3d(3, 2, 8, 3, 1, 5), [](const Position& at) {
    return in_window(at.q / 16, at.kv / 16, 3, 3) && at.q / 8 % 2 == at.kv / 8 % 2 &&
           in_window(at.q % 8, at.kv % 8, 8, 5);
  });
}

TEST(GridMods, SlidingTiles) {
  // 4 x 3 tiles of 4 tokens.
  expect_mask(mods::sliding_tiles_2d(4, 3, 4, 3, 1), [](const Position& at) {
    const int query = at.q / 4, key = at.kv / 4;
    return in_window(query / 3, key / 3, 4, 3) && query % 3 == key % 3;
  });
  // 3 x 2 x 2 tiles of 4 tokens.
  expect_mask(mods::sliding_tiles_3d(3, 2, 2, 4, 3, 1, 1), [](const Position& at) {
    return at.kv < 48 && at.q / 4 / 2 % 2 == at.kv / 4 / 2 % 2 && at.q / 4 % 2 == at.kv / 4 % 2;
  });
}

/// Swin's own way: the image is rolled up and left, cut into windows, and tokens of different regions are masked.
TEST(GridMods, SwinWindows) {
  constexpr int kWidth = 8, kHeight = 8, kWindow = 4;
  for (const int shift : {0, 1, 2, 3}) {
    const auto region = [&](int place, int extent) {
      const int rolled = (place - shift + extent) % extent;
      const int slice = shift == 0 || rolled < extent - kWindow ? 0 : rolled < extent - shift ? 1 : 2;
      return std::pair(rolled / kWindow, slice);
    };
    expect_mask(mods::swin_windows(kWidth, kWindow, shift), [&](const Position& at) {
      return region(at.q / kWidth, kHeight) == region(at.kv / kWidth, kHeight) &&
             region(at.q % kWidth, kWidth) == region(at.kv % kWidth, kWidth);
    });
  }
}

TEST(GridMods, SwinBias) {
  constexpr int kWidth = 8, kWindow = 4, kSide = 2 * kWindow - 1;
  std::vector<double> table(kSide * kSide * kHeads);
  std::iota(table.begin(), table.end(), 0.5);
  Bindings bindings;
  bindings.captures["table"] = view(table, DType::f64, {kSide * kSide, kHeads});
  const auto clipped = [](int offset) { return std::clamp(offset, 1 - kWindow, kWindow - 1) + kWindow - 1; };
  expect_score(
      mods::swin_bias(Capture("table", DType::f64, 2), kWidth, kWindow),
      [&](double score, const Position& at) {
        const int row = clipped(at.q / kWidth - at.kv / kWidth) * kSide + clipped(at.q % kWidth - at.kv % kWidth);
        return score + table[static_cast<std::size_t>(row * kHeads + at.h)];
      },
      bindings);
}

TEST(GridMods, ArgumentsAreValidated) {
  const Capture slopes("slopes", DType::f32, 1);
  EXPECT_THAT(refusal([] { mods::neighbourhood_2d(0, 1, 1); }), HasSubstr("width of neighbourhood_2d must be 1 to"));
  EXPECT_THAT(refusal([] { mods::natten_2d(0, 4, 1, 1); }), HasSubstr("height of natten_2d must be 1 to"));
  EXPECT_EQ(refusal([] { mods::natten_2d(8, 4, 3, 2); }), "kernel_x of natten_2d must be odd, but is 2");
  EXPECT_THAT(refusal([] { mods::natten_2d(8, 4, 9, 1); }),
              HasSubstr("kernel_y of natten_2d must be 1 to 8, but is 9"));
  EXPECT_THAT(refusal([] { mods::natten_3d(65536, 65536, 1, 1, 1, 1); }),
              HasSubstr("height of natten_3d must be 1 to 32767"));
  EXPECT_THAT(refusal([] { mods::sliding_tiles_2d(2, 2, 0, 1, 1); }), HasSubstr("tile of sliding_tiles_2d"));
  EXPECT_THAT(refusal([] { mods::sliding_tiles_3d(2, 2, 2, 4, 1, 1, 4); }), HasSubstr("kernel_x of sliding_tiles_3d"));
  EXPECT_THAT(refusal([] { mods::swin_windows(8, 4, 4); }),
              HasSubstr("shift of swin_windows must be 0 to 3, but is 4"));
  EXPECT_THAT(refusal([] { mods::swin_windows(8, 0); }), HasSubstr("window of swin_windows"));
  EXPECT_THAT(refusal([&] { mods::swin_bias(slopes, 8, 4); }),
              HasSubstr("table of swin_bias must be floating of rank 2"));
  EXPECT_THAT(refusal([&] { mods::swin_bias(Capture("t", DType::f32, 2), 8, 0); }), HasSubstr("window of swin_bias"));
}

}  // namespace
}  // namespace heddle
