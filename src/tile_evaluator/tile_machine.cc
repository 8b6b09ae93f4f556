#include "tile_evaluator/tile_machine.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace heddle::cpu {
namespace {

using expr::Leaf;

constexpr std::size_t kAlignment = 64;
/// Registers start 128 bytes past a multiple of 4 KiB from each other, so that equal places of two of them do not
/// compete for one set of the cache.
constexpr std::ptrdiff_t kRegisterGap = 128;

int round_up(int x, int step) { return (x + step - 1) / step * step; }

std::size_t index(Extent extent) { return static_cast<std::size_t>(extent); }
bool is_row_leaf(Leaf leaf) { return leaf == Leaf::q_idx || leaf == Leaf::q_token; }

}  // namespace

void Machine::FreeAligned::operator()(std::byte* memory) const {
  ::operator delete (memory, std::align_val_t{kAlignment});
}

Machine::Layout Machine::layout_of(const Program& program, int real_bytes) {
  constexpr int kDiagonals = kPanelRows + kMaxColumns + 2 * kColumnStep;
  const std::array<int, kExtentCount> elements = {kSpreadElements, kPanelRows + kColumnStep, kMaxColumns + kColumnStep,
                                                  kDiagonals, 0};
  Layout layout;
  for (std::size_t extent = 0; extent < kExtentCount; ++extent) {
    layout.slot_bytes[extent] = extent == index(Extent::tile) ? kRegisterBytes + kRegisterGap
                                                              : round_up(elements[extent] * real_bytes, kSpreadBytes);
    layout.begin[extent] = layout.total;
    layout.total += layout.slot_bytes[extent] * program.slots[extent];
  }
  const int most_rows = std::max(kRowsInPlace, kRegisterBytes / real_bytes / kColumnStep);
  layout.spread_bytes = std::ptrdiff_t{most_rows} * kSpreadBytes;
  layout.spread = layout.total;
  layout.total += layout.spread_bytes * static_cast<std::ptrdiff_t>(program.spread.size());
  return layout;
}

std::size_t Machine::register_bytes(const Program& program, expr::Precision precision) {
  return static_cast<std::size_t>(layout_of(program, precision == expr::Precision::f32 ? 4 : 8).total);
}

Machine::Machine(const Program& program, expr::Precision precision)
    : program_(&program),
      kernels_(precision == expr::Precision::f32 ? &tile_kernels_f32() : &tile_kernels_f64()),
      real_bytes_(precision == expr::Precision::f32 ? 4 : 8) {
  const Layout layout = layout_of(program, real_bytes_);
  slot_bytes_ = layout.slot_bytes;
  spread_bytes_ = layout.spread_bytes;
  const auto bytes = static_cast<std::size_t>(layout.total);
  memory_.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kAlignment})));
  // Lanes past the end of a row or column are computed and never used: they had better hold numbers.
  std::memset(memory_.get(), 0, bytes);
  for (std::size_t extent = 0; extent < kExtentCount; ++extent) slots_[extent] = memory_.get() + layout.begin[extent];
  spread_ = memory_.get() + layout.spread;

  captures_.resize(program.captures.size());
  for (std::size_t extent = 0; extent < kExtentCount; ++extent) steps_[extent] = steps_of(program.steps[extent]);
  once_ = steps_of(program.once);
}

void Machine::bind(const Bindings& bindings) {
  for (const FixedValue& value : program_->fixed) bind_fixed(value, bindings);
  for (std::size_t i = 0; i < captures_.size(); ++i) {
    captures_[i] = bound(bindings.captures.at(program_->captures[i].name));
  }
  run_flat(once_, kSpreadElements);
}

