#include "problem/pages.h"

#include <limits>

#include "base/element.h"
#include "problem/one_device.h"
#include "problem/refuse.h"

namespace heddle::problem {

std::int64_t paged_rows(const AttentionTensors& tensors, const ConstTensorView& page_table) {
  check_view("page_table", page_table);
  check_beside("page_table", page_table, tensors.q.device);
  if (page_table.rank() != 2) {
    refuse("page_table has shape {}; [B, max_pages] is accepted", to_string(page_table.shape));
  }
  if (page_table.dtype != DType::i32) refuse("page_table is {}; i32 is accepted", heddle::name(page_table.dtype));
  const std::int64_t rows = tensors.k.shape[2];
  if (rows == 0) refuse("k has pages of 0 rows; at least 1 is accepted");
  std::int64_t all = 0;
  if (__builtin_mul_overflow(page_table.shape[1], rows, &all) || all > std::numeric_limits<std::int32_t>::max()) {
    refuse("page_table lists {} pages of {} rows for a sequence; up to 2147483647 rows are accepted",
           page_table.shape[1], rows);
  }
  return all;
}

void check_pages(const AttentionProblem& problem, const ConstTensorView& page_table, std::int64_t pages) {
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t keys = problem.sequences[static_cast<std::size_t>(b)].kv_len;
    for (std::int64_t n = 0; n * problem.page_rows < keys; ++n) {
      const auto page =
          base::load_raw<std::int32_t>(page_table.data, b * page_table.strides[0] + n * page_table.strides[1]);
      if (page >= 0 && page < pages) continue;
      refuse("page_table[{}, {}] is {}, for the keys of a sequence of {}; pages are numbered from 0 to {}", b, n, page,
             keys, pages - 1);
    }
  }
}

}  // namespace heddle::problem
