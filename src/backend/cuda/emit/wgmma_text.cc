#include "backend/cuda/emit/wgmma_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace heddle::cuda::emit {
namespace {

// "%4, %5, %6"
std::string operands(int first, int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(fmt::format("%{}", first + i));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string outputs(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(fmt::format("\"+f\"(d[{}])", i));
  return fmt::format("{}", fmt::join(names, ", "));
}

struct Product {
  std::string name, parameters, a_operand, inputs;
  int columns, input_count;
  std::string immediates;  // after the predicate: signs of a and b, then which operands are transposed
};

std::string product_text(const Product& product, bool f16) {
  const int registers = product.columns / 2;
  const std::string type = f16 ? "f16" : "bf16";
  return fmt::format(
      "__device__ __forceinline__ void {}(float (&d)[{}], {}) {{\n"
      "  asm volatile(\"{{\\n.reg .pred adds;\\nsetp.ne.b32 adds, %{}, 0;\\n\"\n"
      "               \"wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} {{{}}}, {}, %{}, adds, {};\\n}}\"\n"
      "               : {}\n"
      "               : {});\n"
      "}}\n",
      product.name, registers, product.parameters, registers + product.input_count - 1, product.columns, type, type,
      operands(0, registers), product.a_operand, registers + product.input_count - 2, product.immediates,
      outputs(registers), product.inputs);
}

}  // namespace

std::string wgmma_text(int kv_block, int v_columns, bool f16) {
  const Product qk = {.name = "qk_product",
                      .parameters = "unsigned long long a, unsigned long long b, int accumulate",
                      .a_operand = operands(kv_block / 2, 1),
                      .inputs = "\"l\"(a), \"l\"(b), \"r\"(accumulate)",
                      .columns = kv_block,
                      .input_count = 3,
                      .immediates = "1, 1, 0, 0"};
  const Product pv = {.name = "pv_product",
                      .parameters = "const unsigned* a, unsigned long long b, int accumulate",
                      .a_operand = fmt::format("{{{}}}", operands(v_columns / 2, 4)),
                      .inputs = "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b), \"r\"(accumulate)",
                      .columns = v_columns,
                      .input_count = 6,
                      .immediates = "1, 1, 1"};
  return fmt::format("namespace heddle {{\n\n{}\n{}\n}}  // namespace heddle\n", product_text(qk, f16),
                     product_text(pv, f16));
}

}  // namespace heddle::cuda::emit
