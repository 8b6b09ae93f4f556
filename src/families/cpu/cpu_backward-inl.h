// One step of the backward (cpu_backward_step.h), top to bottom, and the sums of its panels.
//
// Numbers that must not reach a result are kept out by selection, never by multiplication with 0: p and dS of masked
// elements are set to 0, and where a tile holds numbers that are not finite, the three products that sum over its rows
// go through the elements that attend, one by one.

// A guard that toggles, as Highway's per-target headers have.
#if defined(HEDDLE_BACKEND_CPU_BACKWARD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef HEDDLE_BACKEND_CPU_BACKWARD_INL_H_
#undef HEDDLE_BACKEND_CPU_BACKWARD_INL_H_
#else
#define HEDDLE_BACKEND_CPU_BACKWARD_INL_H_
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#include "families/cpu/backward_elements-inl.h"
#include "families/cpu/cpu_backward_step.h"
#include "families/cpu/gemm-inl.h"
#include "families/cpu/hidden_elements-inl.h"
#include "families/cpu/pack-inl.h"
#include "families/cpu/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace heddle::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

namespace detail {

/// c [rows][kScoreStride] = factors * rows of panels times transposed keys, over the step's columns.
template <class T>
void MultiplyRowsByKeys(const BackwardStep<T>& step, const T* rows, const T* columns, std::int64_t dim, T* c,
                        const T* factors) {
  const StepColumns at = ColumnsOf(step);
  for (std::int64_t key = at.first; key < at.first + at.count;) {
    const std::int64_t panel = key / plan::kPanel * plan::kPanel;
    const std::int64_t end = std::min(at.first + at.count, panel + plan::kPanel);
    for (std::int64_t d = 0; d < dim; d += plan::kPanel) {
      Multiply(Product<T>{.a = rows + d * step.queries.panel_rows,
                          .a_stride = plan::kPanel,
                          .b = columns + panel * dim + d * plan::kPanel + (key - panel),
                          .c = c + (key - at.first),
                          .c_stride = kScoreStride,
                          .rows = step.at.rows,
                          .columns = end - key,
                          .depth = std::min(plan::kPanel, dim - d),
                          .scales = nullptr,
                          .factors = d + plan::kPanel >= dim ? factors : nullptr,
                          .add = d > 0});
    }
    key = end;
  }
}

/// Rows of panels: one of the factors of a sum over rows.
template <class T>
struct PanelRows {
  const T* data;
  std::int64_t panel_rows;
};

/// Panels of keys += elements^T times rows, one row a query.
template <class T>
void AddToKeys(const BackwardStep<T>& step, const T* elements, const PanelRows<T>& rows, std::int64_t dim,
               T* gradient) {
  const StepColumns at = ColumnsOf(step);
  for (std::int64_t d = 0; d < dim; d += plan::kPanel) {
    Multiply(Product<T>{.a = elements,
                        .a_stride = kScoreStride,
                        .b = rows.data + d * rows.panel_rows,
                        .c = gradient + d * step.keys.tile_keys + at.first * plan::kPanel,
                        .c_stride = plan::kPanel,
                        .rows = at.count,
                        .columns = plan::round_up(std::min(plan::kPanel, dim - d), kColumnUnit),
                        .depth = step.at.rows,
                        .scales = nullptr,
                        .side = ProductSide::columns,
                        .add = true});
  }
}

/// dQ += dS K, one row of K a key of the tile.
template <class T>
void AddToQueries(const BackwardStep<T>& step, const T* d_s, const PanelRows<T>& rows) {
  const StepColumns at = ColumnsOf(step);
  for (std::int64_t d = 0; d < step.qk_dim; d += plan::kPanel) {
    Multiply(Product<T>{.a = d_s,
                        .a_stride = kScoreStride,
                        .b = rows.data + d * rows.panel_rows + at.first * plan::kPanel,
                        .c = step.queries.dq + d * step.queries.panel_rows,
                        .c_stride = plan::kPanel,
                        .rows = step.at.rows,
                        .columns = plan::round_up(std::min(plan::kPanel, step.qk_dim - d), kColumnUnit),
                        .depth = at.count,
                        .scales = nullptr,
                        .add = true});
  }
}

/// Copies rows, with 0 for those that hold something that is not finite: special[r] is 1.
template <class T>
PanelRows<T> CopyFinite(const PanelRows<T>& from, std::int64_t rows, std::int64_t dim, T* to, std::uint8_t* special) {
  for (std::int64_t r = 0; r < rows; ++r) {
    special[r] = 0;
    for (std::int64_t d = 0; d < dim; d += plan::kPanel) {
      if (HasNonFinite(from.data + d * from.panel_rows + r * plan::kPanel, plan::kPanel)) special[r] = 1;
    }
    for (std::int64_t d = 0; d < dim; d += plan::kPanel) {
      T* row = to + d * rows + r * plan::kPanel;
      if (special[r] != 0) {
        std::fill_n(row, plan::kPanel, T(0));
      } else {
        std::copy_n(from.data + d * from.panel_rows + r * plan::kPanel, plan::kPanel, row);
      }
    }
  }
  return {to, rows};
}

/// to += factor * row `row` of the panels.
template <class T>
void AddPanelRow(const PanelRows<T>& from, std::int64_t row, T factor, std::int64_t dim, T* to, std::int64_t to_rows) {
  const hn::ScalableTag<T> tag;
  for (std::int64_t d = 0; d < dim; d += plan::kPanel) {
    const T* x = from.data + d * from.panel_rows + row * plan::kPanel;
    T* y = to + d * to_rows;
    const std::int64_t columns = plan::round_up(std::min(plan::kPanel, dim - d), kColumnUnit);
    for (std::int64_t c = 0; c < columns; c += static_cast<std::int64_t>(hn::Lanes(tag))) {
      hn::Store(hn::MulAdd(hn::Set(tag, factor), hn::Load(tag, x + c), hn::Load(tag, y + c)), tag, y + c);
    }
  }
}

/// Calls f(row, column, element's number) for the step's elements that attend and whose row is special.
template <class T, class F>
void ForEachOfSpecialRows(const BackwardStep<T>& step, const StepBuffers<T>& buffers, F&& f) {
  const std::int64_t columns = ColumnsOf(step).count;
  for (std::int64_t r = 0; r < step.at.rows; ++r) {
    for (std::int64_t c = 0; buffers.special[r] != 0 && c < columns; ++c) {
      if (buffers.attending[r * kScoreStride + c] != 0) f(r, c, r * kScoreStride + c);
    }
  }
}
/// Calls f for elements that attend and whose key is special.
template <class T, class F>
void ForEachOfSpecialKeys(const BackwardStep<T>& step, const StepBuffers<T>& buffers, F&& f) {
  const StepColumns at = ColumnsOf(step);
  for (std::int64_t c = 0; c < at.count; ++c) {
    for (std::int64_t r = 0; buffers.special[at.first + c] != 0 && r < step.at.rows; ++r) {
      if (buffers.attending[r * kScoreStride + c] != 0) f(r, c, r * kScoreStride + c);
    }
  }
}

/// AddToKeys for rows of queries that hold a number that is not finite: it reaches only the keys that attend the row.
template <class T>
void AddAttendedToKeys(const BackwardStep<T>& step, const StepBuffers<T>& buffers, T* elements,
                       const PanelRows<T>& rows, std::int64_t dim, T* gradient) {
  const PanelRows<T> finite = CopyFinite(rows, step.at.rows, dim, buffers.finite, buffers.special);
  const std::int64_t first = ColumnsOf(step).first;
  ForEachOfSpecialRows(step, buffers, [&](auto, auto, std::int64_t i) { Hide(elements[i], buffers.attending[i]); });
  AddToKeys(step, elements, finite, dim, gradient);
  ForEachOfSpecialRows(step, buffers, [&](std::int64_t r, std::int64_t c, std::int64_t i) {
    Unhide(elements[i], buffers.attending[i]);
    AddPanelRow(rows, r, elements[i], dim, gradient + (first + c) * plan::kPanel, step.keys.tile_keys);
  });
}

/// AddToQueries where rows of keys do.
template <class T>
void AddAttendedToQueries(const BackwardStep<T>& step, const StepBuffers<T>& buffers, const PanelRows<T>& rows) {
  const StepColumns at = ColumnsOf(step);
  const std::int64_t dim = step.qk_dim, first = at.first;
  const PanelRows<T> finite = CopyFinite(rows, first + at.count, dim, buffers.finite, buffers.special);
  T* d_s = buffers.d_p;
  ForEachOfSpecialKeys(step, buffers, [&](auto, auto, std::int64_t i) { Hide(d_s[i], buffers.attending[i]); });
  AddToQueries(step, d_s, finite);
  ForEachOfSpecialKeys(step, buffers, [&](std::int64_t r, std::int64_t c, std::int64_t i) {
    Unhide(d_s[i], buffers.attending[i]);
    AddPanelRow(rows, first + c, d_s[i], dim, step.queries.dq + r * plan::kPanel, step.queries.panel_rows);
  });
}

/// dV += (p w)^T dO, dK += dS^T Q and dQ += dS K, as far as they are wanted.
template <class T>
void AddToGradients(const BackwardStep<T>& step, const StepBuffers<T>& buffers) {
  const StepQueries<T>& queries = step.queries;
  const StepKeys<T>& keys = step.keys;
  const PanelRows<T> d_o = {queries.d_o, queries.panel_rows}, q = {queries.q, queries.panel_rows};
  const PanelRows<T> k = {keys.k_rows, keys.tile_keys};
  if (keys.dv != nullptr) {
    if (queries.d_o_non_finite) {
      AddAttendedToKeys(step, buffers, buffers.scores, d_o, step.v_dim, keys.dv);
    } else {
      AddToKeys(step, buffers.scores, d_o, step.v_dim, keys.dv);
    }
  }
  if (keys.dk != nullptr) {
    if (queries.q_non_finite) {
      AddAttendedToKeys(step, buffers, buffers.d_p, q, step.qk_dim, keys.dk);
    } else {
      AddToKeys(step, buffers.d_p, q, step.qk_dim, keys.dk);
    }
  }
  if (queries.dq != nullptr) {
    if (keys.non_finite) {
      AddAttendedToQueries(step, buffers, k);
    } else {
      AddToQueries(step, buffers.d_p, k);
    }
  }
}

}  // namespace detail

