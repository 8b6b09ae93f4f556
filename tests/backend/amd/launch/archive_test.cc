// An archive on an AMD GPU: kernels that one process compiles run in another that has no hipRTC, and are right.
#include "heddle/archive.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "backend/amd/launch/fake_device.h"
#include "backend/cuda/driver/in_child.h"
#include "heddle/heddle.h"
#include "kernels/cuda/gpu_case.h"
#include "kernels/portable/specs.h"

namespace heddle::amd {
namespace {

test::CaseSpec spec() {
  test::CaseSpec spec;
  spec.seed = 3;
  spec.q_rows = 65;
  spec.kv_rows = 70;
  spec.qk_dim = spec.v_dim = 64;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.mask = "causal";
  spec.threads = 1;
  return spec;
}

/// Runs and judges the case; what went wrong.
std::string run_case() {
  use_fake_device();
  test::GpuCase c(spec());
  if (!c.run()) return "the case did not run";
  judge(c.host());
  return testing::Test::HasFailure() ? "the result is wrong" : take_findings();
}

TEST(AmdArchive, NeedsNoCompiler) {
  const std::string path = fmt::format("{}/heddle-{}.archive", testing::TempDir(), getpid());
  EXPECT_EQ(in_child([&] {
              use_fake_device();
              std::string calls;
              set_event_listener([&](const std::string& event) { calls += event + "\n"; });
              const std::string wrong = run_case();
              set_event_listener({});
              const std::vector<std::string> gpus = {chip()};
              const ArchiveReport report = write_archive(path, calls, gpus);
              return report.kernels > 0 ? wrong : std::string("no kernel");
            }),
            "");
  EXPECT_EQ(in_child([&] {
              ::setenv("HEDDLE_HIPRTC", "/nonexistent", 1);
              ::setenv("HEDDLE_ARCHIVE", path.c_str(), 1);
              const std::string wrong = run_case();
              const KernelCounts counts = kernel_counts();
              return counts.compiled + counts.from_disk > 0 || counts.from_archive == 0 ? std::string("not from there")
                                                                                        : wrong;
            }),
            "");
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace heddle::amd
