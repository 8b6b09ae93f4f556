#include "mask/repeated_part.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "mask/equal_rows.h"
#include "mask/shape.h"

namespace heddle::mask {
namespace {

/// Different rows of a part that repeats, at most. Each costs about as much as a row of the mask that is not split.
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

Class all_of(Class x, Class y) {
  if (x == Class::empty || y == Class::empty) return Class::empty;
  if (x == Class::full) return y;
  return y == Class::full ? x : Class::open;
}

Class any_of(Class x, Class y) {
  if (x == Class::full || y == Class::full) return Class::full;
  if (x == Class::empty) return y;
  return y == Class::empty ? x : Class::open;
}

}  // namespace

/// A part of this mask, if its rows repeat.
std::optional<RepeatedPart::Part> RepeatedPart::repeating(const Classification& what, const Matrix& matrix,
                                                          const Expr& mask) {
  const Classification own = with_mask(what, mask);
  EqualRows rows(own);
  if (!rows.may_repeat()) return std::nullopt;
  Part part(Kind::repeats, mask);
  part.first_equal = rows.first_equal(matrix);
  std::int64_t different = 0;
  for (std::size_t row = 0; row < part.first_equal.size(); ++row) {
    different += part.first_equal[row] == static_cast<std::int32_t>(row) ? 1 : 0;
  }
  if (different == 0 || different > kMostRows) return std::nullopt;
  return part;
}

/// The mask, or its negation, as a tree whose leaves are as large as they may be.
RepeatedPart::Part RepeatedPart::parts_of(const Classification& what, const Matrix& matrix, const Expr& mask,
                                          bool negated) {
  const expr::Node& node = *mask.node();
  if (node.op == expr::Op::logical_not) return parts_of(what, matrix, expr::operand(node, 0), !negated);
  const Expr own = negated ? !mask : mask;
  if (std::optional<Part> part = repeating(what, matrix, own)) return std::move(*part);
  if (node.op != expr::Op::logical_and && node.op != expr::Op::logical_or) return {Kind::differs, own};
  Part part((node.op == expr::Op::logical_and) != negated ? Kind::all_of : Kind::any_of, own);
  for (const std::size_t i : {0, 1}) {
    Part operand = parts_of(what, matrix, expr::operand(node, i), negated);
    if (operand.kind == part.kind) {
      std::ranges::move(operand.operands, std::back_inserter(part.operands));
    } else {
      part.operands.push_back(std::move(operand));
    }
  }
  join_leaves(what, matrix, part);
  return part;
}

/// Makes one part of those operands that differ, and one of those that repeat, as far as it repeats, too.
void RepeatedPart::join_leaves(const Classification& what, const Matrix& matrix, Part& part) {
  std::vector<Part> joined;
  for (Part& operand : part.operands) {
    const auto alike = std::ranges::find(joined, operand.kind, &Part::kind);
    const bool is_leaf = operand.kind == Kind::repeats || operand.kind == Kind::differs;
    if (is_leaf && alike != joined.end()) {
      const Expr both = part.kind == Kind::all_of ? alike->mask & operand.mask : alike->mask | operand.mask;
      if (operand.kind == Kind::differs) {
        alike->mask = both;
        continue;
      }
      if (std::optional<Part> one = repeating(what, matrix, both)) {
        *alike = std::move(*one);
        continue;
      }
    }
    joined.push_back(std::move(operand));
  }
  if (joined.size() == 1) {
    Part only = std::move(joined.front());
    part = std::move(only);
  } else {
    part.operands = std::move(joined);
  }
}

/// False if a row cannot be made from the parts.
bool RepeatedPart::prepare(Part& part, const Classification& what, const Matrix& matrix) {
  for (Part& operand : part.operands) {
    if (!prepare(operand, what, matrix)) return false;
  }
  if (part.kind == Kind::differs) {
    part.ranges = std::make_shared<const MaskRanges>(part.mask, what.precision, what.captures);
    part.index = differing_++;
  }
  if (part.kind != Kind::repeats) return true;
  const Sequence& sequence = what.shape.sequences[static_cast<std::size_t>(matrix.sequence)];
  const auto columns = static_cast<std::int32_t>(block_count(sequence.kv_len, what.block.kv));
  const MaskRanges ranges(part.mask, what.precision, what.captures);
  std::vector<expr::Range> scratch;
  part.rows.resize(part.first_equal.size());
  for (std::size_t i = 0; i < part.first_equal.size(); ++i) {
    const auto row = static_cast<std::int32_t>(i);
    if (part.first_equal[i] != row) continue;
    Strip strip = {matrix, row, row + 1, columns, StripRows(1)};
    descend(strip, ranges, sequence, what.block, scratch);
    if (!strip.rows.open().empty()) return false;
    strip.rows.take(0, part.rows[i]);
  }
  return true;
}

std::shared_ptr<const RepeatedPart> RepeatedPart::find(const Classification& what, const Matrix& matrix) {
  std::shared_ptr<RepeatedPart> found(new RepeatedPart(what, matrix));
  // Parts that all differ were joined to one.
  if (found->root_.operands.empty() || !found->prepare(found->root_, what, matrix)) return nullptr;
  return found;
}

/// A strip's rows as pieces: those of each part that differs, and what all parts make of them.
struct RepeatedPart::PiecesOf {
  std::vector<Strip> differing;  // by Part::index
  std::int32_t columns;
  std::vector<Run> runs;

