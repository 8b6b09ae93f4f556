#include "kernels/portable/simulated_kernel.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#include "backend/portable/portable_text.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "families/forward_mma/forward_mma.h"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;
using namespace amd::simulator;  // NOLINT: most names here are the simulator's

constexpr const char* kKernel = R"(
#include "{0}"
#include "portable/forward_mma/forward.cuh"
extern "C" __global__ void __attribute__((amdgpu_flat_work_group_size({2}, {2}))) {3}
forward_mma(heddle::shared::ForwardMmaParams params, int ctas) {{
  __shared__ __attribute__((aligned(128))) char memory[{4}];
  heddle::portable::Forward<heddle::kConfig, heddle::portable::{1}<heddle::kConfig>, heddle::GeneratedMods>(
      params, memory).run(heddle::amd::workgroup(), ctas);
}}
)";

std::string text_of(const shared::ForwardMmaConfig& config, const std::string& mods_text) {
  // More would be parked in accumulation registers, and copied.
  const char* waves =
      config.fragments == shared::FragmentKind::gfx9 ? "__attribute__((amdgpu_waves_per_eu(2, 2)))" : "";
  return "#include \"portable/amd_instructions.cuh\"\n" + mods_text +
         fmt::format(kKernel, portable::fragments_header(config.fragments), portable::fragments_class(config.fragments),
                     config.threads(), waves, shared::forward_mma_memory(config).bytes);
}

CodeObject compile(const std::string& chip, const std::string& text) {
  static int number = 0;
  const std::string stem =
      (fs::temp_directory_path() / fmt::format("heddle-simulated-{}-{}", getpid(), number++)).string();
  const std::string source = stem + ".hip", object = stem + ".hsaco", log = stem + ".log";
  std::ofstream(source) << text;
  const std::string command = fmt::format(
      "'{5}' -x hip --offload-arch={0} --offload-device-only --no-gpu-bundle-output -nogpulib -nogpuinc -O3 "
      "-std=c++20 -cuid=1 -I'{1}/kernels/amd' -I'{1}/kernels/common' -I'{1}/kernels' -I'{1}/src' '{2}' -o '{3}' "
      "2>'{4}'",
      chip, HEDDLE_SOURCE_DIR, source, object, log, HEDDLE_AMD_CLANG);
  if (std::system(command.c_str()) != 0) {
    std::ostringstream said;
    said << std::ifstream(log).rdbuf();
    throw std::runtime_error(command + "\n" + said.str());
  }
  CodeObject compiled = CodeObject::load(object);
  for (const std::string& file : {source, object, log}) fs::remove(file);
  return compiled;
}

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }

void bring(Memory& memory, const KernelMemory& from) {
  memory.allocate_at(address_of(from.data), from.bytes, from.name);
  if (!from.written || from.rewritable) {
    memory.write(address_of(from.data), {static_cast<const std::uint8_t*>(from.data), from.bytes});
  }
  memory.set_rewritable(address_of(from.data), from.rewritable);
}

/// Copies back only the bytes that were written: the others keep their content.
void fetch(const Memory& memory, const KernelMemory& to) {
  const Memory::Buffer* buffer = memory.find(address_of(to.data), to.bytes);
  for (std::size_t i = 0; i < to.bytes; ++i) {
    if (buffer->writer[i] != Memory::kNobody) static_cast<std::uint8_t*>(to.data)[i] = buffer->bytes[i];
  }
}

}  // namespace

Report run_on_chip(const std::string& chip, const KernelLaunch& launch) {
  const CodeObject object = compile(chip, text_of(launch.config, launch.mods_text));
  Memory device;
  for (const KernelMemory& each : launch.memory) {
    if (each.bytes > 0) bring(device, each);
  }
  Simulator simulator(object, device);
  Report report = simulator.launch("forward_mma", {static_cast<unsigned>(launch.ctas), 1, 1},
                                   {static_cast<unsigned>(launch.config.threads()), 1, 1},
                                   Arguments().add(launch.params).add(launch.ctas));
  EXPECT_EQ(report.findings.text(), "") << chip;
  for (const KernelMemory& each : launch.memory) {
    if (each.bytes > 0 && each.written) fetch(device, each);
  }
  return report;
}

}  // namespace heddle::test
