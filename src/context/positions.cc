#include "context/positions.h"

#include <algorithm>

#include "expr/node.h"

namespace heddle::context {
namespace {

// Kernels are compiled for the longest sequence that there may be, one of these.
constexpr std::int64_t kLongest[] = {std::int64_t{1} << 23, std::int64_t{1} << 28};

bool are_consecutive(std::span<const std::int64_t> positions) {
  return std::ranges::adjacent_find(positions, [](std::int64_t one, std::int64_t next) { return next != one + 1; }) ==
         positions.end();
}

/// Whole granules, in any order, of which the last may be cut.
bool are_granules(std::span<const std::int64_t> positions) {
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const auto inside = static_cast<std::int64_t>(i) % kGranule;
    if (positions[i] % kGranule != inside || positions[i] - inside != positions[i - static_cast<std::size_t>(inside)]) {
      return false;
    }
  }
  return true;
}

/// Which positions a mod reads.
expr::LeafSet leaves_of(const AttentionOptions& options) {
  expr::LeafSet leaves;
  for (const Expr* mod : {&options.score_mod, &options.mask_mod, &options.weight_mod}) {
    if (!mod->empty()) leaves = leaves | mod->node()->uses;
  }
  return leaves;
}

}  // namespace

Positions::Positions(const char* capture, std::span<const std::int64_t> positions, std::int64_t length,
                     const Device& device)
    : capture_(capture), length_(length) {
  if (are_consecutive(positions)) {
    start_ = positions.empty() ? 0 : positions.front();
    return;
  }
  granules_ = length <= kLongest[1] && are_granules(positions);
  const std::int64_t step = granules_ ? kGranule : 1;
  Tensor table = Tensor::empty(DType::i32, {(std::ssize(positions) + step - 1) / step});
  auto* next = static_cast<std::int32_t*>(table.data());
  for (std::size_t i = 0; i < positions.size(); i += static_cast<std::size_t>(step)) {
    *next++ = static_cast<std::int32_t>(positions[i] / step);
  }
  table_ = device.kind == DeviceKind::cpu ? table : table.to(device);
}

Expr Positions::of(const Expr& index) const {
  if (start_) return index;
  const Capture table(capture_, DType::i32, 1);
  if (!granules_) return clip(table(index), 0, length_ - 1);  // says how far positions go
  const std::int64_t last = (length_ <= kLongest[0] ? kLongest[0] : kLongest[1]) / kGranule - 1;
  // As mods::by_granules writes it, which planning knows.
  return clip(table(floor_div(index, kGranule)), 0, last) * Expr(kGranule) + index % Expr(kGranule);
}

void Positions::bind(Bindings& bindings) const {
  if (!start_) bindings.captures[capture_] = table_;
}

void over_rows(AttentionOptions& options, const Positions& queries, const Positions& keys) {
  const expr::LeafSet read = leaves_of(options);
  const Expr q_idx = queries.of(leaf::q_idx()), kv_idx = keys.of(leaf::kv_idx());
  for (Expr* mod : {&options.score_mod, &options.mask_mod, &options.weight_mod}) {
    if (mod->empty()) continue;
    *mod = expr::rewrite(*mod, [&](const expr::Node& node, std::span<const Expr> operands) {
      if (node.op == expr::Op::leaf && node.leaf() == expr::Leaf::q_idx) return q_idx;
      if (node.op == expr::Op::leaf && node.leaf() == expr::Leaf::kv_idx) return kv_idx;
      return expr::with_operands(node, operands);
    });
  }
  if (read.has(expr::Leaf::q_idx)) queries.bind(options.bindings);
  if (read.has(expr::Leaf::kv_idx)) keys.bind(options.bindings);
}

}  // namespace heddle::context