void Machine::bind_fixed(const FixedValue& value, const Bindings& bindings) {
  ParamValue number = 0;
  if (const auto* param = std::get_if<expr::ParamDecl>(&value.payload)) {
    number = bindings.params.at(param->name);
  } else if (const auto* real = std::get_if<double>(&value.payload)) {
    number = *real;
  } else if (const auto* integer = std::get_if<std::int32_t>(&value.payload)) {
    number = *integer;
  } else {
    number = std::get<bool>(value.payload);
  }
  std::byte* out = slot(value.out);
  for (int i = 0; i < kSpreadElements; ++i) {
    if (const auto* real = std::get_if<double>(&number); real != nullptr && real_bytes_ == 8) {
      reinterpret_cast<double*>(out)[i] = *real;
    } else if (real != nullptr) {
      reinterpret_cast<float*>(out)[i] = static_cast<float>(*real);
    } else if (const auto* integer = std::get_if<std::int32_t>(&number)) {
      reinterpret_cast<std::int32_t*>(out)[i] = *integer;
    } else {
      reinterpret_cast<std::int32_t*>(out)[i] = std::get<bool>(number) ? -1 : 0;
    }
  }
}

BoundCapture Machine::bound(const ConstTensorView& view) {
  BoundCapture capture{.data = static_cast<const std::byte*>(view.data), .dtype = view.dtype, .rank = view.rank()};
  double reach = 0;  // exact where it matters, and cannot overflow
  for (int axis = 0; axis < view.rank(); ++axis) {
    capture.extent[static_cast<std::size_t>(axis)] = view.shape[axis];
    capture.stride[static_cast<std::size_t>(axis)] = view.strides[axis];
    capture.empty = capture.empty || view.shape[axis] == 0;
    reach += static_cast<double>(view.shape[axis] - 1) * std::abs(static_cast<double>(view.strides[axis]));
    // An axis of one element is never stepped along, so its stride may be anything.
    if (view.shape[axis] == 1) capture.stride[static_cast<std::size_t>(axis)] = 0;
  }
  capture.narrow = reach <= std::numeric_limits<std::int32_t>::max();
  return capture;
}

std::byte* Machine::slot(const Source& source) const {
  return slots_[index(source.extent)] + slot_bytes_[index(source.extent)] * source.index;
}

std::int32_t Machine::leaf_at_origin(Leaf leaf) const {
  const Sequence& sequence = at_.sequence;
  std::int64_t value = 0;
  switch (leaf) {
    case Leaf::score:
      break;
    case Leaf::b:
      value = at_.b;
      break;
    case Leaf::h:
      value = at_.h;
      break;
    case Leaf::q_idx:
      value = sequence.q_start + at_.q_first;
      break;
    case Leaf::kv_idx:
      value = sequence.kv_start + at_.kv_first;
      break;
    case Leaf::q_token:
      value = sequence.q_begin + at_.q_first;
      break;
    case Leaf::kv_token:
      value = sequence.kv_begin + at_.kv_first;
      break;
    case Leaf::q_len:
      value = sequence.q_len;
      break;
    case Leaf::kv_len:
      value = sequence.kv_len;
      break;
    case Leaf::q_start:
      value = sequence.q_start;
      break;
    case Leaf::kv_start:
      value = sequence.kv_start;
      break;
  }
  return static_cast<std::int32_t>(value);
}

/// The path of a diagonal leads up the first column to the corner, then along the first row: element i is row
/// panel_rows - 1 - i of column 0, then column i - (panel_rows - 1) of row 0.
void Machine::set_leaf(const LeafValue& leaf) {
  auto* out = reinterpret_cast<std::int32_t*>(slot(leaf.out));
  const bool by_row = is_row_leaf(leaf.leaf);
  const std::int32_t origin = leaf_at_origin(leaf.leaf) + (by_row ? panel_ : 0);
  switch (leaf.out.extent) {
    case Extent::scalar:
      return kernels_->count_from(out, origin, 0, kSpreadElements);
    case Extent::row:
      return kernels_->count_from(out, origin, 1, panel_rows_);
    case Extent::column:
      return kernels_->count_from(out, origin, 1, columns_);
    default: {
      const int corner = panel_rows_ - 1;
      kernels_->count_from(out, by_row ? origin + corner : origin, by_row ? -1 : 0, corner);
      return kernels_->count_from(out + corner, origin, by_row ? 0 : 1, columns_);
    }
  }
}

