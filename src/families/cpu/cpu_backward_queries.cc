#include "families/cpu/cpu_backward_queries.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/element.h"

namespace heddle::cpu {
namespace {

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

void widen(const ConstRows& rows, std::int64_t row, std::int64_t count, double* to) {
  const std::int64_t offset = rows.offset(row);
  base::with_storage_type(rows.dtype, [&]<class Storage>(std::type_identity<Storage>) {
    for (std::int64_t i = 0; i < count; ++i) to[i] = base::decode(base::load_raw<Storage>(rows.data, offset + i));
  });
}

double dot(const double* x, const double* y, std::int64_t count) {
  double sums[4] = {};
  std::int64_t i = 0;
  for (; i + 4 <= count; i += 4) {
    for (int lane = 0; lane < 4; ++lane) sums[lane] += x[i + lane] * y[i + lane];
  }
  for (; i < count; ++i) sums[0] += x[i] * y[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// dO.o of row r. Where nothing attends, o is 0 whatever dO is: dO.o is then 0, not 0 times what dO holds.
template <class T>
double dot_of_row(const QueryRows<T>& rows, const QueryMemory& memory, std::int64_t r, double* staging) {
  const T lse = rows.lse[r];
  const bool alone = lse == -kInfinity<T> || (rows.sink != nullptr && lse == *rows.sink);
  if (memory.at->bricks && rows.o.dtype == DType::bf16 && !alone) {
    const auto row = [&](const ConstRows& x) { return static_cast<const std::uint16_t*>(x.data) + x.offset(r); };
    return dot_of_bf16(row(rows.d_o), row(rows.o), rows.v_dim);
  }
  double *o = staging, *d_o = staging + rows.v_dim;
  widen(rows.o, r, rows.v_dim, o);
  widen(rows.d_o, r, rows.v_dim, d_o);
  const bool empty = alone && std::all_of(o, o + rows.v_dim, [](double x) { return x == 0; });
  return empty ? 0 : dot(d_o, o, rows.v_dim);
}

/// q and dO as the plan wants them.
template <class T>
void pack_queries(const QueryRows<T>& rows, const QueryMemory& memory, std::int64_t first, std::int64_t end) {
  if (memory.at->bricks) {
    pack(PackTwoWays{.from = rows.q,
                     .begin = first,
                     .end = end,
                     .dim = rows.qk_dim,
                     .to = memory.q_rows(),
                     .flags = memory.get<std::uint8_t>(memory.at->q_flags)});
    pack(PackTwoWays{.from = rows.d_o,
                     .begin = first,
                     .end = end,
                     .dim = rows.v_dim,
                     .to = memory.d_o_rows(),
                     .flags = memory.get<std::uint8_t>(memory.at->d_o_flags)});
    return;
  }
  pack(PackValues<T>{.from = rows.q,
                     .begin = first,
                     .end = end,
                     .dim = rows.qk_dim,
                     .keys = rows.q_len,
                     .panels = memory.get<T>(memory.at->q),
                     .flags = memory.get<std::uint8_t>(memory.at->q_flags)});
  pack(PackValues<T>{.from = rows.d_o,
                     .begin = first,
                     .end = end,
                     .dim = rows.v_dim,
                     .keys = rows.q_len,
                     .panels = memory.get<T>(memory.at->d_o),
                     .flags = memory.get<std::uint8_t>(memory.at->d_o_flags)});
}

}  // namespace

template <class T>
void prepare_queries(const QueryRows<T>& rows, const QueryMemory& memory, std::int64_t first, std::int64_t end,
                     double* staging) {
  pack_queries(rows, memory, first, end);
  if (rows.lse == nullptr) return;
  T *lse = memory.get<T>(memory.at->lse), *delta = memory.get<T>(memory.at->delta);
  for (std::int64_t r = first; r < end; ++r) {
    lse[r] = rows.lse[r];
    if (rows.lse_rest != nullptr) memory.get<T>(memory.at->lse_rest)[r] = rows.lse_rest[r];
    const double d_lse = rows.d_lse != nullptr ? static_cast<double>(rows.d_lse[r]) : 0;
    delta[r] = static_cast<T>(dot_of_row(rows, memory, r, staging) - d_lse);
  }
}

template <class T>
double sink_gradient(const QueryRows<T>& rows, const QueryMemory& memory) {
  const double sink = static_cast<double>(*rows.sink);
  if (sink == -kInfinity<double>) return 0;  // takes no part
  const T *lse = memory.get<T>(memory.at->lse), *delta = memory.get<T>(memory.at->delta);
  double sum = 0;
  for (std::int64_t r = 0; r < rows.q_len; ++r) {
    if (lse[r] == -kInfinity<T>) continue;
    const double rest = rows.lse_rest != nullptr ? static_cast<double>(rows.lse_rest[r]) : 0;
    sum -= std::exp((sink - static_cast<double>(lse[r])) - rest) * static_cast<double>(delta[r]);
  }
  return sum;
}

template void prepare_queries(const QueryRows<float>&, const QueryMemory&, std::int64_t, std::int64_t, double*);
template void prepare_queries(const QueryRows<double>&, const QueryMemory&, std::int64_t, std::int64_t, double*);
template double sink_gradient(const QueryRows<float>&, const QueryMemory&);
template double sink_gradient(const QueryRows<double>&, const QueryMemory&);

}  // namespace heddle::cpu
