// A step of the backward whose five products AMX computes. Differences to the f32 step (cpu_backward-inl.h):
// - kUnitRows queries at a time go through S, the mods, dP and dQ. p w and dS are rounded to bf16, as plain rounds
//   them, and stay until all queries of the step are through: then dV and dK are added up over all of them.
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

#include "families/cpu/backward_elements-inl.h"
#include "families/cpu/brick_products-inl.h"
#include "families/cpu/bricks-inl.h"
#include "families/cpu/cpu_backward_step.h"
#include "families/cpu/hidden_elements-inl.h"

#if HWY_ARCH_X86_64 && HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

using plan::kUnitRows;

inline constexpr std::int64_t kTileBricks = plan::kBackwardKeys / kBrickColumns;  // of kUnitRows queries

/// One step. Rows are counted from the step's first query, or, as `unit rows`, from the first of its group of
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
    special_ = step.queries.q_non_finite || step.queries.d_o_non_finite || step.keys.non_finite;
    scaled_ = special_ || step.mod || step.slope || step.weight || !step.reads.empty() ||
              columns_.first != step.begin || columns_.first + columns_.count != step.end;
  }

  HEDDLE_AMX void run() {
    k_rows_ = operands_.k_rows + columns_.first / kBrickDepth * k_columns() * kBrickBytes;
    if (step_.keys.non_finite && operands_.dq != nullptr) leave_out_keys();
    for (std::int64_t unit = first_unit_; unit < end_unit_; ++unit) run_unit(unit);
    if (operands_.dv != nullptr) {
      add_to_keys(bricks_.weights, operands_.d_o, step_.v_dim, step_.queries.d_o_non_finite, operands_.dv);
    }
    if (operands_.dk != nullptr) {
      add_to_keys(bricks_.d_s, operands_.q, step_.qk_dim, step_.queries.q_non_finite, operands_.dk);
    }
  }

 private:
  static constexpr std::int64_t kScoreBytes = kScoreStride * sizeof(float);

  std::int64_t k_columns() const { return plan::round_up(step_.qk_dim, kBrickColumns) / kBrickColumns; }

  // Units of kUnitRows queries.

  /// The rows of a unit that are the step's: unit rows [begin, end).
  struct Unit {
    std::int64_t index, begin, end;
    BackwardStep<float> step;  // of these rows
    StepBuffers<float> buffers;
  };

  Unit unit_of(std::int64_t index) {
    const std::int64_t first = index * kUnitRows;
    Unit unit{index, std::max<std::int64_t>(step_.at.q_first - first, 0),
              std::min<std::int64_t>(step_.at.q_first + step_.at.rows - first, kUnitRows), step_, buffers_};
    const std::int64_t row = first + unit.begin - step_.at.q_first, element = row * kScoreStride;
    unit.step.at.q_first += row;
    unit.step.at.rows = static_cast<int>(unit.end - unit.begin);
    for (const float** numbers : {&unit.step.queries.lse, &unit.step.queries.lse_rest, &unit.step.queries.delta}) {
      if (*numbers != nullptr) *numbers += row;
    }
    for (std::size_t i = 0; i < step_.reads.size(); ++i) {
      step_.part_reads[i] = step_.reads[i];
      step_.part_reads[i].gradients += element;
    }
    unit.step.reads = step_.part_reads;
    const std::int64_t inside = unit.begin * kScoreStride;
    for (float** numbers : {&unit.buffers.scores, &unit.buffers.slopes, &unit.buffers.weights, &unit.buffers.d_p}) {
      *numbers += inside;
    }
    unit.buffers.attending += element;
    if (unit.buffers.score_copy != nullptr) unit.buffers.score_copy += element;
    return unit;
  }

  HEDDLE_AMX void run_unit(std::int64_t index) {
    const Unit unit = unit_of(index);
    multiply_by_keys(unit, operands_.q.rows, step_.qk_dim, operands_.k, buffers_.scores);
    if (scaled_) {
      scale_scores(unit);
      ApplyStepMods(unit.step, unit.buffers);
    }
    if (special_) FindStepAttending(unit.step, unit.buffers);
    multiply_by_keys(unit, operands_.d_o.rows, step_.v_dim, operands_.v, buffers_.d_p);
    differentiate(unit);
    if (operands_.dq == nullptr) return;
    if (step_.keys.non_finite) for_each_of_special_keys(unit, [](auto, auto, auto& d_s, auto& at) { Hide(d_s, at); });
    add_to_queries(unit);
    if (step_.keys.non_finite) add_attended_keys(unit);
  }

  /// c [kUnitRows][kScoreStride] = rows times keys in bricks, over the step's columns.
  HEDDLE_AMX void multiply_by_keys(const Unit& unit, const std::uint16_t* rows, std::int64_t dim, const std::byte* keys,
                                   float* c) {
    const std::int64_t steps = plan::round_up(dim, kBrickDepth) / kBrickDepth;
    MultiplyBricks(registers_,
                   BrickProduct{.a = rows + unit.index * kUnitRows * steps * kBrickDepth,
                                .a_stride = steps * kBrickDepth * 2,
                                .b = keys + columns_.first / kBrickColumns * steps * kBrickBytes,
                                .b_column = steps * kBrickBytes,
                                .b_step = kBrickBytes,
                                .c = c,
                                .c_stride = kScoreBytes,
                                .columns = columns_.count / kBrickColumns,
                                .steps = steps,
                                .add = false},
                   unit.end);
  }

  void scale_scores(const Unit& unit) const {
    const __m512 factor = _mm512_set1_ps(step_.score_factor);
    for (std::int64_t r = unit.begin; r < unit.end; ++r) {
      float* row = buffers_.scores + r * kScoreStride;
      for (std::int64_t i = 0; i < columns_.count; i += 16) {
        _mm512_store_ps(row + i, _mm512_mul_ps(_mm512_load_ps(row + i), factor));
      }
    }
  }

  HEDDLE_AMX void differentiate(const Unit& unit) {
    switch (step_.normalizer) {
      case Normalizer::softmax:
        return step_.queries.lse_rest != nullptr ? differentiate<Normalizer::softmax, true>(unit)
                                                 : differentiate<Normalizer::softmax, false>(unit);
      case Normalizer::sigmoid:
        return differentiate<Normalizer::sigmoid, false>(unit);
      case Normalizer::none:
        return differentiate<Normalizer::none, false>(unit);
    }
  }

  template <Normalizer kNormalizer, bool kRest>
  HEDDLE_AMX void differentiate(const Unit& unit) {
    if (step_.weight || step_.slope || !step_.reads.empty()) {
      differentiate_rows<kNormalizer, kRest, true>(unit);
    } else {
      differentiate_rows<kNormalizer, kRest, false>(unit);
    }
  }

  template <Normalizer kNormalizer, bool kRest, bool kMods>
  HEDDLE_AMX void differentiate_rows(const Unit& unit) {
    for (std::int64_t even = 0; even < kUnitRows; even += 2) {
      const bool both = even >= unit.begin && even + 1 < unit.end;
      if (both) {
        differentiate_pair<kNormalizer, kRest, kMods, true, true>(unit, even);
      } else if (even >= unit.begin && even < unit.end) {
        differentiate_pair<kNormalizer, kRest, kMods, true, false>(unit, even);
      } else if (even + 1 >= unit.begin && even + 1 < unit.end) {
        differentiate_pair<kNormalizer, kRest, kMods, false, true>(unit, even);
      } else {
        differentiate_pair<kNormalizer, kRest, kMods, false, false>(unit, even);
      }
    }
  }

  /// Unit rows `even` and the next, as far as they are the step's: the others' elements are 0.
  template <Normalizer kNormalizer, bool kRest, bool kMods, bool kEven, bool kOdd>
  HEDDLE_AMX void differentiate_pair(const Unit& unit, std::int64_t even) {
    using D = hn::ScalableTag<float>;
    using V = hn::Vec<D>;
    const D d;
    const auto numbers = [&](bool there, std::int64_t r) HEDDLE_AMX {
      return NumbersOf<kNormalizer, kRest>(d, unit.step, there ? r - unit.begin : 0);
    };
    const RowNumbers<kRest, V> rows[2] = {numbers(kEven, even), numbers(kOdd, even + 1)};
    const V factor = hn::Set(d, scaled_ ? 1.0F : step_.score_factor), value_factor = hn::Set(d, step_.value_factor);
    const std::int64_t place = (unit.index - first_unit_) * kTileBricks * kBrickBytes + even / 2 * 64;
    std::uint16_t* d_s_row = bricks_.d_s_rows + even * plan::kDerivativeStride;
    for (std::int64_t c = 0; c < columns_.count; c += 16) {
      const auto element = [&](std::int64_t odd) HEDDLE_AMX {
        const std::int64_t i = (even + odd - unit.begin) * kScoreStride + c;
        return DifferentiateVector<kNormalizer, kMods>(d, unit.step, unit.buffers, rows[odd], i,
                                                       hn::Mul(hn::Load(d, unit.buffers.scores + i), factor),
                                                       hn::Mul(hn::Load(d, unit.buffers.d_p + i), value_factor));
      };
      Differentiated<V> a{hn::Zero(d), hn::Zero(d)}, b = a;
      if constexpr (kEven) a = element(0);
      if constexpr (kOdd) b = element(1);
      const std::int64_t brick = place + c / kBrickColumns * kBrickBytes;
      const __m512i d_s = Registers::round(a.d_s.raw, b.d_s.raw);
      _mm512_store_si512(bricks_.weights + brick, InPairs(Registers::round(a.weighted.raw, b.weighted.raw)));
      _mm512_store_si512(bricks_.d_s + brick, InPairs(d_s));
      _mm256_store_si256(reinterpret_cast<__m256i*>(d_s_row + c), _mm512_castsi512_si256(d_s));
      _mm256_store_si256(reinterpret_cast<__m256i*>(d_s_row + plan::kDerivativeStride + c),
                         _mm512_extracti64x4_epi64(d_s, 1));
    }
  }

  /// Elements a0 to a15, b0 to b15 as a0 b0 a1 b1 ...
  HWY_INLINE static __m512i InPairs(__m512i rows) {
    alignas(64) static constexpr std::uint16_t kOrder[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                             21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                             11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), rows);
  }

  // Sums over keys: dQ += dS K.

  HEDDLE_AMX void add_to_queries(const Unit& unit) {
    constexpr std::int64_t kPanelColumns = plan::kPanel / kBrickColumns;
    for (std::int64_t column = 0; column < k_columns(); column += kPanelColumns) {
      MultiplyBricks(registers_,
                     BrickProduct{.a = bricks_.d_s_rows,
                                  .a_stride = plan::kDerivativeStride * 2,
                                  .b = k_rows_ + column * kBrickBytes,
                                  .b_column = kBrickBytes,
                                  .b_step = k_columns() * kBrickBytes,
                                  .c = dq_row(unit.index * kUnitRows, column * kBrickColumns),
                                  .c_stride = plan::kPanel * sizeof(float),
                                  .columns = std::min(kPanelColumns, k_columns() - column),
                                  .steps = columns_.count / kBrickDepth,
                                  .add = true},
                     unit.end);
    }
  }
  /// The head's row `row` of dQ, in the panel that begins with dimension `dim`.
  float* dq_row(std::int64_t row, std::int64_t dim) const {
    return operands_.dq + dim * operands_.panel_rows + row * plan::kPanel;
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
  void for_each_of_special_keys(const Unit& unit, F&& f) const {
    for (std::int64_t key = 0; key < columns_.count; ++key) {
      for (std::int64_t r = unit.begin; buffers_.special[key] != 0 && r < unit.end; ++r) {
        std::uint8_t& attending = unit.buffers.attending[(r - unit.begin) * kScoreStride + key];
        if (attending != 0) f(r, key, bricks_.d_s_rows[r * plan::kDerivativeStride + key], attending);
      }
    }
  }

  /// The keys that were left out reach the rows that attend them.
  void add_attended_keys(const Unit& unit) const {
    const auto* keys = reinterpret_cast<const std::uint16_t*>(operands_.k_rows);
    for_each_of_special_keys(unit, [&](std::int64_t r, std::int64_t key, std::uint16_t bits, std::uint8_t& attending) {
      const float d_s = Unhide(bits, attending);
      for (std::int64_t dim = 0; dim < step_.qk_dim; ++dim) {
        dq_row(unit.index * kUnitRows + r, dim / plan::kPanel * plan::kPanel)[dim % plan::kPanel] +=
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
      MultiplyBricks(registers_,
                     BrickProduct{.a = left + first * kUnitRows,
                                  .a_stride = kUnitRows * 2,
                                  .b = elements,
                                  .b_column = kBrickBytes,
                                  .b_step = kTileBricks * kBrickBytes,
                                  .c = gradient + first * kScoreStride + columns_.first,
                                  .c_stride = kScoreBytes,
                                  .columns = columns_.count / kBrickColumns,
                                  .steps = units,
                                  .add = true,
                                  .a_step = dims * kUnitRows * 2},
                     std::min(kUnitRows, dims - first));
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
        std::uint8_t& attending = buffers_.attending[r * kScoreStride + c];
        if (attending == 0) continue;
        const std::int64_t brick = in_units / kUnitRows * kTileBricks + c / kBrickColumns;
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
            gradient[d * kScoreStride + columns_.first + c] += element * WidenBits(x[d]);
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
  bool special_ = false;               // some operand holds something that is not finite
  bool scaled_ = false;                // scores are multiplied by their factor before anything reads them
};

inline void TransposeGradients(const float* from, std::int64_t dim, float* panels) {
  for (std::int64_t first = 0; first < dim; first += 16) {
    float* panel = panels + first / plan::kPanel * plan::kPanel * plan::kBackwardKeys + first % plan::kPanel;
    for (std::int64_t key = 0; key < plan::kBackwardKeys; key += 16) {
      __m512i rows[16];
      HWY_UNROLL(16)
      for (int i = 0; i < 16; ++i) rows[i] = _mm512_load_si512(from + (first + i) * kScoreStride + key);
      TransposeWords(rows, reinterpret_cast<std::uint32_t*>(panel + key * plan::kPanel), plan::kPanel);
    }
  }
}

}  // namespace detail

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // the toggling guard