TileKernel Machine::kernel(const Instruction& step) const {
  const auto form = static_cast<std::size_t>(step.form);
  switch (step.code) {
    case Code::op:
      return kernels_->op[static_cast<std::size_t>(step.op)][form];
    case Code::copy:
      return kernels_->copy[form];
    case Code::mul_add:
      return kernels_->mul_add;
    case Code::select_lt:
      return kernels_->select_lt[form];
    case Code::select_le:
      return kernels_->select_le[form];
    case Code::select_eq:
      return kernels_->select_eq[form];
    case Code::shift_right:
      return kernels_->shift_right;
    case Code::bit_and:
      return kernels_->bit_and;
    case Code::read:
      return kernels_->read[form];
    case Code::draw_row:
      return kernels_->draw_row;
  }
  return nullptr;
}

bool Machine::enter(const TilePosition& at) {
  at_ = at;
  columns_ = round_up(at.columns, kColumnStep);
  panel_ = 0;
  for (const LeafValue& leaf : program_->leaves) {
    if (leaf.out.extent == Extent::scalar) set_leaf(leaf);
  }
  run_flat(steps_[index(Extent::scalar)], kSpreadElements);
  return std::all_of(program_->guards.begin(), program_->guards.end(), [this](const Guard& guard) {
    const std::int64_t first = *reinterpret_cast<const std::int32_t*>(slot(guard.first));
    const std::int64_t down = std::int64_t{guard.per_row} * (at_.rows - 1);
    const std::int64_t across = std::int64_t{guard.per_column} * (at_.columns - 1);
    const std::int64_t low = first + std::min<std::int64_t>(down, 0) + std::min<std::int64_t>(across, 0);
    const std::int64_t high = first + std::max<std::int64_t>(down, 0) + std::max<std::int64_t>(across, 0);
    return low >= std::numeric_limits<std::int32_t>::min() && high <= std::numeric_limits<std::int32_t>::max();
  });
}

int Machine::strip_rows(bool to_caller) const {
  const bool in_place = to_caller && program_->slots[index(Extent::tile)] == kResult + 1;
  const int rows = kRegisterBytes / real_bytes_ / columns_;
  return in_place ? std::max(rows, kRowsInPlace) : rows;
}

void Machine::prepare_columns() {
  for (const LeafValue& leaf : program_->leaves) {
    if (leaf.out.extent == Extent::column) set_leaf(leaf);
  }
  run_flat(steps_[index(Extent::column)], columns_);
}

void Machine::prepare_panel(int first_row, int rows) {
  panel_ = first_row;
  panel_rows_ = rows;
  for (const LeafValue& leaf : program_->leaves) {
    if (leaf.out.extent == Extent::row || leaf.out.extent == Extent::diagonal) set_leaf(leaf);
  }
  run_flat(steps_[index(Extent::row)], rows);
  run_flat(steps_[index(Extent::diagonal)], rows - 1 + columns_);
}

