// The facts that explain() shows of every CPU kernel.
#pragma once

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "backend/cpu/cpu_caps.h"
#include "expr/interpret.h"

namespace heddle::cpu {

/// `bricks`: AMX multiplies. "products" says with what the kernel multiplies: f32, f64 or bf16 by AMX.
inline nlohmann::ordered_json cpu_facts(std::string_view kernel, bool bricks, expr::Precision precision, int threads) {
  const std::string_view products = bricks ? "bf16 by AMX" : precision == expr::Precision::f64 ? "f64" : "f32";
  return {{"summary", fmt::format("{} in {}, {} threads", kernel, products, threads)},
          {"products", products},
          {"simd", cpu_caps().simd_target}};
}

}  // namespace heddle::cpu
