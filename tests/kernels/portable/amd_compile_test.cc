// Kernels of the portable family for AMD's GPUs, compiled by clang 19: no scratch, no spills, no accumulation
// registers, shared memory within a workgroup's 64 KiB, and the waves a SIMD that the registers leave. Without mods:
// their functions are NVIDIA's so far. Where there is no clang++-19 the test prints so and is skipped.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>

#include "backend/portable/portable_text.h"
#include "backend/portable/shared/forward_mma_config.h"
#include "families/forward_mma/forward_mma.h"

namespace heddle {
namespace {

namespace fs = std::filesystem;

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

std::string text_of(const shared::ForwardMmaConfig& config) {
  // More would be parked in accumulation registers, and copied.
  const char* waves =
      config.fragments == shared::FragmentKind::gfx9 ? "__attribute__((amdgpu_waves_per_eu(2, 2)))" : "";
  return "#include \"portable/amd_instructions.cuh\"\n" + portable::config_and_mods_text(config, {}, {}) +
         fmt::format(kKernel, portable::fragments_header(config.fragments), portable::fragments_class(config.fragments),
                     config.threads(), waves, shared::forward_mma_memory(config).bytes);
}

/// The compiler's remarks on the kernel's resources: "VGPRs" -> "231".
std::map<std::string, std::string> compile(const std::string& architecture, const shared::ForwardMmaConfig& config) {
  static int number = 0;
  const fs::path stem = fs::temp_directory_path() / fmt::format("heddle-amd-{}-{}", getpid(), number++);
  const std::string source = stem.string() + ".hip", object = stem.string() + ".hsaco", log = stem.string() + ".log";
  std::ofstream(source) << text_of(config);
  const std::string command = fmt::format(
      "clang++-19 -x hip --offload-arch={0} --offload-device-only --no-gpu-bundle-output -nogpulib -nogpuinc -O3 "
      "-std=c++20 -cuid=1 -Rpass-analysis=kernel-resource-usage -I'{1}/kernels/amd' -I'{1}/kernels/common' "
      "-I'{1}/kernels' -I'{1}/src' '{2}' "
      "-o '{3}' 2>'{4}'",
      architecture, HEDDLE_SOURCE_DIR, source, object, log);
  const int status = std::system(command.c_str());
  std::ostringstream text;
  text << std::ifstream(log).rdbuf();
  for (const std::string& file : {source, object, log}) fs::remove(file);
  EXPECT_EQ(status, 0) << text.str();
  std::map<std::string, std::string> facts;
  const std::regex remark(R"(remark:\s*(?:\S+:\d+:\d+:\s*)?\s*([A-Za-z][A-Za-z \[\]/]*): (\S+) \[-Rpass)");
  const std::string all = text.str();
  for (std::sregex_iterator i(all.begin(), all.end(), remark), end; i != end; ++i) facts[(*i)[1]] = (*i)[2];
  return facts;
}

struct Row {
  const char* architecture;
  shared::FragmentKind fragments;
  int dim, row_waves, kv_block;
  bool shared_queries;
  int least_waves;
  shared::Fp8 type = shared::Fp8::none;  // of keys and values, beside queries of bf16
};

TEST(AmdCompileTable, KernelsHaveNoScratch) {
  if (std::system("clang++-19 --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "clang++-19 was not found";
  using shared::FragmentKind;
  constexpr Row kRows[] = {
      {"gfx1100", FragmentKind::gfx11, 64, 4, 64, false, 6},
      {"gfx1100", FragmentKind::gfx11, 128, 4, 32, false, 6},
      {"gfx1151", FragmentKind::gfx11, 128, 4, 32, false, 6},
      {"gfx1201", FragmentKind::gfx12, 64, 4, 64, false, 6},
      {"gfx1201", FragmentKind::gfx12, 128, 4, 32, false, 6},
      {"gfx1201", FragmentKind::gfx12, 256, 4, 16, true, 2},
      {"gfx90a", FragmentKind::gfx9, 64, 2, 64, false, 2},
      {"gfx90a", FragmentKind::gfx9, 128, 2, 32, false, 2},
      {"gfx942", FragmentKind::gfx9, 64, 2, 64, false, 2},
      {"gfx942", FragmentKind::gfx9, 128, 2, 32, false, 2},
      {"gfx1100", FragmentKind::gfx11, 128, 4, 32, false, 6, shared::Fp8::e4m3},
      {"gfx942", FragmentKind::gfx9, 128, 2, 32, false, 2, shared::Fp8::e4m3},
      {"gfx1030", FragmentKind::fma, 64, 4, 32, true, 2, shared::Fp8::e4m3},
  };
  for (const Row& row : kRows) {
    shared::ForwardMmaConfig config;
    config.fragments = row.fragments;
    config.qk_dim = config.v_dim = row.dim;
    config.row_waves = row.row_waves;
    config.kv_block = row.kv_block;
    config.shared_queries = row.shared_queries;
    config.lse = true;
    config.k_fp8 = config.v_fp8 = row.type;
    config.q_bf16 = config.converts();
    if (config.converts()) config.storage = shared::Storage::f16;
    SCOPED_TRACE(fmt::format("{} {}", row.architecture, forward_mma::name_of(config)));
    std::map<std::string, std::string> facts = compile(row.architecture, config);
    EXPECT_EQ(facts["ScratchSize [bytes/lane]"], "0");
    EXPECT_EQ(facts["VGPRs Spill"], "0");
    EXPECT_EQ(facts["SGPRs Spill"], "0");
    if (row.fragments == FragmentKind::gfx9) {
      EXPECT_EQ(facts["AGPRs"], "0");
    }
    EXPECT_GE(std::atoi(facts["Occupancy [waves/SIMD]"].c_str()), row.least_waves);
    const int bytes = std::atoi(facts["LDS Size [bytes/block]"].c_str());
    // Nothing for reductions, or for P. At head dim 256 clang moves 16 bytes of each thread there.
    EXPECT_EQ(bytes, shared::forward_mma_memory(config).bytes + (row.dim == 256 ? 16 * config.threads() : 0));
    EXPECT_LE(bytes, 64 << 10);
    fmt::print("{} {}: {} VGPRs, {} waves a SIMD, {} bytes of LDS\n", row.architecture, forward_mma::name_of(config),
               facts["VGPRs"], facts["Occupancy [waves/SIMD]"], bytes);
  }
}

}  // namespace
}  // namespace heddle
