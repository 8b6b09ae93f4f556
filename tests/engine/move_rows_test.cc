// move_rows on the CPU: rows by lists, stored and added, and what it refuses.
#include "heddle/move_rows.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "expect_error.h"
#include "heddle/heddle.h"

namespace heddle {
namespace {

using testing::HasSubstr;

/// Whole numbers that all dtypes of 16 bits and more hold.
Tensor counted(DType dtype, const Dims& shape, int first) {
  Tensor x = Tensor::empty(DType::f64, shape);
  for (std::int64_t i = 0; i < x.count(); ++i)
    static_cast<double*>(x.data())[i] = static_cast<double>((first + i) % 127);
  return x.to(dtype);
}

Tensor list_of(const std::vector<std::int32_t>& rows) {
  Tensor list = Tensor::empty(DType::i32, {std::ssize(rows)});
  std::ranges::copy(rows, static_cast<std::int32_t*>(list.data()));
  return list;
}

struct Case {
  DType from, to;
  bool adds;
};

TEST(MoveRows, StoresAndAddsTheRowsOfLists) {
  constexpr std::int64_t kFrom = 700, kTo = 900, kMoved = 600;  // more than a task has
  std::vector<std::int32_t> leave, come;
  for (int i = 0; i < kMoved; ++i) {
    leave.push_back(i * 7 % static_cast<int>(kFrom));
    come.push_back(static_cast<int>(kTo) - 1 - i);
  }
  for (const Case& each : {Case{DType::f32, DType::f32, false},
                           {DType::bf16, DType::bf16, false},
                           {DType::f32, DType::bf16, false},
                           {DType::f32, DType::f32, true},
                           {DType::f64, DType::f64, true},
                           {DType::f32, DType::f16, true}}) {
    const Tensor from = counted(each.from, {2, 3, kFrom, 40}, 5), to = counted(each.to, {2, 3, kTo, 40}, 77),
                 before = counted(each.to, {2, 3, kTo, 40}, 77);
    move_rows(from, to, {.from_rows = list_of(leave), .to_rows = list_of(come), .adds = each.adds});
    for (std::int64_t head = 0; head < 6; ++head) {
      for (std::int64_t row = 0; row < kTo; ++row) {
        const std::int64_t i = kTo - 1 - row;
        for (const std::int64_t d : {0, 39}) {
          const Dims at{head / 3, head % 3, row, d};
          double wanted = get_element(before, at);
          if (i < kMoved) {
            const double moved = get_element(from, {head / 3, head % 3, leave[static_cast<std::size_t>(i)], d});
            wanted = each.adds ? wanted + moved : moved;
          }
          ASSERT_EQ(get_element(to, at), wanted) << name(each.from) << " " << head << " " << row;
        }
      }
    }
  }
}

TEST(MoveRows, MovesAllRowsWithoutListsAndNoneOfAnEmptyList) {
  const Tensor from = counted(DType::f32, {1, 2, 5, 3}, 1), to = counted(DType::f32, {1, 2, 5, 3}, 50),
               before = counted(DType::f32, {1, 2, 5, 3}, 50);
  move_rows(from, to, {.from_rows = list_of({}), .to_rows = list_of({})});
  EXPECT_EQ(get_element(to, {0, 1, 4, 2}), get_element(before, {0, 1, 4, 2}));
  move_rows(from, to);
  for (std::int64_t row = 0; row < 5; ++row)
    EXPECT_EQ(get_element(to, {0, 1, row, 2}), get_element(from, {0, 1, row, 2}));
}

TEST(MoveRows, RefusesBeforeItWrites) {
  const Tensor from = counted(DType::f32, {1, 2, 5, 3}, 1), to = counted(DType::f32, {1, 2, 9, 3}, 50);
  const auto refuses = [&](const ConstTensorView& x, const TensorView& y, const RowMoves& how, const char* sentence) {
    expect_error([&] { move_rows(x, y, how); }, ErrorCode::invalid_argument, HasSubstr(sentence));
  };
  refuses(from, to, {}, "5 rows leave from and 9 come to to");
  refuses(from, to, {.to_rows = list_of({0, 1, 2, 3})}, "5 rows leave from and 4 come");
  refuses(from, to, {.to_rows = list_of({0, 1, 2, 3, 9})}, "to_rows[4] is 9; 0 to 8 are accepted");
  refuses(from, to, {.from_rows = list_of({0, -1}), .to_rows = list_of({0, 1})}, "from_rows[1] is -1; 0 to 4");
  refuses(from, counted(DType::f32, {1, 2, 5, 4}, 1), {}, "the same B, H and D are accepted");
  refuses(from, counted(DType::f32, {2, 5, 3}, 1), {}, "to has");
  refuses(from, Tensor::empty(DType::i32, {1, 2, 5, 3}), {}, "i32");
  refuses(from, to, {.to_rows = Tensor::empty(DType::i64, {5})}, "contiguous i32 [n] is accepted");
  EXPECT_EQ(get_element(to, {0, 0, 0, 0}), 50);
}

}  // namespace
}  // namespace heddle