template <class T>
void Step(const BackwardStep<T>& step, const StepBuffers<T>& buffers) {
  const StepQueries<T>& queries = step.queries;
  const StepKeys<T>& keys = step.keys;
  std::fill_n(buffers.factors, step.at.rows, step.score_factor);
  detail::MultiplyRowsByKeys(step, queries.q, keys.k_columns, step.qk_dim, buffers.scores, buffers.factors);
  detail::ApplyStepMods(step, buffers);
  std::fill_n(buffers.factors, step.at.rows, step.value_factor);
  detail::MultiplyRowsByKeys(step, queries.d_o, keys.v_columns, step.v_dim, buffers.d_p,
                             step.value_factor == T(1) ? nullptr : buffers.factors);
  if (queries.q_non_finite || queries.d_o_non_finite || keys.non_finite) detail::FindStepAttending(step, buffers);
  detail::Differentiate(step, buffers);
  detail::AddToGradients(step, buffers);
}

template <class T>
void AddRow(const T* from, std::int64_t count, T* to) {
  const hn::ScalableTag<T> d;
  const std::int64_t lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) hn::StoreU(hn::Add(hn::LoadU(d, to + i), hn::LoadU(d, from + i)), d, to + i);
  for (; i < count; ++i) to[i] += from[i];
}

