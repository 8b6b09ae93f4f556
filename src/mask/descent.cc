#include "mask/descent.h"

#include <algorithm>
#include <array>

namespace heddle::mask {
namespace {

using expr::Leaf;
using expr::LeafRanges;
using expr::Range;

/// Queries that an open block may cost beyond its corners before it is evaluated: a fraction of what its elements cost
/// the tile evaluator, which stops early too, and never more than its quarters and theirs.
constexpr std::int64_t kElementsPerQuery = 1024;
constexpr std::int64_t kMostQueries = 4 + 16;

Expr with_affine_tokens(const Expr& mask) {
  return expr::rewrite(mask, [](const expr::Node& node, std::span<const Expr> operands) {
    if (node.op == expr::Op::leaf && node.leaf() == Leaf::q_token) return leaf::q_idx() + leaf::q_token();
    if (node.op == expr::Op::leaf && node.leaf() == Leaf::kv_token) return leaf::kv_idx() + leaf::kv_token();
    return expr::with_operands(node, operands);
  });
}

/// Rows [q_begin, q_end) and columns [kv_begin, kv_end) of elements, or of blocks.
struct Box {
  std::int64_t q_begin, q_end, kv_begin, kv_end;
  std::int64_t q_size() const { return q_end - q_begin; }
  std::int64_t kv_size() const { return kv_end - kv_begin; }
  bool is_single() const { return q_size() == 1 && kv_size() == 1; }
};

/// The parts of a box in the order of the quadtree; a side of one is not cut.
struct Parts {
  std::array<Box, 4> box;
  std::size_t count = 0;
  auto begin() const { return box.begin(); }
  auto end() const { return box.begin() + count; }
};
Parts split(const Box& box, bool cut_q, bool cut_kv) {
  const std::int64_t q_middle = box.q_begin + box.q_size() / 2, kv_middle = box.kv_begin + box.kv_size() / 2;
  Parts parts;
  const auto add_row = [&](std::int64_t q_begin, std::int64_t q_end) {
    if (!cut_kv) {
      parts.box[parts.count++] = {q_begin, q_end, box.kv_begin, box.kv_end};
      return;
    }
    parts.box[parts.count++] = {q_begin, q_end, box.kv_begin, kv_middle};
    parts.box[parts.count++] = {q_begin, q_end, kv_middle, box.kv_end};
  };
  if (!cut_q) {
    add_row(box.q_begin, box.q_end);
  } else {
    add_row(box.q_begin, q_middle);
    add_row(q_middle, box.q_end);
  }
  return parts;
}

class Descent {
 public:
  Descent(Strip& strip, const MaskRanges& ranges, const Sequence& sequence, BlockSize block,
          std::vector<Range>& scratch)
      : strip_(strip),
        analysis_(ranges.analysis()),
        sequence_(sequence),
        block_(block),
        scratch_(scratch),
        leaves_(MaskRanges::leaves(sequence, strip.matrix.sequence, strip.matrix.head)) {}

  void blocks(const Box& box) {
    const Box inside = elements(box);
    const Class found = ask(inside);
    if (found == Class::empty) return;
    if (found == Class::full) return append(box, found);
    if (box.is_single()) return append(box, inside_block(inside));
    // Masks are about as sharp along one index as along the other: a long rectangle is cut across only.
    const bool tall = inside.q_size() >= 2 * inside.kv_size(), wide = inside.kv_size() >= 2 * inside.q_size();
    const bool cut_q = box.q_size() > 1 && (!wide || box.kv_size() == 1);
    const bool cut_kv = box.kv_size() > 1 && (!tall || box.q_size() == 1);
    for (const Box& part : split(box, cut_q, cut_kv)) blocks(part);
  }

 private:
  Box elements(const Box& box) const {
    return {box.q_begin * block_.q, std::min(box.q_end * block_.q, sequence_.q_len), box.kv_begin * block_.kv,
            std::min(box.kv_end * block_.kv, sequence_.kv_len)};
  }

  Class ask(const Box& box) {
    ++strip_.range_queries;
    leaves_[Leaf::q_idx] = {static_cast<double>(sequence_.q_start + box.q_begin),
                            static_cast<double>(sequence_.q_start + box.q_end - 1)};
    leaves_[Leaf::kv_idx] = {static_cast<double>(sequence_.kv_start + box.kv_begin),
                             static_cast<double>(sequence_.kv_start + box.kv_end - 1)};
    const Range range = analysis_(leaves_, scratch_);
    return range.always_true() ? Class::full : range.always_false() ? Class::empty : Class::open;
  }

  void append(const Box& box, Class what) {
    if (what == Class::empty) return;
    strip_.rows.append(static_cast<std::int32_t>(box.q_begin - strip_.row_begin),
                       static_cast<std::int32_t>(box.q_end - strip_.row_begin), static_cast<std::int32_t>(box.kv_begin),
                       static_cast<std::int32_t>(box.kv_end), what);
  }

