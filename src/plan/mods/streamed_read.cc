#include "plan/mods/streamed_read.h"

#include <fmt/format.h>

#include <algorithm>

#include "expr/node.h"
#include "plan/access/tma_refuses.h"

namespace heddle::plan {
namespace {

using expr::Leaf;

bool is_leaf(const expr::Node& node, Leaf leaf) { return node.op == expr::Op::leaf && node.leaf() == leaf; }

bool is_of_head(const expr::Node& index) {
  return !index.uses.intersects({Leaf::score, Leaf::q_idx, Leaf::kv_idx, Leaf::q_token, Leaf::kv_token, Leaf::q_len,
                                 Leaf::kv_len, Leaf::q_start, Leaf::kv_start});
}

std::optional<StreamedRead> as_streamed(const expr::Node& node) {
  if (node.op != expr::Op::read) return {};
  const expr::CaptureDecl& capture = node.capture();
  const bool streams = capture.dtype == DType::f32 || capture.dtype == DType::f16 || capture.dtype == DType::bf16;
  if (!streams || capture.rank < 2 || capture.rank > 4) return {};
  if (!is_leaf(*node.operands.back(), Leaf::kv_idx)) return {};
  StreamedRead read;
  read.capture = capture.name;
  read.dtype = capture.dtype;
  read.q_axis = -1;
  for (int axis = 0; axis + 1 < capture.rank; ++axis) {
    const Expr index = expr::operand(node, static_cast<std::size_t>(axis));
    if (is_leaf(*index.node(), Leaf::q_idx) && read.q_axis < 0) {
      read.q_axis = axis;
    } else if (is_of_head(*index.node())) {
      read.others.push_back({axis, index});
    } else {
      return {};
    }
  }
  if (read.q_axis < 0) return {};
  return read;
}

}  // namespace

bool StreamedRead::serves_every_batch(const ConstTensorView& view) const {
  return std::ranges::none_of(others, [&](const Axis& other) {
    const bool steps = view.shape[other.axis] > 1 && view.strides[other.axis] != 0;
    return steps && other.index.node()->uses.has(Leaf::b);
  });
}

TileReach tile_reach(const problem::AttentionProblem& problem) {
  TileReach reach = {0, 0};
  for (const Sequence& sequence : problem.sequences) {
    reach.q = std::max(reach.q, sequence.q_start + sequence.q_len);
    reach.kv = std::max(reach.kv, sequence.kv_len);
  }
  if (problem.device_lengths || problem.device_starts) reach.q = TileReach().q;
  return reach;
}

ConstTensorView in_tiles(const StreamedRead& read, const ConstTensorView& view, const TileReach& reach) {
  const int last = view.rank() - 1;
  ConstTensorView tensor = view;
  tensor.shape = {1, 1, 0, view.shape[last]};
  tensor.strides = {0, 0, 0, view.shape[last] == 1 ? 1 : view.strides[last]};
  const auto take = [&](int to, int from) {
    tensor.shape[to] = view.shape[from];
    tensor.strides[to] = view.strides[from];
  };
  take(2, read.q_axis);
  for (std::size_t i = 0; i < read.others.size(); ++i) take(1 - static_cast<int>(i), read.others[i].axis);
  const auto cut = [&](int axis, std::int64_t end) {
    tensor.shape[axis] = std::min(tensor.shape[axis], std::max<std::int64_t>(end, 1));
  };
  cut(2, reach.q);
  cut(3, reach.kv);
  return tensor;
}

std::optional<StreamedRead> streamed_read(const Expr& mod) {
  std::optional<StreamedRead> found;
  expr::rewrite(mod, [&](const expr::Node& node, std::span<const Expr> operands) {
    Expr same = expr::with_operands(node, operands);
    if (!found && (found = as_streamed(node))) found->read = same;
    return same;
  });
  return found;
}

std::string refuses_copy(const StreamedRead& read, const ConstTensorView& view) {
  const int last = view.rank() - 1;
  if (view.shape[last] == 1 || view.strides[last] == 1) return {};
  return fmt::format("capture '{}' has strides {}; a last one of 1 is accepted", read.capture, to_string(view.strides));
}

std::string refuses_streaming(const StreamedRead& read, const ConstTensorView& view) {
  if (std::string reason = refuses_copy(read, view); !reason.empty()) return reason;
  const std::string reason = tma_refuses(view);
  return reason.empty() ? reason : fmt::format("capture '{}': {}", read.capture, reason);
}

}  // namespace heddle::plan
