// The cases that the CPU's two passes are measured on have these types and head dims.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cpu_windows.h"
#include "heddle/heddle.h"

namespace heddle::bench {

/// For each type and head dim, the cases that `add_all` adds by add("causal", case), named "f32_d64_causal".
template <class Case, class AddAll>
std::vector<Case> cases_of_each_shape(AddAll&& add_all) {
  std::vector<Case> all;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const std::int64_t dim : {64, 128}) {
      add_all([&](std::string_view what, Case c) {
        c.name = fmt::format("{}_d{}_{}", name(dtype), dim, what);
        c.dtype = dtype;
        c.dim = dim;
        all.push_back(c);
      });
    }
  }
  return all;
}

/// A line of the table for each case that was asked for, by measure(case, threads, seconds).
template <class Case, class Measure>
void measure_cases(const CpuArguments& asked, const std::vector<Case>& cases, Measure&& measure) {
  print_head(asked.threads);
  for (const Case& c : cases) {
    if (c.name.find(asked.filter) != std::string::npos) measure(c, asked.threads, asked.seconds);
  }
}

}  // namespace heddle::bench
