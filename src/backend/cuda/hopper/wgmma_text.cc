#include "backend/cuda/hopper/wgmma_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace heddle::cuda {
namespace {

std::string outputs(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(fmt::format("\"+f\"(d[{}])", i));
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

std::string operands(int first, int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(fmt::format("%{}", first + i));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string product_text(const Product& product, int step) {
  const int registers = product.columns / 2;
  return fmt::format(
      "__device__ __forceinline__ void {}(float (&d)[{}], {}) {{\n"
      "  asm volatile(\"{{\\n.reg .pred adds;\\nsetp.ne.b32 adds, %{}, 0;\\n\"\n"
      "               \"wgmma.mma_async.sync.aligned.m64n{}k{}.f32.{} {{{}}}, {}, %{}, adds, {};\\n}}\"\n"
      "               : {}\n"
      "               : {});\n"
      "}}\n",
      product.name, registers, product.parameters, registers + product.input_count - 1, product.columns, step,
      product.types, operands(0, registers), product.a_operand, registers + product.input_count - 2, product.immediates,
      outputs(registers), product.inputs);
}

}  // namespace heddle::cuda
