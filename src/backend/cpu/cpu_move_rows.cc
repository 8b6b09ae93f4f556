#include "backend/cpu/cpu_move_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "base/element.h"
#include "base/parallel.h"

namespace heddle::cpu {
namespace {

struct Row {
  std::int64_t from, to;  // element offsets
};

constexpr std::int64_t kMovedRows = 256;        // of one task
constexpr std::int64_t kMovedBySelf = 1 << 16;  // up to so many elements one thread moves all

/// Calls move(row) for each row of all batches and heads, on all cores if there are many.
template <class Move>
void for_each_row(const backend::MoveArguments& arguments, const Move& move) {
  const ConstTensorView& from = arguments.from;
  const TensorView& to = arguments.to;
  const std::int64_t heads = from.shape[1], pieces = (arguments.rows + kMovedRows - 1) / kMovedRows,
                     elements = from.shape[0] * heads * arguments.rows * from.shape[3];
  base::parallel_tasks(elements < kMovedBySelf ? 1 : 0, from.shape[0] * heads * pieces, [&](int, std::int64_t task) {
    const std::int64_t first = task % pieces * kMovedRows, head = task / pieces % heads, batch = task / pieces / heads;
    for (std::int64_t i = first; i < std::min(first + kMovedRows, arguments.rows); ++i) {
      const std::int64_t from_row = arguments.from_rows == nullptr ? i : arguments.from_rows[i],
                         to_row = arguments.to_rows == nullptr ? i : arguments.to_rows[i];
      move(Row{batch * from.strides[0] + head * from.strides[1] + from_row * from.strides[2],
               batch * to.strides[0] + head * to.strides[1] + to_row * to.strides[2]});
    }
  });
}

}  // namespace

void move_rows(const backend::MoveArguments& arguments) {
  const ConstTensorView& from = arguments.from;
  const TensorView& to = arguments.to;
  const std::int64_t columns = from.shape[3];
  if (arguments.adds && from.dtype != to.dtype) {
    const bool wide = from.dtype == DType::f64 || to.dtype == DType::f64;
    for_each_row(arguments, [&](const Row& row) {
      for (std::int64_t i = 0; i < columns; ++i) {
        const double sum =
            base::load_element(to.data, to.dtype, row.to + i) + base::load_element(from.data, from.dtype, row.from + i);
        // Rounded to f32, the f64 sum of two numbers of f32 is their sum in f32.
        base::store_element(to.data, to.dtype, row.to + i, wide ? sum : static_cast<float>(sum));
      }
    });
  } else if (arguments.adds) {
    base::with_storage_type(to.dtype, [&]<class T>(std::type_identity<T>) {
      if constexpr (std::is_floating_point_v<T>) {
        for_each_row(arguments, [&](const Row& row) {
          const T* terms = static_cast<const T*>(from.data) + row.from;
          T* sums = static_cast<T*>(to.data) + row.to;
          for (std::int64_t i = 0; i < columns; ++i) sums[i] += terms[i];
        });
      }
    });
  } else if (from.dtype == to.dtype) {
    const std::int64_t size = size_of(to.dtype);
    for_each_row(arguments, [&](const Row& row) {
      std::memcpy(static_cast<std::byte*>(to.data) + row.to * size,
                  static_cast<const std::byte*>(from.data) + row.from * size, static_cast<std::size_t>(columns * size));
    });
  } else {
    for_each_row(arguments, [&](const Row& row) {
      for (std::int64_t i = 0; i < columns; ++i) {
        base::store_element(to.data, to.dtype, row.to + i, base::load_element(from.data, from.dtype, row.from + i));
      }
    });
  }
}

}  // namespace heddle::cpu