  /// A block that is open as a whole: its corners, then ever smaller parts, until both an attending and a masked part
  /// are known or every part is. Most partial blocks show themselves at their corners.
  Class inside_block(const Box& block) {
    bool some_full = false, some_empty = false;
    const auto is_partial = [&](Class found) {
      some_full |= found == Class::full;
      some_empty |= found == Class::empty;
      return some_full && some_empty;
    };
    if (block.is_single()) return Class::open;
    // Across the diagonal first: that is where most masks change.
    const std::int64_t q = block.q_begin, q_last = block.q_end - 1, kv = block.kv_begin, kv_last = block.kv_end - 1;
    const std::array<std::array<std::int64_t, 2>, 4> corners{{{q, kv_last}, {q_last, kv}, {q, kv}, {q_last, kv_last}}};
    for (const auto& [i, j] : corners) {
      const Class found = ask({i, i + 1, j, j + 1});
      if (is_partial(found)) return Class::partial;
      // If a single element is not decided, no smaller part will be.
      if (found == Class::open) return Class::open;
    }

    std::int64_t queries = std::min(kMostQueries, block.q_size() * block.kv_size() / kElementsPerQuery);
    parts_.assign(1, block);
    for (std::size_t next = 0; next < parts_.size(); ++next) {
      const Box open = parts_[next];
      for (const Box& part : split(open, open.q_size() > 1, open.kv_size() > 1)) {
        if (queries-- <= 0) return Class::open;
        const Class found = ask(part);
        if (is_partial(found)) return Class::partial;
        if (found != Class::open) continue;
        if (part.is_single()) return Class::open;
        parts_.push_back(part);
      }
    }
    return some_full ? Class::full : Class::empty;
  }

  Strip& strip_;
  const expr::RangeAnalysis& analysis_;
  const Sequence& sequence_;
  BlockSize block_;
  std::vector<Range>& scratch_;
  LeafRanges leaves_;
  std::vector<Box> parts_;
};

}  // namespace

MaskRanges::MaskRanges(const Expr& mask, expr::Precision precision, const expr::CaptureBounds& captures)
    : analysis_(with_affine_tokens(mask), precision, &captures) {}

LeafRanges MaskRanges::leaves(const Sequence& sequence, std::int64_t b, std::int64_t h) {
  const auto point = [](std::int64_t x) { return Range::point(static_cast<double>(x)); };
  LeafRanges leaves;
  leaves[Leaf::score] = Range::any(ExprType::f32);
  leaves[Leaf::b] = point(b);
  leaves[Leaf::h] = point(h);
  leaves[Leaf::q_len] = point(sequence.q_len);
  leaves[Leaf::kv_len] = point(sequence.kv_len);
  leaves[Leaf::q_start] = point(sequence.q_start);
  leaves[Leaf::kv_start] = point(sequence.kv_start);
  // with_affine_tokens adds these to q_idx and kv_idx.
  leaves[Leaf::q_token] = point(sequence.q_begin - sequence.q_start);
  leaves[Leaf::kv_token] = point(sequence.kv_begin - sequence.kv_start);
  return leaves;
}

void StripRows::append(std::int32_t row_begin, std::int32_t row_end, std::int32_t begin, std::int32_t end, Class what) {
  for (std::int32_t row = row_begin; row < row_end; ++row) {
    std::int32_t& last = last_[static_cast<std::size_t>(row)];
    if (last >= 0 && what != Class::open) {
      Piece& left = pieces_[static_cast<std::size_t>(last)];
      if (left.what == what && left.end == begin) {
        left.end = end;
        continue;
      }
    }
    pieces_.push_back({begin, end, last, what});
    last = static_cast<std::int32_t>(pieces_.size() - 1);
    if (what == Class::open) open_.push_back({row, last});
  }
}

void StripRows::take(std::int32_t row, std::vector<Run>& runs) const {
  runs.clear();
  for (std::int32_t i = last_[static_cast<std::size_t>(row)]; i >= 0; i = pieces_[static_cast<std::size_t>(i)].left) {
    const Piece& piece = pieces_[static_cast<std::size_t>(i)];
    if (piece.what == Class::empty) continue;
    const RunKind kind = piece.what == Class::full ? RunKind::full : RunKind::partial;
    if (!runs.empty() && runs.back().begin == piece.end && runs.back().kind == kind) {
      runs.back().begin = piece.begin;
    } else {
      runs.push_back({piece.begin, piece.end, kind});
    }
  }
  std::ranges::reverse(runs);
}

void descend(Strip& strip, const MaskRanges& ranges, const Sequence& sequence, BlockSize block,
             std::vector<Range>& scratch) {
  Descent(strip, ranges, sequence, block, scratch).blocks({strip.row_begin, strip.row_end, 0, strip.columns});
}

void descend(Strip& strip, std::int32_t row, std::int32_t begin, std::int32_t end, const MaskRanges& ranges,
             const Sequence& sequence, BlockSize block, std::vector<Range>& scratch) {
  Descent(strip, ranges, sequence, block, scratch).blocks({row, row + 1, begin, end});
}

}  // namespace heddle::mask
