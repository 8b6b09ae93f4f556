#include "mask/build.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "base/hash.h"
#include "base/parallel.h"
#include "base/view_checks.h"
#include "expr/names.h"
#include "expr/ranges.h"
#include "expr/simplify.h"
#include "expr/verify.h"
#include "heddle/error.h"
#include "mask/access.h"
#include "mask/classify.h"
#include "mask/row_store.h"
#include "mask/shape.h"
#include "mask/zone_map.h"

namespace heddle {
namespace mask {
namespace {

using expr::Leaf;
using expr::LeafSet;
using State = BlockMaskAccess::State;

expr::Precision precision_of(DType reals) {
  if (reals == DType::f32) return expr::Precision::f32;
  if (reals == DType::f64) return expr::Precision::f64;
  throw Error(ErrorCode::invalid_argument, fmt::format("reals is {}; a mask computes in f32 or f64", name(reals)));
}

void check_on_cpu(const Expr& mask, const Bindings& bindings) {
  for (const auto& [name, declared] : symbols_of(mask).captures) {
    if (bindings.captures.at(name).device.kind != DeviceKind::cpu) {
      throw Error(
          ErrorCode::unsupported,
          fmt::format("the mask reads capture '{}', which is not on the CPU; block masks are built there", name));
    }
  }
}

/// The leaves' ranges over all score matrices; false when there is no element.
bool whole_shape(const MaskShape& shape, expr::LeafRanges& leaves) {
  bool some = false;
  for (std::size_t b = 0; b < shape.sequences.size(); ++b) {
    const Sequence& sequence = shape.sequences[b];
    if (sequence.q_len == 0 || sequence.kv_len == 0 || shape.heads == 0) continue;
    const auto include = [&](Leaf leaf, std::int64_t first, std::int64_t count) {
      const auto lo = static_cast<double>(first), hi = static_cast<double>(first + count - 1);
      expr::Range& range = leaves[leaf];
      range = some ? expr::Range{std::min(range.lo, lo), std::max(range.hi, hi)} : expr::Range{lo, hi};
    };
    include(Leaf::b, static_cast<std::int64_t>(b), 1);
    include(Leaf::h, 0, shape.heads);
    include(Leaf::q_idx, sequence.q_start, sequence.q_len);
    include(Leaf::kv_idx, sequence.kv_start, sequence.kv_len);
    include(Leaf::q_token, sequence.q_begin, sequence.q_len);
    include(Leaf::kv_token, sequence.kv_begin, sequence.kv_len);
    include(Leaf::q_len, sequence.q_len, 1);
    include(Leaf::kv_len, sequence.kv_len, 1);
    include(Leaf::q_start, sequence.q_start, 1);
    include(Leaf::kv_start, sequence.kv_start, 1);
    some = true;
  }
  leaves[Leaf::score] = expr::Range::any(ExprType::f32);
  return some;
}

/// Everything by which a mask can tell sequences apart: sequences with equal keys have equal rows.
std::tuple<std::int64_t, Sequence> sharing_key(const MaskShape& shape, std::size_t b, LeafSet uses) {
  Sequence key = shape.sequences[b];
  if (!uses.has(Leaf::q_token)) key.q_begin = 0;
  if (!uses.has(Leaf::kv_token)) key.kv_begin = 0;
  if (!uses.intersects({Leaf::q_idx, Leaf::q_start})) key.q_start = 0;
  if (!uses.intersects({Leaf::kv_idx, Leaf::kv_start})) key.kv_start = 0;
  return {uses.has(Leaf::b) ? static_cast<std::int64_t>(b) : 0, key};
}

struct BySequence {
  using Key = std::tuple<std::int64_t, Sequence>;
  static auto fields(const Key& key) {
    const Sequence& s = std::get<Sequence>(key);
    return std::tuple(std::get<0>(key), s.q_begin, s.q_len, s.kv_begin, s.kv_len, s.q_start, s.kv_start);
  }
  bool operator()(const Key& x, const Key& y) const { return fields(x) < fields(y); }
};

/// Gives every sequence its first row and lists the score matrices that stand behind the rows, in their order.
std::vector<Matrix> lay_out(State& state, LeafSet uses) {
  state.shared_by_batch = !uses.has(Leaf::b);
  state.shared_by_heads = !uses.has(Leaf::h);
  const std::int64_t heads = state.shared_by_heads ? 1 : state.shape.heads;
  std::vector<Matrix> matrices;
  std::map<BySequence::Key, std::int64_t, BySequence> first_rows;
  std::int64_t rows = 0;
  for (std::size_t b = 0; b < state.shape.sequences.size(); ++b) {
    const auto [known, added] = first_rows.emplace(sharing_key(state.shape, b, uses), rows);
    state.sequence_row.push_back(known->second);
    if (!added) continue;
    const std::int64_t rows_of_head = block_count(state.shape.sequences[b].q_len, state.block.q);
    check_row_count(rows, heads, rows_of_head);
    for (std::int64_t h = 0; h < heads; ++h) matrices.push_back({static_cast<std::int64_t>(b), h});
    rows += heads * rows_of_head;
  }
  return matrices;
}

void remember_origin(State& state, const Expr& mask, const Bindings& bindings) {
  const Symbols symbols = symbols_of(mask);
  for (const auto& [name, type] : symbols.params) state.params[name] = bindings.params.at(name);
  for (const auto& [name, declared] : symbols.captures) {
    const ConstTensorView& view = bindings.captures.at(name);
    const bool readable = view.device.kind == DeviceKind::cpu;
    state.capture_contents[name] = readable ? std::make_shared<const base::Content>(base::content_of(view)) : nullptr;
  }
}

/// The mask in its role, its names bound to what they declare.
Expr checked(const Expr& given, const Bindings& bindings) {
  Expr mask = given.empty() ? Expr(true) : expr::as_role(given, expr::Role::mask);
  expr::require_names(bindings);
  expr::check_bound(mask, bindings);
  for (const auto& [name, declared] : symbols_of(mask).captures) {
    const std::string argument = fmt::format("capture '{}'", name);
    base::check_view(argument, bindings.captures.at(name));
    base::check_memory(argument, bindings.captures.at(name));
  }
  return mask;
}

/// A mask of rows from the state's shape, block sizes, mask and type of reals.
void fill(State& state, const Bindings& bindings, int threads, const MakeEvaluator& make_evaluator) {
  const expr::Precision precision = precision_of(state.reals);
  base::check_threads(threads);
  const Expr mask = checked(state.mask, bindings);
  check_on_cpu(mask, bindings);
  const Expr bound = expr::simplify(expr::bind_params(mask, bindings), precision);

  const ZoneMap zones(bound, bindings, precision);
  expr::LeafRanges leaves;
  const bool some = whole_shape(state.shape, leaves);
  if (some && !state.clamp_reads) expr::check_reads_inside(bound, leaves, zones, precision);
  remember_origin(state, mask, bindings);

  const std::vector<Matrix> matrices = lay_out(state, bound.node()->uses);
  const EvaluateRectangle evaluate = make_evaluator(bound, state.shape, bindings, precision);
  Classified found = classify({.mask = bound,
                               .shape = state.shape,
                               .block = state.block,
                               .leaves = leaves,
                               .bindings = bindings,
                               .captures = zones,
                               .precision = precision,
                               .evaluate = evaluate,
                               .threads = threads},
                              matrices);
  found.rows.move_to(state);
  state.evaluated_tiles = found.evaluated_tiles;
  state.range_queries = found.range_queries;
  state.classified_rows = found.classified_rows;
}

std::string to_string(const ParamValue& value) {
  if (const bool* boolean = std::get_if<bool>(&value)) return *boolean ? "True" : "False";
  return std::visit([](auto x) { return fmt::format("{}", x); }, value);
}

/// NaN is itself: what was built from it is not out of date.
bool equal(const ParamValue& x, const ParamValue& y) {
  const double* real_x = std::get_if<double>(&x);
  const double* real_y = std::get_if<double>(&y);
  return x == y || (real_x && real_y && std::isnan(*real_x) && std::isnan(*real_y));
}

}  // namespace

namespace {

BlockMask without_rows(const Expr& mask, const MaskShape& shape, BlockSize block, DType reals) {
  validate_shape(shape);
  validate_block(block);
  BlockMask result;
  State& state = BlockMaskAccess::state(result);
  state.shape = shape;
  state.block = block;
  state.mask = mask;
  state.reals = reals;
  return result;
}

}  // namespace

BlockMask build(const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings, int threads,
                DType reals, const MakeEvaluator& make_evaluator, bool clamp_reads) {
  BlockMask result = without_rows(mask, shape, block, reals);
  BlockMaskAccess::state(result).clamp_reads = clamp_reads;
  fill(BlockMaskAccess::state(result), bindings, threads, make_evaluator);
  return result;
}

BlockMask build_elsewhere(const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& bindings,
                          const FindRows& find, bool clamp_reads) {
  BlockMask result = without_rows(mask, shape, block, DType::f32);
  State& state = BlockMaskAccess::state(result);
  state.clamp_reads = clamp_reads;
  const Expr role = checked(mask, bindings);
  remember_origin(state, role, bindings);
  // Params may decide what the mask can tell apart.
  const Expr bound = expr::simplify(expr::bind_params(role, bindings), expr::Precision::f32);
  const std::vector<Matrix> matrices = lay_out(state, bound.node()->uses);
  const Rows found = find(expr::simplify(role, expr::Precision::f32), state.shape, block, matrices, bindings);
  RowStore rows;
  for (std::size_t r = 0; r + 1 < found.offset.size(); ++r) {
    const auto begin = static_cast<std::size_t>(found.offset[r]), end = static_cast<std::size_t>(found.offset[r + 1]);
    rows.add(std::span(found.runs).subspan(begin, end - begin));
  }
  rows.move_to(state);
  return result;
}

bool reads_inside_for_all_values(const Expr& mask, const MaskShape& shape, const Bindings& bindings) {
  const Expr bound = expr::simplify(expr::bind_params(checked(mask, bindings), bindings), expr::Precision::f32);
  expr::LeafRanges leaves;
  if (!whole_shape(shape, leaves)) return true;
  return expr::reads_stay_inside(bound, leaves, bindings, expr::Precision::f32);
}

void update(BlockMask& mask, const Bindings& bindings, int threads, const MakeEvaluator& make_evaluator) {
  if (mask.is_from_lists()) return;
  if (mask.is_transposed()) {
    BlockMask upright = mask.transposed();
    update(upright, bindings, threads, make_evaluator);
    mask = upright.transposed();
    return;
  }
  mask = build(mask.mask(), mask.shape(), mask.block(), bindings, threads, mask.reals(), make_evaluator,
               mask.clamps_reads());
}

}  // namespace mask

std::uint64_t BlockMask::next_revision() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

bool BlockMask::is_current(const Bindings& bindings) const {
  const auto same_param = [&](const auto& built_from) {
    const auto given = bindings.params.find(built_from.first);
    return given != bindings.params.end() && mask::equal(given->second, built_from.second);
  };
  const auto same_capture = [&](const auto& built_from) {
    const auto given = bindings.captures.find(built_from.first);
    if (given == bindings.captures.end()) return false;
    const ConstTensorView& view = given->second;
    if (view.device.kind != DeviceKind::cpu || !built_from.second) return true;
    // Memory that validation would refuse is not read.
    const bool readable =
        view.data != nullptr && reinterpret_cast<std::uintptr_t>(view.data) % size_of(view.dtype) == 0;
    return (readable || view.count() == 0) && base::holds(view, *built_from.second);
  };
  return std::ranges::all_of(state_.params, same_param) && std::ranges::all_of(state_.capture_contents, same_capture);
}

void BlockMask::check_current(const Bindings& bindings) const {
  for (const auto& [name, built_from] : state_.params) {
    const auto given = bindings.params.find(name);
    if (given == bindings.params.end()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the block mask was built from param '{}', to which the bindings give no value", name));
    }
    if (!mask::equal(given->second, built_from)) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("param '{}' is {}, but the block mask was built with {}; update it first", name,
                              mask::to_string(given->second), mask::to_string(built_from)));
    }
  }
  for (const auto& [name, built_from] : state_.capture_contents) {
    const auto given = bindings.captures.find(name);
    if (given == bindings.captures.end()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the block mask was built from capture '{}', which the bindings lack", name));
    }
    if (given->second.device.kind == DeviceKind::cpu && built_from && !base::holds(given->second, *built_from)) {
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("capture '{}' differs from the one that the block mask was built from; update it first", name));
    }
  }
}

}  // namespace heddle
