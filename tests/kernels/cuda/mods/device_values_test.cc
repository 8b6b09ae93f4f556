// Values of the text of mods on a GPU.
#include <array>
#include <memory>

#include "backend/cuda/driver/driver.h"
#include "backend/device_text/value_cases.h"
#include "kernels/cuda/mods/columns_program.h"
#include "kernels/cuda/mods/device_program.h"

namespace heddle::device_text::test {

using cuda::check;
using cuda::ContextScope;
using cuda::copy_and_wait;
using cuda::DeviceMemory;
using cuda::driver;
using cuda::Module;
using cuda::test::columns_source;
using cuda::test::DeviceProgram;
using cuda::test::kColumnKeys;
using cuda::test::mods_over_columns;
using cuda::test::WideDeviceProgram;

INSTANTIATE_TYPED_TEST_SUITE_P(OnGpu, ModValues, DeviceProgram);
INSTANTIATE_TYPED_TEST_SUITE_P(WideOnGpu, ModValues, WideDeviceProgram);

/// Elements that differ from their neighbours.
Tensor varied(const Dims& shape) {
  Tensor tensor = Tensor::empty(DType::f32, shape);
  for (std::int64_t i = 0; i < tensor.count(); ++i)
    static_cast<float*>(tensor.data())[i] = static_cast<float>(i * 7 % 11);
  return tensor;
}

TEST(OnGpu, ColumnsOfAFragment) {
  if (const std::string missing = DeviceProgram::missing(); !missing.empty()) GTEST_SKIP() << missing;
  Tensor ids = Tensor::empty(DType::i64, {256}), flags = Tensor::empty(DType::boolean, {256});
  for (std::int64_t i = 0; i < 256; ++i) {
    static_cast<std::int64_t*>(ids.data())[i] = i * 7 % 11;
    static_cast<unsigned char*>(flags.data())[i] = i % 3 == 0 ? 1 : 0;
  }
  const Tensor weights = varied({256}), table = varied({5, 100});
  const Bindings bindings{.captures = {{"ids", ids}, {"flags", flags}, {"weights", weights}, {"table", table}},
                          .params = {}};
  const std::vector<Expr> mods = mods_over_columns();
  DeviceProgram memory;
  shared::ModValues values = memory.bind(layout_of(mods), bindings);

  cuda::jit::Source source = columns_source();
  source.architecture = DeviceProgram().source().architecture;
  const Module module(0, std::span<const char>(cuda::jit::build(source)->bytes));
  const ContextScope context(0);
  std::vector<unsigned> results(32 * mods.size());
  const DeviceMemory out(0, results.size() * sizeof(unsigned));
  cuda::CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = 32;
  void* to = out.data();
  std::array<void*, 2> parameters = {&to, &values};
  check(driver().LaunchKernelEx(&config, module.function("columns", 0), parameters.data(), nullptr), "a test's launch");
  copy_and_wait(0, results.data(), out.data(), out.bytes());
  for (std::size_t i = 0; i < results.size(); ++i)
    EXPECT_EQ(results[i], kColumnKeys / 4U) << print(mods[i / 32]) << ", lane " << i % 32;
}

}  // namespace heddle::device_text::test
