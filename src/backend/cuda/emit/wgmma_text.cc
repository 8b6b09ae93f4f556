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
  std::string types;
  std::string immediates;  // after the predicate: signs of a and b, then in 16 bits which operands are transposed
};

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

std::string type_of(shared::Fp8 fp8, bool f16) {
  if (fp8 == shared::Fp8::none) return f16 ? "f16" : "bf16";
  return fp8 == shared::Fp8::e4m3 ? "e4m3" : "e5m2";
}

}  // namespace

std::string wgmma_text(const shared::ForwardSm90Config& config) {
  const int kv_block = config.kv_block, v_columns = config.v_columns();
  const std::string q = type_of(config.q_fp8, config.f16), k = type_of(config.k_fp8, config.f16),
                    v = type_of(config.v_fp8, config.f16);
  const Product qk = {.name = "qk_product",
                      .parameters = "unsigned long long a, unsigned long long b, int accumulate",
                      .a_operand = operands(kv_block / 2, 1),
                      .inputs = "\"l\"(a), \"l\"(b), \"r\"(accumulate)",
                      .columns = kv_block,
                      .input_count = 3,
                      .types = fmt::format("{}.{}", q, k),
                      .immediates = config.fp8() ? "1, 1" : "1, 1, 0, 0"};
  const Product pv = {.name = "pv_product",
                      .parameters = "const unsigned* a, unsigned long long b, int accumulate",
                      .a_operand = fmt::format("{{{}}}", operands(v_columns / 2, 4)),
                      .inputs = "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3]), \"l\"(b), \"r\"(accumulate)",
                      .columns = v_columns,
                      .input_count = 6,
                      .types = fmt::format("{}.{}", q, v),
                      .immediates = config.fp8() ? "1, 1" : "1, 1, 1"};
  return fmt::format("namespace heddle {{\n\n{}\n{}\n}}  // namespace heddle\n",
                     product_text(qk, config.product_step()), product_text(pv, config.product_step()));
}

}  // namespace heddle::cuda::emit
