// A step of the backward whose five products AMX computes. Differences to the f32 step (cpu_backward-inl.h):
// - Parts of kUnitRows queries and kPartColumns keys go through a pipeline (run_parts). p w and dS are rounded to bf16,
//   as plain rounds them, and stay until all queries of the step are through: then dV and dK are added up.
// - dV and dK are sums over queries. They stand transposed, dV^T += dO^T (p w) and dK^T += Q^T dS, so that p w and dS
//   are right operands, whose elements leave the registers in pairs of rows.
// - Columns come in whole bricks of kBrickDepth keys. Elements beside the run are 0.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_CPU_BACKWARD_BRICKS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_CPU_BACKWARD_BRICKS_INL_H_
#undef HEDDLE_CPU_BACKWARD_BRICKS_INL_H_
#else
#define HEDDLE_CPU_BACKWARD_BRICKS_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

#include "families/cpu/backward_elements-inl.h"
#include "families/cpu/brick_elements-inl.h"
#include "families/cpu/brick_pipeline-inl.h"
#include "families/cpu/brick_products-inl.h"
#include "families/cpu/bricks-inl.h"
#include "families/cpu/cpu_backward_step.h"
#include "families/cpu/hidden_elements-inl.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

inline constexpr std::int64_t kPartColumns = plan::kBackwardKeys / 2;

/// One step. Rows are counted from the step's first query, or, as rows of a unit, from the first of its group of
/// kUnitRows.
template <class Registers>
class BrickStep {
 public:
  BrickStep(const BackwardStep<float>& step, const BrickOperands& operands, const StepBuffers<float>& buffers,
            const BrickBuffers& bricks)
      : step_(step),
        operands_(operands),
        buffers_(buffers),
        bricks_(bricks),
        columns_(ColumnsOf(step)),
        first_unit_(step.at.q_first / kUnitRows),
        end_unit_((step.at.q_first + step.at.rows + kUnitRows - 1) / kUnitRows) {
    tile_bricks_ = step.keys.tile_keys / kBrickColumns;
    special_ = step.queries.q_non_finite || step.queries.d_o_non_finite || step.keys.non_finite;
    scaled_ = !(step.score_factor > 0) || step.mod || step.slope || step.weight || !step.reads.empty() ||
              columns_.first != step.begin || columns_.first + columns_.count != step.end;
  }

  HEDDLE_AMX void run() {
    k_rows_ = operands_.k_rows + columns_.first / kBrickDepth * k_columns() * kBrickBytes;
    if (step_.keys.non_finite && operands_.dq != nullptr) leave_out_keys();
    run_parts();
    if (operands_.dv != nullptr) {
      add_to_keys(bricks_.weights, operands_.d_o, step_.v_dim, step_.queries.d_o_non_finite, operands_.dv);
    }
    if (operands_.dk != nullptr) {
      add_to_keys(bricks_.d_s, operands_.q, step_.qk_dim, step_.queries.q_non_finite, operands_.dk);
    }
  }

 private:
  static constexpr std::int64_t kScoreBytes = kScoreStride * sizeof(float);
  static constexpr std::int64_t kRowsOfDerivatives = kUnitRows * plan::kDerivativeStride;  // of a unit
  std::int64_t k_columns() const { return plan::round_up(step_.qk_dim, kBrickColumns) / kBrickColumns; }
  std::int64_t parts_of_unit() const { return plan::round_up(columns_.count, kPartColumns) / kPartColumns; }
  std::int64_t end_row(std::int64_t unit) const {
    return std::min<std::int64_t>(step_.at.q_first + step_.at.rows - unit * kUnitRows, kUnitRows);
  }
  std::int64_t gradient_stride() const { return plan::gradient_stride(step_.keys.tile_keys); }
  /// Where a row and column of the step stand in buffers of the whole step.
  std::int64_t element_of(std::int64_t row, std::int64_t column) const {
    return plan::step_element(step_.at.rows, row, column);
  }
  std::uint16_t* d_s_rows(std::int64_t unit) const { return bricks_.d_s_rows + unit % 2 * kRowsOfDerivatives; }

