#include "backend/portable/portable_refuses.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "backend/portable/portable_config.h"
#include "device/amd_architectures.h"
#include "plan/mods/refuses_values.h"
#include "plan/tiles/schedule.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;

constexpr std::int64_t kLastRow = (std::int64_t{1} << 31) - 1024;  // tiles past the end still count in i32
constexpr std::int64_t kSmallestTile = 64;
// Two rows of a quarter of the columns are a thread's: at 128 its sums are 128 registers, and the kernels take 250.
constexpr std::string_view kWhyF64 = " of f64, whose sums take a thread's registers there";

bool is_16_bits(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

bool is_8_bits(DType dtype) { return fp8_of(dtype) != shared::Fp8::none; }

std::string refuse_types(const AttentionProblem& problem, const LargestDims& largest) {
  const DType dtype = problem.q_dtype;
  const bool known = is_16_bits(dtype) || dtype == DType::f32 || dtype == DType::f64;
  const bool alike = known && problem.k_dtype == dtype && problem.v_dtype == dtype;
  if (!alike && !keys_become_halves(problem)) {
    return fmt::format(
        "q, k, v are {}, {}, {}; bf16, f16, f32 or f64 for all is accepted, or k and v of e4m3 or e5m2 beside q of "
        "f16, "
        "bf16, e4m3 or e5m2",
        name(problem.q_dtype), name(problem.k_dtype), name(problem.v_dtype));
  }
  const std::array accepted = {DType::f16, DType::bf16, DType::f32, DType::f64};
  if (std::ranges::find(accepted, problem.o_dtype) == accepted.end()) {
    return fmt::format("o is {}; f16, bf16, f32 and f64 are accepted", name(problem.o_dtype));
  }
  struct Dim {
    std::string_view what;
    std::int64_t dim, most;
  };
  const bool f64 = dtype == DType::f64;
  for (const auto& [what, dim, of_others] :
       {Dim{"q and k have", problem.qk_dim, largest.of_keys}, {"v has", problem.v_dim, largest.of_values}}) {
    const std::int64_t most = f64 ? largest.of_f64 : of_others;
    if (dim >= 1 && dim <= most) continue;
    return fmt::format("{} head dimension {}; 1 to {} are accepted{}", what, dim, most,
                       dim > most && dim <= of_others ? kWhyF64 : "");
  }
  return {};
}

std::string refuse_sizes(const AttentionProblem& problem) {
  const double factor = portable_mods(problem).factor;
  const double largest = std::max(std::abs(problem.scale), std::abs(problem.scale * factor));
  const bool f64 = problem.q_dtype == DType::f64;
  const double in_powers = largest * std::numbers::log2e;
  if (!std::isfinite(f64 ? in_powers : static_cast<float>(in_powers))) {
    return fmt::format("scale is {}{}; numbers in the range of {} are accepted", problem.scale,
                       factor == 1 ? "" : fmt::format(", and score_mod multiplies it by {}", factor),
                       f64 ? "f64" : "f32");
  }
  if (problem.q_rows > kLastRow) return fmt::format("q has {} rows; up to {} are accepted", problem.q_rows, kLastRow);
  if (problem.kv_rows > kLastRow) return fmt::format("k has {} rows; up to {} are accepted", problem.kv_rows, kLastRow);
  const std::int64_t tiles = count_tiles(problem, kSmallestTile);
  if (tiles > shared::kMaxTiles) {
    return fmt::format("{} sequences of {} heads and {} queries make {} tiles of {} queries; up to {} are accepted",
                       problem.batch, problem.q_heads, problem.q_rows, tiles, kSmallestTile, shared::kMaxTiles);
  }
  return {};
}

}  // namespace

bool keys_become_halves(const AttentionProblem& problem) {
  return is_8_bits(problem.k_dtype) && is_8_bits(problem.v_dtype) &&
         (is_16_bits(problem.q_dtype) || is_8_bits(problem.q_dtype));
}

std::string portable_refuses(const AttentionProblem& problem, const AttentionOptions& options,
                             const LargestDims& largest) {
  std::string reason = refuse_types(problem, largest);
  return reason.empty() ? portable_refuses_values(problem, options) : reason;
}

std::string portable_refuses_values(const AttentionProblem& problem, const AttentionOptions& options) {
  std::array<std::string, 2> reasons = {refuse_sizes(problem), refuses_values(problem, options.bindings)};
  const auto found = std::ranges::find_if(reasons, [](const std::string& reason) { return !reason.empty(); });
  return found == reasons.end() ? std::string() : std::move(*found);
}

std::string portable_device_refuses(const device::CudaCaps& caps) {
  if (caps.major >= 8) return {};
  return fmt::format("cuda:{} ({}) has compute capability {}.{}; 8.0 and later are accepted", caps.index, caps.name,
                     caps.major, caps.minor);
}
std::string portable_device_refuses(const device::AmdCaps& caps) {
  if (device::amd_architecture(caps.architecture) != nullptr) return {};
  return fmt::format("rocm:{} ({}) is {}; gfx9, gfx10, gfx11 and gfx12 are accepted", caps.index, caps.name,
                     caps.architecture);
}

std::string portable_untried(const device::CudaCaps& caps) {
  if (caps.major == 9 && caps.minor == 0) return {};
  return fmt::format(
      "the portable kernels have run on compute capability 9.0 alone; for {}.{} they are compiled, and their steps are "
      "tested on the host",
      caps.major, caps.minor);
}
std::string portable_untried(const device::AmdCaps& caps) {
  const device::AmdArchitecture* row = device::amd_architecture(caps.architecture);
  const bool simulated = row != nullptr && row->simulated;
  return fmt::format("the portable kernels have run on no AMD GPU; for {} they are {}", caps.architecture,
                     simulated ? "compiled, and tested on a simulator of the chip"
                               : "compiled at run time, and their steps are tested on the host");
}

}  // namespace heddle::plan
