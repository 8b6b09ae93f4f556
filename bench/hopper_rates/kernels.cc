#include "kernels.h"

#include <fmt/format.h>

#include <map>
#include <string>

#include "heddle/error.h"
#include "texts.h"

namespace heddle::bench {
namespace {

/// The text of a file of this folder; it lives as long as the program.
const std::string& text_of(const std::string& file) {
  static const auto& all = *new std::map<std::string, std::string>([] {
    std::map<std::string, std::string> texts;
    for (const auto* entry = hopper_texts(); entry->name != nullptr; ++entry) {
      for (const char* const* piece = entry->pieces; *piece != nullptr; ++piece) texts[entry->name] += *piece;
    }
    return texts;
  }());
  return all.at(file);
}

std::string numbered(const char* form, int first, int count) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += (i == 0 ? "" : ", ") + fmt::format(fmt::runtime(form), first + i);
  }
  return text;
}

/// One product as a function: the sums first, then what it reads.
std::string product_function(int columns, bool from_registers) {
  const int sums = columns / 2;
  const int left = from_registers ? 4 : 1;  // operands of the left matrix
  const std::string left_text = from_registers ? "{" + numbered("%{}", sums, 4) + "}" : fmt::format("%{}", sums);
  return fmt::format(
      R"(template <int kSign>
__device__ __forceinline__ void {name}(float (&d)[{sums}], {type}, unsigned long long right) {{
  asm volatile(
      "{{\n"
      ".reg .pred add;\n"
      "setp.ne.b32 add, 1, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 {{{outputs}}}, {left}, %{right}, add, %{sign}, 1, {transposes};\n"
      "}}"
      : {constraints}
      : {inputs}, "l"(right), "n"(kSign));
}}
)",
      fmt::arg("name", from_registers ? "wgmma_registers" : "wgmma_shared"), fmt::arg("sums", sums),
      fmt::arg("type", from_registers ? "const unsigned (&left)[4]" : "unsigned long long left"),
      fmt::arg("columns", columns), fmt::arg("outputs", numbered("%{}", 0, sums)), fmt::arg("left", left_text),
      fmt::arg("right", sums + left), fmt::arg("sign", sums + left + 1),
      fmt::arg("transposes", from_registers ? "0" : "0, 0"),
      fmt::arg("constraints", numbered("\"+f\"(d[{}])", 0, sums)),
      fmt::arg("inputs", from_registers ? numbered("\"r\"(left[{}])", 0, 4) : "\"l\"(left)"));
}

/// rates/wgmma.cuh for so many columns; it lives as long as the program.
const std::string& product_header(int columns) {
  static auto& made = *new std::map<int, std::string>;
  std::string& text = made[columns];
  if (text.empty()) {
    text = fmt::format("#pragma once\nnamespace rates {{\nconstexpr int kColumns = {};\n{}{}}}\n", columns,
                       product_function(columns, false), product_function(columns, true));
  }
  return text;
}

cuda::jit::Source source(const std::string& name, const std::string& file, int columns = 0) {
  cuda::jit::Source source{.name = "hopper_rates " + name, .text = text_of(file), .architecture = "sm_90a"};
  source.headers.push_back({"rates/instructions.cuh", text_of("instructions.cuh")});
  if (columns != 0) source.headers.push_back({"rates/wgmma.cuh", product_header(columns)});
  return source;
}

}  // namespace

cuda::jit::Source products_source(int columns) {
  return source(fmt::format("products n{}", columns), "products.cuh", columns);
}
cuda::jit::Source pipes_source() { return source("pipes", "pipes.cuh", kPipeColumns); }
cuda::jit::Source loads_source() { return source("loads", "loads.cuh"); }
cuda::jit::Source copies_source() { return source("copies", "copies.cuh"); }
cuda::jit::Source nothing_source() { return source("nothing", "nothing.cuh"); }

std::vector<cuda::jit::Source> all_sources() {
  std::vector<cuda::jit::Source> all;
  for (const int columns : kProductColumns) all.push_back(products_source(columns));
  all.push_back(pipes_source());
  all.push_back(loads_source());
  all.push_back(copies_source());
  all.push_back(nothing_source());
  return all;
}

}  // namespace heddle::bench