  // Parts: kPartColumns columns of a unit of kUnitRows queries. Two take turns in the buffers.

  /// Part `index` of the step.
  StepPart part_of(std::int64_t index) {
    const std::int64_t unit = first_unit_ + index / parts_of_unit(), column = index % parts_of_unit() * kPartColumns;
    const std::int64_t begin = std::max<std::int64_t>(step_.at.q_first - unit * kUnitRows, 0);
    const std::int64_t first_brick = (unit - first_unit_) * tile_bricks_ + column / kBrickColumns;
    StepPart part{.unit = unit,
                  .begin = begin,
                  .end = end_row(unit),
                  .column = column,
                  .columns = std::min(kPartColumns, columns_.count - column),
                  .step = step_,
                  .buffers = buffers_,
                  .score_factor = scaled_ ? 1.0F : step_.score_factor,
                  .weights = bricks_.weights + first_brick * kBrickBytes,
                  .d_s = bricks_.d_s + first_brick * kBrickBytes,
                  .d_s_rows = d_s_rows(unit) + column};
    const std::int64_t row = unit * kUnitRows + begin - step_.at.q_first, element = element_of(row, column);
    part.step.at.q_first += static_cast<int>(row);
    part.step.at.rows = static_cast<int>(part.end - begin);
    part.step.begin = std::max(step_.begin, columns_.first + column);
    part.step.end = std::min(step_.end, columns_.first + column + part.columns);
    for (const float** numbers : {&part.step.queries.lse, &part.step.queries.lse_rest, &part.step.queries.delta}) {
      if (*numbers != nullptr) *numbers += row;
    }
    const std::span<StepRead<float>> reads =
        step_.part_reads.subspan(index % 2 * step_.reads.size(), step_.reads.size());
    for (std::size_t i = 0; i < reads.size(); ++i) {
      reads[i] = step_.reads[i];
      reads[i].gradients += element;
    }
    part.step.reads = reads;
    const std::int64_t inside = begin * kScoreStride + index % 2 * kPartColumns;
    for (float** numbers : {&part.buffers.scores, &part.buffers.slopes, &part.buffers.weights, &part.buffers.d_p}) {
      if (*numbers != nullptr) *numbers += inside;
    }
    part.buffers.attending += element;
    if (part.buffers.score_copy != nullptr) part.buffers.score_copy += element;
    return part;
  }

  /// While the elements of a part are computed, AMX multiplies: dQ of the unit before, then S and dP of the next part.
  HEDDLE_AMX void run_parts() {
    const PairsFunction differentiate = PairsOf<Registers>(step_);
    const std::int64_t count = (end_unit_ - first_unit_) * parts_of_unit();
    if (count == 0) return;
    StepPart parts[2] = {part_of(0), {}};
    const auto nothing = [] {};
    multiply_scores(parts[0], nothing);
    finish_scores(parts[0]);
    std::int64_t waiting = -1;  // a unit whose dQ is not yet asked for
    for (std::int64_t index = 0; index < count; ++index) {
      const StepPart& part = parts[index % 2];
      StepPart& next = parts[(index + 1) % 2];
      const bool has_next = index + 1 < count;
      if (has_next) next = part_of(index + 1);
      RowTurns turns(kUnitRows / 2, (has_next ? score_steps(next) : 0) + (waiting >= 0 ? query_steps() : 0));
      const auto some_pairs = [&]() HEDDLE_AMX {
        const std::int64_t pair = turns.row(), end = turns.next();
        differentiate(part, pair, end);
        if (part.column > 0 && operands_.dq != nullptr) fetch_queries(part.unit, pair, end);
      };
      if (waiting >= 0) add_to_queries(waiting, some_pairs);
      waiting = -1;
      if (has_next) multiply_scores(next, some_pairs);
      if (turns.row() < kUnitRows / 2) differentiate(part, turns.row(), kUnitRows / 2);
      if (has_next) finish_scores(next);
      const bool last_of_unit = part.column + part.columns == columns_.count;
      if (!last_of_unit || operands_.dq == nullptr) continue;
      if (step_.keys.non_finite) {
        add_unit_without_keys(part.unit);
      } else {
        waiting = part.unit;
      }
    }
    if (waiting >= 0) add_to_queries(waiting, nothing);
  }

