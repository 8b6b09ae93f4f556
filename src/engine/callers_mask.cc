#include "engine/callers_mask.h"

#include <algorithm>
#include <optional>
#include <span>

#include "base/on_host.h"
#include "engine/planners_mask.h"
#include "heddle/expr.h"

namespace heddle::engine {
namespace {

constexpr std::int64_t kBlock = 64;  // all families' kernels take multiples of it

bool is_any(const Run&) { return true; }
bool is_full(const Run& run) { return run.kind == RunKind::full; }

/// Whether the columns of those `inner` runs that `counts` are all in such runs of `outer`. Both are in order.
template <class Counts>
bool are_inside(const RowRuns& inner, const RowRuns& outer, Counts&& counts) {
  auto next = outer.begin();
  for (const Run& run : inner) {
    if (!counts(run)) continue;
    for (std::int32_t column = run.begin; column < run.end; column = next->end) {
      next = std::find_if(next, outer.end(), [&](const Run& other) { return other.end > column && counts(other); });
      if (next == outer.end() || next->begin > column) return false;
    }
  }
  return true;
}

/// Whether the lists skip only what the mask_mod masks, and fill only what it fills.
bool says_no_more(const BlockMask& lists, const problem::AttentionProblem& problem) {
  std::optional<BlockMask> built;
  if (!problem.mask_mod.empty()) {
    const Symbols symbols = symbols_of(problem.mask_mod);
    if (!symbols.captures.empty() || !symbols.params.empty()) return false;
    const DType reals = problem.precision == expr::Precision::f64 ? DType::f64 : DType::f32;
    built = BlockMask::build(problem.mask_mod, {problem.q_heads, problem.sequences}, lists.block(), {}, 0, reals);
  }
  const bool alike = lists.shared_by_heads() && (!built || built->shared_by_heads());
  for (std::int64_t batch = 0; batch < problem.batch; ++batch) {
    const auto columns = static_cast<std::int32_t>(lists.kv_blocks(batch));
    const Run all = {0, columns, RunKind::full};
    for (std::int64_t head = 0; head < (alike ? 1 : problem.q_heads); ++head) {
      for (std::int64_t row = 0; row < lists.q_blocks(batch); ++row) {
        const RowRuns listed = lists.row(batch, head, row);
        const RowRuns wanted = built ? built->row(batch, head, row) : std::span(&all, columns > 0 ? 1U : 0U);
        if (!are_inside(wanted, listed, is_any) || !are_inside(listed, wanted, is_full)) return false;
      }
    }
  }
  return true;
}

}  // namespace

std::shared_ptr<const BlockMask> followed_mask(const problem::AttentionProblem& problem,
                                               const AttentionOptions& options) {
  const std::shared_ptr<const BlockMask>& given = options.block_mask;
  if (given == nullptr || problem.device.kind == DeviceKind::cpu || problem.device_lengths) return given;
  const BlockSize block = given->block();
  if (block.q % kBlock == 0 && block.kv % kBlock == 0) return given;
  base::OnHost host;
  given->check_current(mask_bindings(problem.mask_mod, options.bindings, host));
  return given->is_from_lists() && !says_no_more(*given, problem) ? given : nullptr;
}

}  // namespace heddle::engine
