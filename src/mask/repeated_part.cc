#include "mask/repeated_part.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "mask/equal_rows.h"
#include "mask/shape.h"

namespace heddle::mask {
namespace {

/// Different rows of the part that repeats, at most. Each costs about as much as a row of the mask that is not split.
constexpr std::int64_t kMostRows = 64;

Classification with_mask(const Classification& what, const Expr& mask) {
  return {.mask = mask,
          .shape = what.shape,
          .block = what.block,
          .leaves = what.leaves,
          .bindings = what.bindings,
          .captures = what.captures,
          .precision = what.precision,
          .evaluate = what.evaluate,
          .threads = what.threads};
}

void add_term(Expr& conjunction, const Expr& term) { conjunction = conjunction.empty() ? term : conjunction & term; }

/// The terms of a conjunction: those whose rows may repeat, and the rest.
struct Parts {
  Expr repeated, rest;
};
Parts split(const Classification& what) {
  Parts parts;
  std::vector<Expr> left = {what.mask};
  while (!left.empty()) {
    const Expr e = left.back();
    left.pop_back();
    if (e.node()->op == expr::Op::logical_and) {
      left.insert(left.end(), {expr::operand(*e.node(), 1), expr::operand(*e.node(), 0)});
      continue;
    }
    add_term(EqualRows(with_mask(what, e)).may_repeat() ? parts.repeated : parts.rest, e);
  }
  return parts;
}

}  // namespace

RepeatedPart::RepeatedPart(const Classification& what, const Expr& rest) : rest_(rest, what.precision, what.captures) {}

std::shared_ptr<const RepeatedPart> RepeatedPart::find(const Classification& what, const Matrix& matrix) {
  const Parts parts = split(what);
  if (parts.repeated.empty() || parts.rest.empty()) return nullptr;
  const Sequence& sequence = what.shape.sequences[static_cast<std::size_t>(matrix.sequence)];
  const auto columns = static_cast<std::int32_t>(block_count(sequence.kv_len, what.block.kv));
  std::shared_ptr<RepeatedPart> found(new RepeatedPart(what, parts.rest));
  found->first_equal_ = EqualRows(with_mask(what, parts.repeated)).first_equal(matrix);
  const std::vector<std::int32_t>& first = found->first_equal_;
  std::int64_t different = 0;
  for (std::size_t row = 0; row < first.size(); ++row)
    different += first[row] == static_cast<std::int32_t>(row) ? 1 : 0;
  if (different == 0 || different > kMostRows) return nullptr;
  const MaskRanges ranges(parts.repeated, what.precision, what.captures);
  std::vector<expr::Range> scratch;
  found->rows_.resize(first.size());
  for (std::size_t i = 0; i < first.size(); ++i) {
    const auto row = static_cast<std::int32_t>(i);
    if (first[i] != row) continue;
    Strip strip = {matrix, row, row + 1, columns, StripRows(1)};
    descend(strip, ranges, sequence, what.block, scratch);
    if (!strip.rows.open().empty()) return nullptr;
    strip.rows.take(0, found->rows_[i]);
  }
  return found;
}

void RepeatedPart::fill(Strip& strip, const MaskRanges& whole, const Sequence& sequence, BlockSize block,
                        std::vector<expr::Range>& scratch) const {
  Strip rest = {strip.matrix, strip.row_begin, strip.row_end, strip.columns,
                StripRows(strip.row_end - strip.row_begin)};
  descend(rest, rest_, sequence, block, scratch);
  strip.range_queries += rest.range_queries;
  if (!rest.rows.open().empty()) return descend(strip, whole, sequence, block, scratch);
  std::vector<Run> runs;
  for (std::int32_t row = 0; row < strip.row_end - strip.row_begin; ++row) {
    rest.rows.take(row, runs);
    const std::size_t all = static_cast<std::size_t>(strip.row_begin + row);
    std::span<const Run> others = rows_[static_cast<std::size_t>(first_equal_[all])];
    for (const Run& run : runs) {
      while (!others.empty() && others.front().end <= run.begin) others = others.subspan(1);
      // The last one may reach into the next run, too.
      for (std::size_t i = 0; i < others.size() && others[i].begin < run.end; ++i) {
        const std::int32_t begin = std::max(run.begin, others[i].begin), end = std::min(run.end, others[i].end);
        if (run.kind == RunKind::partial && others[i].kind == RunKind::partial) {
          descend(strip, strip.row_begin + row, begin, end, whole, sequence, block, scratch);
        } else {
          const bool full = run.kind == RunKind::full && others[i].kind == RunKind::full;
          strip.rows.append(row, row + 1, begin, end, full ? Class::full : Class::partial);
        }
      }
    }
  }
}

}  // namespace heddle::mask