  /// S and dP.
  template <class Between>
  HEDDLE_AMX void multiply_scores(const StepPart& part, const Between& between) {
    multiply_by_keys(part, operands_.q.rows, step_.qk_dim, operands_.k, part.buffers.scores, between);
    multiply_by_keys(part, operands_.d_o.rows, step_.v_dim, operands_.v, part.buffers.d_p, between);
  }
  /// c [kUnitRows][kScoreStride] = rows times keys in bricks, over the part's columns.
  template <class Between>
  HEDDLE_AMX void multiply_by_keys(const StepPart& part, const std::uint16_t* rows, std::int64_t dim,
                                   const std::byte* keys, float* c, const Between& between) {
    const std::int64_t steps = steps_of(dim);
    MultiplyBetween(registers_,
                    BrickProduct{.a = rows + part.unit * kUnitRows * steps * kBrickDepth,
                                 .a_stride = steps * kBrickDepth * 2,
                                 .b = keys + (columns_.first + part.column) / kBrickColumns * steps * kBrickBytes,
                                 .b_column = steps * kBrickBytes,
                                 .b_step = kBrickBytes,
                                 .c = c - part.begin * kScoreStride,
                                 .c_stride = kScoreBytes,
                                 .columns = part.columns / kBrickColumns,
                                 .steps = steps,
                                 .add = false},
                    part.end, between);
  }
  static std::int64_t steps_of(std::int64_t dim) { return plan::round_up(dim, kBrickDepth) / kBrickDepth; }
  std::int64_t score_steps(const StepPart& part) const {
    return part.columns / kBrickColumns * (steps_of(step_.qk_dim) + steps_of(step_.v_dim));
  }

  /// Scores become those that attention weighs.
  void finish_scores(const StepPart& part) const {
    if (scaled_) {
      scale_scores(part);
      ApplyStepMods(part.step, part.buffers);
    }
    if (special_) FindStepAttending(part.step, part.buffers);
  }
  void scale_scores(const StepPart& part) const {
    const __m512 factor = _mm512_set1_ps(step_.score_factor);
    for (std::int64_t r = 0; r < part.end - part.begin; ++r) {
      float* row = part.buffers.scores + r * kScoreStride;
      for (std::int64_t i = 0; i < part.columns; i += 16) {
        _mm512_store_ps(row + i, _mm512_mul_ps(_mm512_load_ps(row + i), factor));
      }
    }
  }

  // Sums over keys: dQ += dS K.
  static constexpr std::int64_t kPanelColumns = plan::kPanel / kBrickColumns;

  std::int64_t query_steps() const { return k_columns() * columns_.count / kBrickDepth; }
  template <class Between>
  HEDDLE_AMX void add_to_queries(std::int64_t unit, const Between& between) {
    for (std::int64_t column = 0; column < k_columns(); column += kPanelColumns) {
      MultiplyBetween(registers_,
                      BrickProduct{.a = d_s_rows(unit),
                                   .a_stride = plan::kDerivativeStride * 2,
                                   .b = k_rows_ + column * kBrickBytes,
                                   .b_column = kBrickBytes,
                                   .b_step = k_columns() * kBrickBytes,
                                   .c = dq_row(unit * kUnitRows, column * kBrickColumns),
                                   .c_stride = plan::kPanel * sizeof(float),
                                   .columns = std::min(kPanelColumns, k_columns() - column),
                                   .steps = columns_.count / kBrickDepth,
                                   .add = true},
                      end_row(unit), between);
    }
  }
  /// Brings rows of dQ, of pairs [pair, end) of the unit, near: their product follows soon, and waits for them.
  void fetch_queries(std::int64_t unit, std::int64_t pair, std::int64_t end) const {
    constexpr std::int64_t kPairFloats = 2 * plan::kPanel;
    for (std::int64_t column = 0; column < k_columns(); column += kPanelColumns) {
      const float* rows = dq_row(unit * kUnitRows, column * kBrickColumns);
      for (std::int64_t i = pair * kPairFloats; i < end * kPairFloats; i += 16) {
        _mm_prefetch(reinterpret_cast<const char*>(rows + i), _MM_HINT_T0);
      }
    }
  }
  /// The head's row `row` of dQ, in the panel that begins with dimension `dim`.
  float* dq_row(std::int64_t row, std::int64_t dim) const {
    return operands_.dq + dim * operands_.panel_rows + row * plan::kPanel;
  }

