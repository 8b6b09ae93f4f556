#include "plan/capture_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "expr/node.h"
#include "expr/ranges.h"
#include "expr/simplify.h"

namespace heddle::plan {
namespace {

using expr::Leaf;
using problem::AttentionProblem;

constexpr expr::LeafSet kOfKeys = {Leaf::kv_idx, Leaf::kv_token, Leaf::score};
constexpr expr::LeafSet kOfQueries = {Leaf::q_idx, Leaf::q_token, Leaf::score};

bool is_leaf(const Expr& e, Leaf leaf) { return e.node()->op == expr::Op::leaf && e.node()->leaf() == leaf; }

ReadDependence dependence_of(const std::vector<Expr>& indices) {
  bool keys = false, queries = false;
  for (const Expr& index : indices) {
    keys = keys || index.node()->uses.intersects(kOfKeys);
    queries = queries || index.node()->uses.intersects(kOfQueries);
  }
  if (!keys) return queries ? ReadDependence::queries : ReadDependence::one;
  if (!queries) return ReadDependence::keys;
  const auto depends_on_key = [](const Expr& index) { return index.node()->uses.intersects(kOfKeys); };
  const bool others = std::any_of(indices.begin(), indices.end() - 1, depends_on_key);
  return !others && is_leaf(indices.back(), Leaf::kv_idx) ? ReadDependence::key_rows : ReadDependence::any;
}

/// True when some axis of all reads is that leaf: what differs in it differs in its place.
bool has_axis(const CaptureSum& sum, std::initializer_list<Leaf> leaves) {
  for (int axis = 0; axis < sum.shape.size(); ++axis) {
    for (const Leaf leaf : leaves) {
      const auto is_axis = [&](const ReadGradient& read) {
        return is_leaf(read.indices[static_cast<std::size_t>(axis)], leaf);
      };
      if (std::ranges::all_of(sum.reads, is_axis)) return true;
    }
  }
  return false;
}

/// Keys of several sequences have the same kv_idx; kv_token tells them apart. Reads that leave their tensor are moved
/// inside, where others are. Two granules of keys may have one position.
void find_owners(const AttentionProblem& problem, const Places& places, CaptureSum& sum) {
  const bool of_token = problem.packed && has_axis(sum, {Leaf::kv_token});
  sum.of_sequence = problem.batch <= 1 || (!problem.reads_leave && (of_token || has_axis(sum, {Leaf::b})));
  sum.of_head = problem.kv_heads <= 1 || (!problem.reads_leave && has_axis(sum, {Leaf::h}));
  const auto starts_alike = [&](const Sequence& sequence) {
    return sequence.kv_start == problem.sequences.front().kv_start;
  };
  const bool by_index = places.key.empty() && has_axis(sum, {Leaf::kv_idx}) &&
                        (sum.of_sequence || std::ranges::all_of(problem.sequences, starts_alike));
  sum.of_key = !problem.reads_leave && (of_token || by_index);
}

/// Whether indices outside read nothing. Indices that stay inside whatever branch is taken need no look.
bool skips_outside(const expr::CaptureGradient& read, const AttentionProblem& problem, const Bindings& bindings,
                   const expr::LeafRanges& ranges) {
  if (problem.reads_leave && !read.with_fill) return false;
  if (read.indices.empty()) return false;
  const Expr bare = Capture(read.capture.name, read.capture.dtype, read.capture.rank).read(read.indices);
  return !expr::reads_stay_inside(bare, ranges, bindings, problem.precision);
}

void add_reads(const Expr& mod, bool of_weight, const AttentionProblem& problem, const Bindings& bindings,
               const expr::LeafRanges& ranges, std::vector<CaptureSum>& sums) {
  if (mod.empty()) return;
  const auto find = [&](const std::string& name, bool param) {
    return std::ranges::find_if(sums, [&](const CaptureSum& s) { return s.name == name && s.param == param; });
  };
  for (const expr::CaptureGradient& read : expr::d_captures(mod, problem.precision)) {
    const auto found = find(read.capture.name, false);
    if (found == sums.end()) continue;
    found->reads.push_back({of_weight, read.indices, read.gradient, dependence_of(read.indices),
                            skips_outside(read, problem, bindings, ranges)});
  }
  for (const expr::ParamGradient& read : expr::d_params(mod, problem.precision)) {
    const auto found = find(read.name, true);
    if (found != sums.end()) found->reads.push_back({of_weight, {}, read.gradient, ReadDependence::one});
  }
}

}  // namespace

std::vector<CaptureSum> capture_sums(const AttentionProblem& problem, const Bindings& bindings, const Places& places) {
  std::vector<CaptureSum> sums;
  for (const std::string& name : problem.wanted.captures) {
    const ConstTensorView& view = bindings.captures.find(name)->second;
    sums.push_back({.name = name, .param = false, .shape = view.shape, .count = view.count(), .reads = {}});
  }
  for (const std::string& name : problem.wanted.params) {
    sums.push_back({.name = name, .param = true, .shape = {}, .count = 1, .reads = {}});
  }
  const AttentionProblem placed = at_places(problem, places);
  const expr::LeafRanges ranges = at_places(problem::form_ranges(problem), places);
  add_reads(placed.score_mod, false, problem, bindings, ranges, sums);
  add_reads(placed.weight_mod, true, problem, bindings, ranges, sums);
  for (CaptureSum& sum : sums) find_owners(problem, places, sum);
  return sums;
}

SummedRead summed_read(int sum, const ReadGradient& read, const AttentionProblem& problem, const KvStart& start) {
  const auto positioned = [&](const Expr& e) { return expr::simplify(by_position(e, start), problem.precision); };
  SummedRead own = {.sum = sum,
                    .of_weight = read.of_weight,
                    .indices = {},
                    .slope = positioned(read.slope),
                    .skips_outside = read.skips_outside};
  for (const Expr& index : read.indices) own.indices.push_back(positioned(index));
  return own;
}

std::string named(const CaptureSum& sum) {
  return fmt::format("{}['{}']", sum.param ? "d_params" : "d_captures", sum.name);
}

const TensorView& gradient_of(const CaptureSum& sum, const BackwardTensors& tensors) {
  return (sum.param ? tensors.d_params : tensors.d_captures).find(sum.name)->second;
}

}  // namespace heddle::plan
