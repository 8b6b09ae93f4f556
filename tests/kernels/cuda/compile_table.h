// Shared by the tests of the compile table. They compile every kernel that the planner may choose by NVRTC. Where masks
// read nothing: no spills, no serialised products and no addresses in vector registers. Masks that read captures take
// registers, so for them one accepted kernel of each head dim is enough. f16 is compiled with one mask only: its
// kernels differ in a few instructions, and so do the spare kernels. By default a sample is compiled (table_sample.h);
// HEDDLE_TEST_FULL compiles all.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/jit/cuda_jit.h"
#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "heddle/attention.h"
#include "heddle/expr.h"
#include "kernels/cuda/own_kernels.h"
#include "plan/mods/kernel_mods.h"

namespace heddle::cuda {

using plan::ForwardSm90Kernel;
using plan::HeadDims;
using plan::kForwardSm90Kernels;

class CompileTable : public OwnKernels {};

/// Everything besides its configuration that a kernel is compiled with.
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
/// Mods over granules of a longer sequence.
NamedMods in_granules(std::string name, const Expr& mask, const Expr& score = {}, const Expr& weight = {});
/// For kernels that load the bits of their mask.
NamedMods storing_mask(NamedMods mods);
NamedMods with_normalizer(Normalizer normalizer, std::string name, const Expr& mask, const Expr& score = {},
                          const Expr& weight = {});

/// Keys and values in pages of `rows` rows: in TMA's boxes, or gathered.
shared::ForwardSm90Config paged(shared::ForwardSm90Config config, int rows, bool odd_o = false);
/// Done by the planner, too, if the tensor's strides allow it.
shared::ForwardSm90Config streaming(const shared::ForwardSm90Config& config, const NamedMods& named);

jit::Source source_of(shared::ForwardSm90Config config, bool f16, const NamedMods& named, bool lse = true);

/// How many instructions of the kernel move a vector register to a uniform one.
int moves_to_uniform_registers(std::span<const char> cubin);

/// The compiler takes that kernel as it is, without spills, and its addresses as uniform.
void expect_accepted(const shared::ForwardSm90Config& config, bool f16, const NamedMods& mask, bool lse = true);

/// How those kernels are to be that each mod has one of.
struct Kind {
  bool f16 = false, lse = true, fp8 = false, lse_rest = false;
};

/// Kernels of which one for each name must be accepted, however many candidates there are; the destructor expects it. A
/// name is in the sample if its first candidate is.
class OneOfEach {
 public:
  /// builds_all: those offered after one was accepted, too.
  explicit OneOfEach(bool builds_all = false) : builds_all_(builds_all) {}
  ~OneOfEach();
  OneOfEach(const OneOfEach&) = delete;
  OneOfEach& operator=(const OneOfEach&) = delete;
  void offer(const std::string& name, const std::string& kernel, const jit::Source& source);

 private:
  struct Found {
    bool asked = false, found = false;
  };
  bool builds_all_;
  std::map<std::string, Found> named_;
};

/// Each of the mods has a kernel of each head dim that the compiler accepts. 96 and 192/128 are left out: they have
/// 128's tile of 128 x 128, and no more of o in a thread.
void expect_one_accepted(const std::vector<NamedMods>& all, Kind kind = {});

}  // namespace heddle::cuda