  /// As add_to_queries, where some key holds something that is not finite.
  HEDDLE_AMX void add_unit_without_keys(std::int64_t unit) {
    for_each_of_special_keys(unit, [](auto, auto, auto& d_s, auto& at) { Hide(d_s, at); });
    add_to_queries(unit, [] {});
    add_attended_keys(unit);
  }

  /// k_rows_ becomes a copy with 0 for keys that hold something that is not finite: buffers.special[key] is 1.
  void leave_out_keys() {
    auto* copy = bricks_.finite;
    std::copy_n(reinterpret_cast<const std::uint16_t*>(k_rows_), columns_.count * k_columns() * kBrickColumns, copy);
    for (std::int64_t key = 0; key < columns_.count; ++key) {
      buffers_.special[key] = 0;
      for (std::int64_t dim = 0; dim < step_.qk_dim; ++dim) {
        if (HasNonFiniteBits(copy + key_element(key, dim), 1)) buffers_.special[key] = 1;
      }
      for (std::int64_t dim = 0; buffers_.special[key] != 0 && dim < step_.qk_dim; ++dim) {
        copy[key_element(key, dim)] = 0;
      }
    }
    k_rows_ = reinterpret_cast<const std::byte*>(copy);
  }
  /// Where an element stands in bricks of keys' rows.
  std::int64_t key_element(std::int64_t key, std::int64_t dim) const {
    return (key / kBrickDepth * k_columns() + dim / kBrickColumns) * (kBrickBytes / 2) + key % kBrickDepth / 2 * 32 +
           dim % kBrickColumns * 2 + key % 2;
  }

  /// Calls f(row of the unit, key, dS, its `attending`) for elements that attend and whose key was left out.
  template <class F>
  void for_each_of_special_keys(std::int64_t unit, F&& f) const {
    const std::int64_t begin = std::max<std::int64_t>(step_.at.q_first - unit * kUnitRows, 0);
    for (std::int64_t key = 0; key < columns_.count; ++key) {
      for (std::int64_t r = begin; buffers_.special[key] != 0 && r < end_row(unit); ++r) {
        const std::int64_t row = unit * kUnitRows + r - step_.at.q_first;
        std::uint8_t& attending = buffers_.attending[element_of(row, key)];
        if (attending != 0) f(r, key, d_s_rows(unit)[r * plan::kDerivativeStride + key], attending);
      }
    }
  }

  /// The keys that were left out reach the rows that attend them.
  void add_attended_keys(std::int64_t unit) const {
    const auto* keys = reinterpret_cast<const std::uint16_t*>(operands_.k_rows);
    for_each_of_special_keys(unit, [&](std::int64_t r, std::int64_t key, std::uint16_t bits, std::uint8_t& attending) {
      const float d_s = Unhide(bits, attending);
      for (std::int64_t dim = 0; dim < step_.qk_dim; ++dim) {
        dq_row(unit * kUnitRows + r, dim / plan::kPanel * plan::kPanel)[dim % plan::kPanel] +=
            d_s * WidenBits(keys[key_element(columns_.first + key, dim)]);
      }
    });
  }

  // Sums over queries.

