// Problems on which the Hopper kernels are timed, and one way to time them all beside each other.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "heddle/heddle.h"
#include "plan/plan.h"

namespace heddle::bench {

inline constexpr std::int64_t kTokens = 16384, kColumns = 2048;  // rows of q, k, v and o; most columns
/// Heads that kColumns have room for.
constexpr std::int64_t heads_of(const shared::ForwardSm90Config& config) {
  return kColumns / std::max(config.qk_dim, config.v_dim);
}

struct Problem {
  std::string_view mask;  // "full", "causal", "window"
  std::int64_t length, tokens;
};
Expr mask_of(const Problem& problem);

/// One kernel on one problem, whatever the planner would choose.
struct TimedCase {
  TimedCase(const Problem& asked, const shared::ForwardSm90Config& with);

  Problem problem;
  shared::ForwardSm90Config config;  // writes lse, and is masked where the problem is
  plan::TileOrder order{};
  bool dropout = false;  // of 0.1; the configuration says in which form
  std::shared_ptr<const BlockMask> rows;
  std::vector<double> seconds{};  // of each round

  double median() const {
    std::vector<double> sorted = seconds;
    std::ranges::sort(sorted);
    return sorted[sorted.size() / 2];
  }
};

/// Times all cases in each of `rounds` rounds of so many seconds a case, each round in another order: what a kernel
/// reaches depends on how hot the one before has left the chip. A case whose kernel is refused gets no seconds; the
/// reason is printed.
void measure(std::span<TimedCase* const> cases, int device, int rounds, double seconds);

}  // namespace heddle::bench
