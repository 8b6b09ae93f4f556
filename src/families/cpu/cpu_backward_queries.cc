#include "families/cpu/cpu_backward_queries.h"

#include <cmath>
#include <limits>

#include "base/element.h"
#include "families/cpu/cpu_backward_step.h"

namespace heddle::cpu {
namespace {

template <class T>
constexpr T kInfinity = std::numeric_limits<T>::infinity();

bool is_zero(const ConstRows& rows, std::int64_t row, std::int64_t count) {
  const std::int64_t offset = rows.offset(row);
  return base::with_storage_type(rows.dtype, [&]<class Storage>(std::type_identity<Storage>) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (base::decode(base::load_raw<Storage>(rows.data, offset + i)) != 0) return false;
    }
    return true;
  });
}

/// dO.o of row r. Where nothing attends, o is 0 whatever dO is: dO.o is then 0, not 0 times what dO holds.
template <class T>
double dot_of_row(const QueryRows<T>& rows, const QueryMemory& memory, std::int64_t r) {
  const T lse = rows.lse[r];
  const bool alone = lse == -kInfinity<T> || (rows.sink != nullptr && lse == *rows.sink);
  if (alone && is_zero(rows.o, r, rows.v_dim)) return 0;
  if (memory.at->bricks && rows.o.dtype == DType::bf16) {
    const auto row = [&](const ConstRows& x) { return static_cast<const std::uint16_t*>(x.data) + x.offset(r); };
    return dot_of_bf16(row(rows.d_o), row(rows.o), rows.v_dim);
  }
  const bool wide = rows.o.dtype == DType::f64 || rows.d_o.dtype == DType::f64;
  return wide ? dot(RowPair<double>{rows.d_o, rows.o, r, rows.v_dim})
              : dot(RowPair<float>{rows.d_o, rows.o, r, rows.v_dim});
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
void prepare_queries(const QueryRows<T>& rows, const QueryMemory& memory, std::int64_t first, std::int64_t end) {
  pack_queries(rows, memory, first, end);
  if (rows.lse == nullptr) return;
  T *lse = memory.get<T>(memory.at->lse), *delta = memory.get<T>(memory.at->delta);
  for (std::int64_t r = first; r < end; ++r) {
    lse[r] = rows.lse[r];
    if (rows.lse_rest != nullptr) memory.get<T>(memory.at->lse_rest)[r] = rows.lse_rest[r];
    const double d_lse = rows.d_lse != nullptr ? static_cast<double>(rows.d_lse[r]) : 0;
    delta[r] = static_cast<T>(dot_of_row(rows, memory, r) - d_lse);
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

template void prepare_queries(const QueryRows<float>&, const QueryMemory&, std::int64_t, std::int64_t);
template void prepare_queries(const QueryRows<double>&, const QueryMemory&, std::int64_t, std::int64_t);
template double sink_gradient(const QueryRows<float>&, const QueryMemory&);
template double sink_gradient(const QueryRows<double>&, const QueryMemory&);

}  // namespace heddle::cpu