  /// gradient^T += rows^T elements.
  HEDDLE_AMX void add_to_keys(std::byte* elements, const TwoWayRows& rows, std::int64_t dim, bool non_finite,
                              float* gradient) {
    const std::int64_t dims = plan::round_up(dim, kBrickColumns), units = end_unit_ - first_unit_;
    const std::uint16_t* left = rows.columns + first_unit_ * kUnitRows * dims;
    if (non_finite) {
      left = without_special_rows(rows, left, dim);
      for_each_of_special_rows(elements, [](auto, auto, auto& bits, auto& at) { Hide(bits, at); });
    }
    for (std::int64_t first = 0; first < dims; first += kUnitRows) {
      MultiplyBetween(registers_,
                      BrickProduct{.a = left + first * kUnitRows,
                                   .a_stride = kUnitRows * 2,
                                   .b = elements,
                                   .b_column = kBrickBytes,
                                   .b_step = tile_bricks_ * kBrickBytes,
                                   .c = gradient + first * gradient_stride() + columns_.first,
                                   .c_stride = gradient_stride() * static_cast<std::int64_t>(sizeof(float)),
                                   .columns = columns_.count / kBrickColumns,
                                   .steps = units,
                                   .add = true,
                                   .a_step = dims * kUnitRows * 2},
                      std::min(kUnitRows, dims - first), [] {});
    }
    if (non_finite) add_special_rows(elements, rows, dim, gradient);
  }

  /// A copy of the operand with 0 for queries that hold something that is not finite: buffers.special[row] is 1.
  const std::uint16_t* without_special_rows(const TwoWayRows& rows, const std::uint16_t* columns, std::int64_t dim) {
    const std::int64_t dims = plan::round_up(dim, kBrickColumns), stride = plan::round_up(dim, kBrickDepth);
    std::copy_n(columns, (end_unit_ - first_unit_) * kUnitRows * dims, bricks_.finite);
    // All rows of the units: the product also reads those beside the step's.
    for (std::int64_t row = first_unit_ * kUnitRows; row < end_unit_ * kUnitRows; ++row) {
      const bool special = HasNonFiniteBits(rows.rows + row * stride, dim);
      const std::int64_t own = row - step_.at.q_first;
      if (own >= 0 && own < step_.at.rows) buffers_.special[own] = special ? 1 : 0;
      std::uint16_t* unit = bricks_.finite + (row / kUnitRows - first_unit_) * kUnitRows * dims + row % kUnitRows;
      for (std::int64_t d = 0; special && d < dims; ++d) unit[d * kUnitRows] = 0;
    }
    return bricks_.finite;
  }

  /// Calls f(row of the step, key, element, its `attending`) for elements that attend and whose row was left out.
  template <class F>
  void for_each_of_special_rows(std::byte* elements, F&& f) const {
    auto* pairs = reinterpret_cast<std::uint16_t*>(elements);
    for (std::int64_t r = 0; r < step_.at.rows; ++r) {
      const std::int64_t in_units = step_.at.q_first + r - first_unit_ * kUnitRows;
      for (std::int64_t c = 0; buffers_.special[r] != 0 && c < columns_.count; ++c) {
        std::uint8_t& attending = buffers_.attending[element_of(r, c)];
        if (attending == 0) continue;
        const std::int64_t brick = in_units / kUnitRows * tile_bricks_ + c / kBrickColumns;
        f(r, c, pairs[brick * (kBrickBytes / 2) + in_units % kUnitRows / 2 * 32 + c % kBrickColumns * 2 + in_units % 2],
          attending);
      }
    }
  }

  void add_special_rows(std::byte* elements, const TwoWayRows& rows, std::int64_t dim, float* gradient) const {
    for_each_of_special_rows(
        elements, [&](std::int64_t r, std::int64_t c, std::uint16_t bits, std::uint8_t& attending) {
          const std::uint16_t* x = rows.rows + (step_.at.q_first + r) * plan::round_up(dim, kBrickDepth);
          const float element = Unhide(bits, attending);
          for (std::int64_t d = 0; d < dim; ++d) {
            gradient[d * gradient_stride() + columns_.first + c] += element * WidenBits(x[d]);
          }
        });
  }

  Registers registers_;
  const BackwardStep<float>& step_;
  const BrickOperands& operands_;
  const StepBuffers<float>& buffers_;
  const BrickBuffers& bricks_;
  const StepColumns columns_;
  const std::int64_t first_unit_, end_unit_;
  const std::byte* k_rows_ = nullptr;  // from the step's first column on
  std::int64_t tile_bricks_;           // of kUnitRows queries
  bool special_ = false;               // some operand holds something that is not finite
  bool scaled_ = false;                // scores are multiplied by their factor before anything reads them
};

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