std::vector<Machine::Step> Machine::steps_of(const std::vector<Instruction>& instructions) const {
  std::vector<Step> steps;
  for (const Instruction& instruction : instructions) {
    Step step{&instruction, kernel(instruction), {}, {}};
    TileArguments& arguments = step.arguments;
    if (instruction.code == Code::read) arguments.capture = &captures_[static_cast<std::size_t>(instruction.capture)];
    arguments.column_axis = instruction.column_axis;
    arguments.has_fill = instruction.op == expr::Op::at;
    // Scalars, rows, columns and diagonals are vectors of elements, computed as tiles of one row.
    arguments.rows = 1;
    arguments.out = slot(instruction.out);
    for (std::size_t i = 0; i < instruction.in.size(); ++i) {
      const Source& source = instruction.in[i];
      arguments.in[i] = fixed_operand(source, instruction);
      const bool moves = source.extent == Extent::tile || source.extent == Extent::diagonal ||
                         (source.extent == Extent::row && takes_rows_as_they_are(instruction));
      if (instruction.out.extent == Extent::tile && moves) step.moving.push_back(i);
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

void Machine::run_flat(std::vector<Step>& steps, int count) {
  for (Step& step : steps) {
    step.arguments.columns = step.arguments.used_columns = round_up(count, kColumnStep);
    step.kernel(step.arguments);
  }
}

/// An operand that lies at the same place for all strips.
TileOperand Machine::fixed_operand(const Source& source, const Instruction& user) const {
  const std::ptrdiff_t bytes = element_bytes(source.type);
  const bool for_tile = user.out.extent == Extent::tile;
  if (source.extent == Extent::scalar) return {slot(source), 0, user.out.extent == Extent::scalar ? bytes : 0};
  if (for_tile && source.extent == Extent::row && !takes_rows_as_they_are(user)) {
    const auto& spread = program_->spread;
    const auto position = std::find(spread.begin(), spread.end(), source) - spread.begin();
    return {spread_ + position * spread_bytes_, kSpreadBytes, 0};
  }
  return {slot(source), 0, bytes};
}

/// An operand of the strip at hand.
TileOperand Machine::moving_operand(const Source& source, const TileOperand& score, const TileOperand& out) const {
  const std::ptrdiff_t bytes = element_bytes(source.type);
  if (source.extent == Extent::row) return {slot(source) + strip_ * bytes, bytes, 0};
  if (source.extent == Extent::diagonal) {
    return {slot(source) + (panel_rows_ - 1 - strip_) * bytes, -bytes, bytes};
  }
  if (source.index == kScore) {
    return {score.base + std::ptrdiff_t{panel_ + strip_} * score.row, score.row, score.column};
  }
  if (source.index == kResult && out.base != nullptr) {
    return {out.base + std::ptrdiff_t{panel_ + strip_} * out.row, out.row, out.column};
  }
  return {slot(source), columns_ * bytes, bytes};
}

void Machine::start_strip(int panel, int row, int rows) {
  panel_ = panel;
  strip_ = row;
  std::byte* spread = spread_;
  for (const Source& source : program_->spread) {
    const std::byte* values = slot(source) + std::ptrdiff_t{row} * element_bytes(source.type);
    kernels_->spread[static_cast<std::size_t>(source.type)](values, rows, spread);
    spread += spread_bytes_;
  }
}

void Machine::run_strip(int panel, int row, int rows, const TileOperand& score, const TileOperand& out) {
  start_strip(panel, row, rows);
  run_steps(steps_[index(Extent::tile)].size(), rows, score, out);
}

/// The first `count` steps of the strip at hand.
void Machine::run_steps(std::size_t count, int rows, const TileOperand& score, const TileOperand& out) {
  for (std::size_t i = 0; i < count; ++i) {
    Step& step = steps_[index(Extent::tile)][i];
    set_arguments(step, rows, score, out);
    step.kernel(step.arguments);
  }
}

void Machine::set_arguments(Step& step, int rows, const TileOperand& score, const TileOperand& out) const {
  TileArguments& arguments = step.arguments;
  const TileOperand to = moving_operand(step.instruction->out, score, out);
  arguments.rows = rows;
  arguments.columns = columns_;
  arguments.used_columns = at_.columns;
  arguments.out = const_cast<std::byte*>(to.base);
  arguments.out_row = to.row;
  for (const std::size_t i : step.moving) arguments.in[i] = moving_operand(step.instruction->in[i], score, out);
}

TileOperand Machine::result() const { return moving_operand({Extent::tile, program_->type, kResult}, {}, {}); }

}  // namespace heddle::cpu
