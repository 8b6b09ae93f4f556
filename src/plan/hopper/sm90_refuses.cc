#include "plan/hopper/sm90_refuses.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numbers>

#include "plan/hopper/sm90_chip.h"
#include "plan/mods/kernel_mods.h"
#include "plan/mods/refuses_values.h"
#include "plan/tiles/schedule.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;

constexpr std::int64_t kLastRow = (std::int64_t{1} << 31) - 1024;  // tiles past the end still count in i32
constexpr std::int64_t kSmallestTile = 128, kSmallestKvBlock = 64;
constexpr std::int64_t kLastKey = shared::kMaxKvBlocks * kSmallestKvBlock;  // the bits that a step has for its block
constexpr std::int64_t kMostTiles = shared::kMaxTiles;                      // 768 MiB of lists

constexpr std::int64_t kLargestDim = 256;  // o's share of a thread's registers is half of it

std::string refuse_device(const device::CudaCaps& caps) {
  if (caps.major != 9 || caps.minor != 0) {
    return fmt::format("cuda:{} ({}) has compute capability {}.{}; 9.0 is accepted", caps.index, caps.name, caps.major,
                       caps.minor);
  }
  if (caps.shared_memory_bytes < kSm90SharedMemory) {
    return fmt::format("cuda:{} ({}) lends a block {} bytes of shared memory; at least {} are accepted", caps.index,
                       caps.name, caps.shared_memory_bytes, kSm90SharedMemory);
  }
  return {};
}

bool is_fp8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

std::string refuse_types(const AttentionProblem& problem) {
  const DType dtype = problem.q_dtype;
  const bool fp8 = is_fp8(dtype) && is_fp8(problem.k_dtype) && is_fp8(problem.v_dtype);
  const bool alike =
      (dtype == DType::bf16 || dtype == DType::f16) && problem.k_dtype == dtype && problem.v_dtype == dtype;
  if (!fp8 && !alike) {
    return fmt::format("q, k, v are {}, {}, {}; bf16 for all or f16 for all is accepted, or each of e4m3 or e5m2",
                       name(problem.q_dtype), name(problem.k_dtype), name(problem.v_dtype));
  }
  if (problem.qk_dim < 1 || problem.qk_dim > kLargestDim) {
    return fmt::format("q and k have head dimension {}; 1 to {} are accepted", problem.qk_dim, kLargestDim);
  }
  if (problem.v_dim < 1 || problem.v_dim > kLargestDim) {
    return fmt::format("v has head dimension {}; 1 to {} are accepted", problem.v_dim, kLargestDim);
  }
  return {};
}

std::string refuse_options(const AttentionProblem& problem) {
  if (problem.q_rest_dim > 0) return "q_rest is given; queries of one tensor are accepted";
  if (problem.k_rest_dim > 0) return "k_rest is given; keys of one tensor are accepted";
  if (is_fp8(problem.q_dtype) && problem.normalizer != Normalizer::softmax) {
    return fmt::format("normalizer is {} and q is {}; softmax is accepted for q, k and v of 8 bits",
                       problem::name(problem.normalizer), name(problem.q_dtype));
  }
  const KernelMods mods = kernel_mods(problem);
  if (is_fp8(problem.q_dtype) && weight_exponent(problem, mods) > kMostWeightExponent) {
    return fmt::format(
        "weight_mod is {}, which is not proven to stay inside -{} .. {}, where the {} of its product with the weights "
        "has room for it; one that stays there is accepted",
        print(mods.weight), 1 << kMostWeightExponent, 1 << kMostWeightExponent, name(problem.q_dtype));
  }
  const double factor = mods.factor;
  const double largest = std::max(std::abs(problem.scale), std::abs(problem.scale * factor));
  if (!std::isfinite(static_cast<float>(largest * std::numbers::log2e))) {
    return fmt::format("scale is {}{}; numbers in the range of f32 are accepted", problem.scale,
                       factor == 1 ? "" : fmt::format(", and score_mod multiplies it by {}", factor));
  }
  return {};
}

std::string refuse_sizes(const AttentionProblem& problem) {
  if (problem.q_rows > kLastRow) {
    return fmt::format("q has {} rows; up to {} are accepted", problem.q_rows, kLastRow);
  }
  if (problem.kv_rows > kLastKey) {
    return fmt::format("k has {} rows; up to {} are accepted", problem.kv_rows, kLastKey);
  }
  const std::int64_t tiles = count_tiles(problem, kSmallestTile);
  if (tiles > kMostTiles) {
    return fmt::format("{} sequences of {} heads and {} queries make {} tiles of {} queries; up to {} are accepted",
                       problem.batch, problem.q_heads, problem.q_rows, tiles, kSmallestTile, kMostTiles);
  }
  return {};
}

}  // namespace

std::string sm90_refuses(const AttentionProblem& problem, const AttentionOptions& options,
                         const device::CudaCaps& caps) {
  std::array<std::string, 5> reasons = {refuse_device(caps), refuse_types(problem), refuse_options(problem),
                                        refuse_sizes(problem), refuses_values(problem, options.bindings)};
  const auto found = std::ranges::find_if(reasons, [](const std::string& reason) { return !reason.empty(); });
  return found == reasons.end() ? std::string() : std::move(*found);
}

}  // namespace heddle::plan