  /// Classifies the parts that differ. False if some block needs its elements.
  bool classify(const Part& part, Strip& strip, const Sequence& sequence, BlockSize block,
                std::vector<expr::Range>& scratch) {
    for (const Part& operand : part.operands) {
      if (!classify(operand, strip, sequence, block, scratch)) return false;
    }
    if (part.kind != Kind::differs) return true;
    differing.push_back(
        {strip.matrix, strip.row_begin, strip.row_end, columns, StripRows(strip.row_end - strip.row_begin)});
    descend(differing.back(), *part.ranges, sequence, block, scratch);
    strip.range_queries += differing.back().range_queries;
    return differing.back().rows.open().empty();
  }

  /// The pieces of a row of the matrix, without empty ones.
  std::vector<Piece> row(const Part& part, std::int32_t row_begin, std::int32_t row) {
    std::vector<Piece> pieces;
    if (part.kind == Kind::repeats || part.kind == Kind::differs) {
      if (part.kind == Kind::differs) differing[part.index].rows.take(row - row_begin, runs);
      const std::span<const Run> all =
          part.kind == Kind::differs
              ? std::span<const Run>(runs)
              : part.rows[static_cast<std::size_t>(part.first_equal[static_cast<std::size_t>(row)])];
      pieces.reserve(all.size());
      for (const Run& run : all) {
        pieces.push_back({run.begin, run.end, run.kind == RunKind::full ? Class::full : Class::partial});
      }
      return pieces;
    }
    pieces = this->row(part.operands.front(), row_begin, row);
    for (const Part& operand : std::span(part.operands).subspan(1)) {
      const std::vector<Piece> others = this->row(operand, row_begin, row);
      pieces = part.kind == Kind::all_of ? joined(pieces, others, all_of) : joined(pieces, others, any_of);
    }
    return pieces;
  }

 private:
  /// Walks both side by side; between two ends of pieces nothing changes.
  template <class Join>
  static std::vector<Piece> joined(std::span<const Piece> x, std::span<const Piece> y, Join&& join) {
    static constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();
    std::vector<Piece> pieces;
    pieces.reserve(std::max(x.size(), y.size()) + 1);
    const auto class_at = [](std::span<const Piece> rest, std::int32_t at) {
      return rest.empty() || at < rest.front().begin ? Class::empty : rest.front().what;
    };
    const auto next_change = [](std::span<const Piece> rest, std::int32_t at) {
      if (rest.empty()) return kNever;
      return at < rest.front().begin ? rest.front().begin : rest.front().end;
    };
    for (std::int32_t at = 0; !x.empty() || !y.empty();) {
      const std::int32_t end = std::min(next_change(x, at), next_change(y, at));
      const Class what = join(class_at(x, at), class_at(y, at));
      if (what != Class::empty) pieces.push_back({at, end, what});
      at = end;
      if (!x.empty() && x.front().end <= at) x = x.subspan(1);
      if (!y.empty() && y.front().end <= at) y = y.subspan(1);
    }
    return pieces;
  }
};

void RepeatedPart::fill(Strip& strip, const MaskRanges& whole, const Sequence& sequence, BlockSize block,
                        std::vector<expr::Range>& scratch) const {
  PiecesOf pieces = {.differing = {}, .columns = strip.columns, .runs = {}};
  pieces.differing.reserve(differing_);
  if (!pieces.classify(root_, strip, sequence, block, scratch)) return descend(strip, whole, sequence, block, scratch);
  for (std::int32_t row = strip.row_begin; row < strip.row_end; ++row) {
    for (const Piece& piece : pieces.row(root_, strip.row_begin, row)) {
      if (piece.what == Class::open) {
        descend(strip, row, piece.begin, piece.end, whole, sequence, block, scratch);
      } else {
        strip.rows.append(row - strip.row_begin, row - strip.row_begin + 1, piece.begin, piece.end, piece.what);
      }
    }
  }
}

}  // namespace heddle::mask
