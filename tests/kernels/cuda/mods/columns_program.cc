#include "kernels/cuda/mods/columns_program.h"

#include <fmt/format.h>

#include "backend/device_code/headers.h"
#include "backend/device_text/expression_text.h"

namespace heddle::cuda::test {

using device_text::layout_of;
using device_text::mod_text;
using device_text::ModLayout;
using device_text::TakesScore;

namespace {

constexpr const char* kBegin = R"(#include "shared/mod_values.h"

__device__ unsigned bits(float x) { return __float_as_uint(x); }
__device__ unsigned bits(bool x) { return x ? 1 : 0; }
#define COMPARE(number, name, Name) { \
    const auto u = name##_uniform(mod, 1, 2); \
    const auto r = name##_row(mod, u, 1, 2, q_idx); \
    const Name##Columns<kKeys> columns(mod, u, 1, 2, kKvFirst); \
    unsigned right = 0, wrong = 0; \
    _Pragma("unroll") for (int j = 0; j < kKeys / 8; ++j) { \
      _Pragma("unroll") for (int e = 0; e < 2; ++e) { \
        const int kv_idx = kKvFirst + 8 * j + 2 * (lane & 3) + e; \
        const auto c = name##_column(mod, u, 1, 2, kv_idx); \
        const bool same = bits(name##_element(mod, u, r, columns.at(j, e), 0.5f, 1, 2, q_idx, kv_idx)) == \
                          bits(name##_element(mod, u, r, c, 0.5f, 1, 2, q_idx, kv_idx)); \
        same ? ++right : ++wrong; \
      } \
    } \
    results[32 * number + lane] = right + 1000 * wrong; \
  }
)";
constexpr const char* kKernel = R"(
namespace heddle {{
constexpr int kKeys = {}, kKvFirst = 32;
extern "C" __global__ void columns(unsigned* results, const __grid_constant__ shared::ModValues mod) {{
  const int lane = static_cast<int>(threadIdx.x & 31), q_idx = lane >> 2;
{}}}
}}  // namespace heddle
)";

}  // namespace

std::vector<Expr> mods_over_columns() {
  const Expr row = leaf::q_idx(), key = leaf::kv_idx();
  const Expr ids = Capture("ids", DType::i64, 1)(key), weights = Capture("weights", DType::f32, 1)(key);
  const Expr flags = Capture("flags", DType::boolean, 1)(key);
  return {ids == row,                                                                             // int
          leaf::score() + weights * to_f32(row),                                                  // float
          flags & (row < key),                                                                    // bool
          weights + Capture("table", DType::f32, 2).at({row, key}, leaf::score()) + to_f32(ids),  // also an offset
          floor_div(key, 3) == row,
          key - row < 5};  // long; none
}

jit::Source columns_source() {
  const std::vector<Expr> mods = mods_over_columns();
  const ModLayout layout = layout_of(mods);
  std::string text = kBegin, calls;
  for (std::size_t i = 0; i < mods.size(); ++i) {
    text += mod_text(fmt::format("mod{}", i), mods[i], layout, TakesScore::yes);
    calls += fmt::format("  COMPARE({}, mod{}, Mod{})\n", i, i, i);
  }
  text += fmt::format(kKernel, kColumnKeys, calls);
  return {.name = "columns", .text = text, .headers = device_code::cuda_headers(), .architecture = "sm_90a"};
}

}  // namespace heddle::cuda::test
