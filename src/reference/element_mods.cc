#include "reference/element_mods.h"

namespace heddle::reference {

using expr::Leaf;

ElementMods::ElementMods(const problem::AttentionProblem& problem, const backend::RunArguments& arguments,
                         expr::Precision precision)
    : problem_(problem) {
  const Bindings& bindings = *arguments.bindings;
  if (!problem.score_mod.empty()) score_.emplace(problem.score_mod, bindings, precision, problem.precision);
  if (!problem.mask_mod.empty()) mask_.emplace(problem.mask_mod, bindings, problem.precision, problem.precision);
  if (!problem.weight_mod.empty()) weight_.emplace(problem.weight_mod, bindings, precision, problem.precision);
  if (arguments.block_mask != nullptr && arguments.block_mask->is_from_lists()) lists_ = arguments.block_mask;
}

expr::Element ElementMods::element(const RowPosition& row, std::int64_t j) const {
  const Sequence& sequence = problem_.sequences[static_cast<std::size_t>(row.b)];
  expr::Element element;
  const auto set = [&](Leaf leaf, std::int64_t value) { element[leaf] = static_cast<std::int32_t>(value); };
  set(Leaf::b, row.b);
  set(Leaf::h, row.h);
  set(Leaf::q_idx, sequence.q_start + row.i);
  set(Leaf::kv_idx, sequence.kv_start + j);
  set(Leaf::q_token, sequence.q_begin + row.i);
  set(Leaf::kv_token, sequence.kv_begin + j);
  set(Leaf::q_len, sequence.q_len);
  set(Leaf::kv_len, sequence.kv_len);
  set(Leaf::q_start, sequence.q_start);
  set(Leaf::kv_start, sequence.kv_start);
  return element;
}

bool ElementMods::attends(const RowPosition& row, std::int64_t j) const {
  if (lists_ == nullptr) return !mask_ || mask_->boolean(element(row, j));
  const BlockSize block = lists_->block();
  for (const Run& run : lists_->row(row.b, row.h, row.i / block.q)) {
    if (j / block.kv < run.begin || j / block.kv >= run.end) continue;
    return run.kind == RunKind::full || !mask_ || mask_->boolean(element(row, j));
  }
  return false;
}

double ElementMods::score(const RowPosition& row, std::int64_t j, double s) const {
  if (!score_) return s;
  expr::Element at = element(row, j);
  at.score = s;
  return score_->real(at);
}

double ElementMods::weight(const RowPosition& row, std::int64_t j) const {
  return weight_ ? weight_->real(element(row, j)) : 1;
}

}  // namespace heddle::reference
