#include "kernels/cuda/mods/device_program.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstdint>

#include "backend/cuda/driver/driver.h"
#include "backend/device_code/headers.h"

namespace heddle::cuda::test {

using device_text::mod_text;
using device_text::ModLayout;
using device_text::TakesScore;
using device_text::test::bound_values;

namespace {

constexpr int kDevice = 0;
constexpr unsigned kThreads = 128;

/// As the kernel below has it.
struct Element {
  double score;
  int b, h, q_idx, kv_idx, q_len, kv_len, q_start;
};

// Around the mods. A call goes the way of a kernel: uniform, row and column, element. Results are bits.
constexpr const char* kBegin = R"(#include "shared/mod_values.h"

struct Element {
  double score;
  int b, h, q_idx, kv_idx, q_len, kv_len, q_start;
};
using Bits = unsigned long long;
__device__ Bits bits(double x) { return static_cast<Bits>(__double_as_longlong(x)); }
__device__ Bits bits(float x) { return __float_as_uint(x); }
__device__ Bits bits(int x) { return static_cast<unsigned>(x); }
__device__ Bits bits(bool x) { return x ? 1 : 0; }
#define EVALUATE(number, name) case number: { \
    const auto u = name##_uniform(mod, at.b, at.h); \
    const auto r = name##_row(mod, u, at.b, at.h, at.q_idx); \
    const auto c = name##_column(mod, u, at.b, at.h, at.kv_idx); \
    results[i] = bits(name##_element(mod, u, r, c, static_cast<Real>(at.score), at.b, at.h, at.q_idx, at.kv_idx)); \
    break; }
)";
constexpr const char* kKernel = R"(
namespace heddle {
extern "C" __global__ void evaluate(int which, const Element* elements, Bits* results, int count,
                                    const __grid_constant__ shared::ModValues bound) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= count) return;
  const Element at = elements[i];
  shared::ModValues mod = bound;
  mod.q_len = at.q_len;
  mod.kv_len = at.kv_len;
  mod.q_start = at.q_start;
  switch (which) {
)";
constexpr const char* kEnd = "  }\n}\n}  // namespace heddle\n";

std::vector<Element> elements_of(std::span<const expr::Element> elements) {
  using expr::Leaf;
  std::vector<Element> all;
  for (const expr::Element& at : elements) {
    all.push_back({at.score, at[Leaf::b], at[Leaf::h], at[Leaf::q_idx], at[Leaf::kv_idx], at[Leaf::q_len],
                   at[Leaf::kv_len], at[Leaf::q_start]});
  }
  return all;
}

/// The bytes of memory that a view spans, and where its first element is among them.
struct Extent {
  std::int64_t begin, bytes;
};
Extent extent_of(const ConstTensorView& view) {
  std::int64_t low = 0, high = 0;
  for (int axis = 0; axis < view.rank(); ++axis) {
    if (view.shape[axis] == 0) return {0, 0};
    const std::int64_t reach = (view.shape[axis] - 1) * view.strides[axis];
    (reach < 0 ? low : high) += reach;
  }
  return {low * size_of(view.dtype), (high - low + 1) * size_of(view.dtype)};
}

}  // namespace

std::string DeviceProgram::missing() {
  const std::string no_driver = driver_missing();
  return no_driver.empty() ? jit::compiler_missing() : no_driver;
}

int DeviceProgram::add(const Expr& mod, const ModLayout& layout) {
  const int number = static_cast<int>(types_.size());
  const std::string name = fmt::format("mod{}", number);
  text_ += mod_text(name, mod, layout, TakesScore::yes);
  cases_ += fmt::format("    EVALUATE({}, {})\n", number, name);
  types_.push_back(mod.type());
  reals_ = layout.reals;
  return number;
}

jit::Source DeviceProgram::source() const {
  jit::Source source{.name = "mods",
                     .text = (reals_ == expr::Precision::f64 ? "using Real = double;\n" : "using Real = float;\n") +
                             std::string(kBegin) + text_ + kKernel + cases_ + kEnd,
                     .headers = device_code::cuda_headers(),
                     .architecture = "sm_90a"};
  if (!devices().empty())
    source.architecture = fmt::format("sm_{}{}", devices()[kDevice].major, devices()[kDevice].minor);
  return source;
}

void DeviceProgram::compile() {
  module_ = std::make_unique<Module>(kDevice, std::span<const char>(jit::build(source())->bytes));
}

shared::ModValues DeviceProgram::bind(const ModLayout& layout, const Bindings& bindings) {
  shared::ModValues values = bound_values(layout, bindings);
  for (std::size_t i = 0; i < layout.captures.size(); ++i) {
    const ConstTensorView& view = bindings.captures.at(layout.captures[i].name);
    const Extent extent = extent_of(view);
    if (extent.bytes == 0) continue;
    const auto* first = static_cast<const std::byte*>(view.data);
    const DeviceMemory& memory = memory_.emplace_back(kDevice, static_cast<std::size_t>(extent.bytes));
    copy_and_wait(kDevice, memory.data(), first + extent.begin, memory.bytes());
    values.captures[i].data = static_cast<const std::byte*>(memory.data()) - extent.begin;
  }
  return values;
}

std::vector<expr::Value> DeviceProgram::values(int mod, const shared::ModValues& bound,
                                               std::span<const expr::Element> elements) const {
  const ContextScope context(kDevice);
  const std::vector<Element> all = elements_of(elements);
  std::vector<std::uint64_t> bits(all.size());
  const DeviceMemory in(kDevice, all.size() * sizeof(Element)), out(kDevice, bits.size() * sizeof(std::uint64_t));
  copy_and_wait(kDevice, in.data(), all.data(), in.bytes());
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(all.size() + kThreads - 1) / kThreads;
  config.blockDimX = kThreads;
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  void *to = out.data(), *from = in.data();
  int count = static_cast<int>(all.size());
  shared::ModValues given = bound;
  std::array<void*, 5> parameters = {&mod, &from, &to, &count, &given};
  check(driver().LaunchKernelEx(&config, module_->function("evaluate", 0), parameters.data(), nullptr),
        "a test's launch");
  copy_and_wait(kDevice, bits.data(), out.data(), out.bytes());
  std::vector<expr::Value> values;
  for (const std::uint64_t word : bits) {
    const ExprType type = types_[static_cast<std::size_t>(mod)];
    if (type == ExprType::f32 && reals_ == expr::Precision::f64) values.emplace_back(std::bit_cast<double>(word));
    if (type == ExprType::f32 && reals_ == expr::Precision::f32) {
      values.emplace_back(static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(word))));
    }
    if (type == ExprType::i32) values.emplace_back(static_cast<std::int32_t>(word));
    if (type == ExprType::boolean) values.emplace_back(word != 0);
  }
  return values;
}

}  // namespace heddle::cuda::test
