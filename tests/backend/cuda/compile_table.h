// What the tests of the compile table share. They compile every kernel that the planner may choose by NVRTC: no spills,
// no serialised products and no addresses in vector registers, where masks read nothing; masks that read captures take
// registers, so for them it is enough that one kernel of each head dim is left. f16 is compiled with one mask only: its
// kernels differ in a few instructions, and so are the spare kernels. HEDDLE_TEST_REDUCED takes no other;
// HEDDLE_TEST_FULL takes all of what features add.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/jit/jit.h"
#include "heddle/attention.h"
#include "heddle/expr.h"
#include "plan/families/forward_sm90_config.h"
#include "plan/families/forward_sm90_costs.h"
#include "plan/mods/kernel_mods.h"

namespace heddle::cuda {

using plan::ForwardSm90Kernel;
using plan::HeadDims;
using plan::kForwardSm90Kernels;

bool reduced();
/// What features add to the table is compiled in part, unless HEDDLE_TEST_FULL asks for all.
bool some_only();

/// Keeps kernels in a folder of its own.
class CompileTable : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;

 private:
  std::filesystem::path folder_;
};

/// What kernels are compiled with besides their configuration.
struct NamedMods {
  std::string name;
  plan::KernelMods mods;
  bool by_sequence = false, device_lengths = false;
  bool sinks = false;
  shared::Normalizer normalizer = shared::Normalizer::softmax;
};

NamedMods named(std::string name, const Expr& mask, const Expr& score = {}, const Expr& weight = {},
                Normalizer normalizer = Normalizer::softmax);
NamedMods with_sinks(NamedMods mods);
/// Of kernels that load the bits of their mask.
NamedMods storing_mask(NamedMods mods);
NamedMods with_normalizer(Normalizer normalizer, std::string name, const Expr& mask, const Expr& score = {},
                          const Expr& weight = {});

/// Keys and values in pages of so many rows: boxes of TMA's, or gathered.
shared::ForwardSm90Config paged(shared::ForwardSm90Config config, int rows, bool odd_o = false);
/// As the planner does it where the tensor's strides allow it.
shared::ForwardSm90Config streaming(const shared::ForwardSm90Config& config, const NamedMods& named);

jit::Source source_of(shared::ForwardSm90Config config, bool f16, const NamedMods& named, bool lse = true);

/// How many instructions of the kernel move a vector register to a uniform one.
int moves_to_uniform_registers(std::span<const char> cubin);

/// The compiler takes that kernel as it is, without spills, and its addresses as uniform.
void expect_accepted(const shared::ForwardSm90Config& config, bool f16, const NamedMods& mask, bool lse = true);

/// How those kernels are to be that each mod has one of.
struct Kind {
  bool f16 = false, lse = true, fp8 = false;
};

/// Each of the mods has a kernel of each head dim that the compiler accepts. 96 and 192/128 are left out: they have
/// 128's tile of 128 x 128, and no more of o in a thread.
void expect_one_accepted(const std::vector<NamedMods>& all, Kind kind = {});

}  // namespace heddle::cuda
