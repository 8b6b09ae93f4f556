// Forms of tiles whose last operations a caller does itself (TileForm): which programs have one, and what is computed
// of a tile that has.
#include <algorithm>
#include <cmath>

#include "tile_evaluator/tile_machine.h"

namespace heddle::cpu {
namespace {

constexpr auto kTile = static_cast<std::size_t>(Extent::tile);

bool is_score(const Source& source) { return source.extent == Extent::tile && source.index == kScore; }

bool is_operation(const Instruction& step, expr::Op op) {
  return step.code == Code::op && step.op == op && step.form == ExprType::f32;
}

/// Whether the step multiplies `source` by a scalar, or divides it by one.
bool scales(const Instruction& step, const Source& source) {
  const auto is_scaled = [&](std::size_t i) { return step.in[i] == source && step.in[1 - i].extent == Extent::scalar; };
  if (is_operation(step, expr::Op::mul)) return is_scaled(0) || is_scaled(1);
  return is_operation(step, expr::Op::div) && is_scaled(0);
}

/// A tanh whose argument is the score times scalars, times scalars.
bool is_cap(const std::vector<Instruction>& steps) {
  Source last = {Extent::tile, ExprType::f32, kScore};
  bool inside = true;
  for (const Instruction& step : steps) {
    const bool is_tanh = inside && is_operation(step, expr::Op::tanh) && step.in[0] == last;
    if (!is_tanh && !scales(step, last)) return false;
    inside = inside && !is_tanh;
    last = step.out;
  }
  return !inside;
}

}  // namespace

TileForm::Kind Machine::form_of(const Program& program) {
  const std::vector<Instruction>& steps = program.steps[kTile];
  if (steps.empty() || program.type != ExprType::f32) return TileForm::Kind::other;
  const auto reads_score = [](const Instruction& step) { return std::ranges::any_of(step.in, is_score); };
  const Instruction& last = steps.back();
  if (is_operation(last, expr::Op::add) && is_score(last.in[0]) != is_score(last.in[1]) &&
      std::none_of(steps.begin(), steps.end() - 1, reads_score)) {
    const Extent terms = last.in[is_score(last.in[0]) ? 1 : 0].extent;
    const bool by_column = terms == Extent::tile || terms == Extent::diagonal || terms == Extent::column;
    return by_column ? TileForm::Kind::added : TileForm::Kind::other;
  }
  return is_cap(steps) ? TileForm::Kind::capped : TileForm::Kind::other;
}

TileForm Machine::start_form(TileForm::Kind form) {
  switch (form) {
    case TileForm::Kind::added:
      return added_form();
    case TileForm::Kind::capped:
      return capped_form();
    case TileForm::Kind::other:
      break;
  }
  return {};
}

/// Runs all steps but the last, which adds the score to what they have computed.
TileForm Machine::added_form() {
  prepare_columns();
  prepare_panel(0, at_.rows);
  start_strip(0, 0, at_.rows);
  std::vector<Step>& steps = steps_[kTile];
  if (steps.size() == 2) {
    set_arguments(steps.front(), at_.rows, {}, {});
    if (const TileForm form = streamed_form(steps.front().arguments); form.streamed) return form;
  }
  if (steps.size() > 1 && at_.rows * columns_ > kRegisterBytes / real_bytes_) return {};
  run_steps(steps.size() - 1, at_.rows, {}, {});
  const Instruction& last = *steps.back().instruction;
  const Source& terms = last.in[is_score(last.in[0]) ? 1 : 0];
  const TileOperand at = terms.extent == Extent::column ? fixed_operand(terms, last) : moving_operand(terms, {}, {});
  constexpr std::ptrdiff_t kBytes = sizeof(float);
  return {
      .kind = TileForm::Kind::added, .terms = reinterpret_cast<const float*>(at.base), .terms_apart = at.row / kBytes};
}

/// The terms where a read would take them from, if they are rows of f32 that lie inside of a tensor, one after the
/// other.
TileForm Machine::streamed_form(const TileArguments& read) {
  const BoundCapture* capture = read.capture;
  const int columns = read.column_axis;
  if (capture == nullptr || columns < 0 || capture->empty || capture->dtype != DType::f32) return {};
  const auto index_at = [&](int axis, int r) {
    const TileOperand& in = read.in[static_cast<std::size_t>(axis)];
    return std::int64_t{*reinterpret_cast<const std::int32_t*>(in.base + r * in.row)};
  };
  std::int64_t offset = 0, apart = 0;
  for (int axis = 0; axis < capture->rank; ++axis) {
    const std::int64_t extent = capture->extent[static_cast<std::size_t>(axis)];
    const std::int64_t stride = capture->stride[static_cast<std::size_t>(axis)];
    const std::int64_t first = index_at(axis, 0), step = read.rows > 1 ? index_at(axis, 1) - first : 0;
    const std::int64_t last = axis == columns ? first + read.columns - 1 : first + (read.rows - 1) * step;
    if (std::min(first, last) < 0 || std::max(first, last) >= extent) return {};
    if (axis == columns && (stride != 1 || step != 0)) return {};
    for (int r = 2; axis != columns && r < read.rows; ++r) {
      if (index_at(axis, r) != first + r * step) return {};
    }
    offset += first * stride, apart += step * stride;
  }
  const float* terms = reinterpret_cast<const float*>(capture->data) + offset;
  return {.kind = TileForm::Kind::added, .terms = terms, .terms_apart = apart, .streamed = true};
}

TileForm Machine::capped_form() const {
  float inside = 1, outside = 1;
  float* factor = &inside;
  for (const Instruction& step : program_->steps[kTile]) {
    if (step.op == expr::Op::tanh) {
      factor = &outside;
      continue;
    }
    const std::size_t scalar = step.in[0].extent == Extent::scalar ? 0 : 1;
    const float number = *reinterpret_cast<const float*>(slot(step.in[scalar]));
    // The inverse of other numbers may be out of range.
    if (!(std::abs(number) > 0x1p-60F && std::abs(number) < 0x1p60F)) return {};
    *factor *= step.op == expr::Op::div ? 1 / number : number;
  }
  return {.kind = TileForm::Kind::capped, .inside = inside, .outside = outside};
}

}  // namespace heddle::cpu