namespace detail {

/// kPanel columns of a row, the sum of all parts times the factor. `to` has room for them.
template <class T>
HWY_INLINE void SumPanelRow(const StorePanels<T>& panels, const T* from, T* to) {
  const hn::ScalableTag<T> tag;
  const auto factor = hn::Set(tag, panels.factor);
  for (std::int64_t c = 0; c < plan::kPanel; c += static_cast<std::int64_t>(hn::Lanes(tag))) {
    auto sum = panels.parts > 0 ? hn::Load(tag, from + c) : hn::Zero(tag);
    for (std::int64_t part = 1; part < panels.parts; ++part) {
      sum = hn::Add(sum, hn::Load(tag, from + part * panels.part_stride + c));
    }
    hn::StoreU(hn::Mul(sum, factor), tag, to + c);
  }
}

/// Elements [first, first + count) of a row: where they stand, or widened to `to`.
template <class T>
HWY_INLINE const T* RowOf(const ConstRows& rows, std::int64_t row, std::int64_t first, std::int64_t count, T* to) {
  if (rows.dtype == kDType<T>) return static_cast<const T*>(rows.data) + rows.offset(row) + first;
  LoadRow(rows, row, first, count, to);
  return to;
}

/// Adds the products of x and y to `sum`, which holds doubles by lane; returns those that fill no vector.
template <class D, class V, class T>
HWY_INLINE double AddProducts(D d, const T* x, const T* y, std::int64_t count, V& sum) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto load = [&](const T* from) {
    if constexpr (sizeof(T) == 8) return hn::LoadU(d, from);
    if constexpr (sizeof(T) == 4) return hn::PromoteTo(d, hn::LoadU(hn::Rebind<float, D>(), from));
  };
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) sum = hn::MulAdd(load(x + i), load(y + i), sum);
  double rest = 0;
  for (; i < count; ++i) rest += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return rest;
}

}  // namespace detail

template <class T>
double Dot(const RowPair<T>& rows) {
  const hn::ScalableTag<double> d;
  HWY_ALIGN T x_room[plan::kPanel], y_room[plan::kPanel];
  auto sum = hn::Zero(d);
  double rest = 0;
  for (std::int64_t first = 0; first < rows.count; first += plan::kPanel) {
    const std::int64_t count = std::min(plan::kPanel, rows.count - first);
    rest += detail::AddProducts(d, detail::RowOf(rows.x, rows.row, first, count, x_room),
                                detail::RowOf(rows.y, rows.row, first, count, y_room), count, sum);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum)) + rest;
}

template <class T>
void Store(const StorePanels<T>& panels) {
  const bool is_direct = panels.to.dtype == detail::kDType<T>;
  for (std::int64_t r = 0; r < panels.rows; ++r) {
    const T* from = panels.from + (panels.first + r) * plan::kPanel;
    for (std::int64_t dim = 0; dim < panels.dim; dim += plan::kPanel, from += plan::kPanel * panels.panel_rows) {
      const std::int64_t dims = std::min(plan::kPanel, panels.dim - dim);
      if (is_direct && dims == plan::kPanel) {
        detail::SumPanelRow(panels, from, static_cast<T*>(panels.to.data) + r * panels.to.stride + dim);
      } else {
        detail::SumPanelRow(panels, from, panels.staging);
        StoreRow(panels.staging, dims, panels.to, r, dim);
      }
    }
  }
}

}  // namespace heddle::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // the toggling guard
