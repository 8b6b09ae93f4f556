// The facts that explain() shows of every CPU kernel.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "backend/cpu/cpu_caps.h"
#include "base/json_tree.h"
#include "expr/interpret.h"

namespace heddle::cpu {

/// `bricks`: AMX multiplies. "products" says with what the kernel multiplies: f32, f64 or bf16 by AMX.
inline base::JsonTree cpu_facts(std::string_view kernel, bool bricks, expr::Precision precision, int threads) {
  const std::string_view products = bricks ? "bf16 by AMX" : precision == expr::Precision::f64 ? "f64" : "f32";
  return base::JsonTree::object()
      .add("summary", fmt::format("{} in {}, {} threads", kernel, products, threads))
      .add("products", products)
      .add("simd", cpu_caps().simd_target);
}

}  // namespace heddle::cpu
