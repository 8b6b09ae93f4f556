// kv_start in GPU kernels. A kernel counts each sequence's keys from 0. Its mods read kv_idx as that position plus
// kv_start, which is one more value of the mods. Kernels and their parameters do not know it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "heddle/block_mask.h"
#include "heddle/dtype.h"
#include "heddle/expr.h"
#include "problem/problem.h"

namespace heddle::plan {

/// How mods get the kv_start of a sequence.
struct KvStart {
  /// zero: all are 0, or no mod depends on one. param: all are equal. capture: a vector, read at b. Other starts of the
  /// same form never recompile a kernel.
  enum class Form : std::uint8_t { zero, param, capture };
  Form form = Form::zero;
  DType dtype = DType::i32;  // of the vector
  /// Bound of the starts' magnitude, to which mods clip them so that range analysis proves more; 0: none. One of few
  /// numbers, since kernels are compiled for it.
  std::int32_t bound = 0;
};

/// The name of that param or capture. The caller can have neither: it is a leaf's.
inline constexpr const char* kKvStartName = "kv_start";

/// kv_start of sequences that the host knows.
KvStart kv_start_of(std::span<const Sequence> sequences);
/// kv_start in a problem's mods.
KvStart kv_start_of(const problem::AttentionProblem& problem);

/// The mod with kv_idx + kv_start for kv_idx and that value for kv_start. Empty stays empty.
Expr by_position(const Expr& mod, const KvStart& start);
/// The problem as its kernel sees it: mods by position, no kv_start.
problem::AttentionProblem by_position(const problem::AttentionProblem& problem, const KvStart& start);

/// ", and kv_start takes one more" if the value has that form; else empty. For sentences about limits.
std::string takes_one_more(const KvStart& start, KvStart::Form form);

}  // namespace heddle::plan
