// The kernel that copies rows, on the host: it copies every row, from words of every width, fills it up with zeros, and
// reads and writes nothing else.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <random>
#include <vector>

// The stand-ins for the GPU come before the kernel.
// clang-format off
#include "kernels/cuda/host_cta.h"
#include "around/copied_rows_kernel.cuh"
// clang-format on

namespace heddle::cuda {
namespace {

using shared::CopiedRows;
using shared::CopiedRowsParams;
using shared::CopiedSpan;

constexpr unsigned char kUnwritten = 0xA5;

/// Rows at places of a tensor's own, in a memory of random bytes, and where they are to be copied.
struct Rows {
  std::vector<unsigned char> from, to;
  CopiedRows rows{};
  Rows(int outer, int heads, int rows_there, int row_bytes, int step, int width, std::mt19937& random)
      : from(static_cast<std::size_t>(outer) * heads * rows_there * step - (step - row_bytes) + width % 16) {
    for (unsigned char& byte : from) byte = static_cast<unsigned char>(random());
    // The last row ends with the memory, so that a tool which watches memory sees a read behind it.
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(from.data()) % 16, 0U);
    rows = {.from = reinterpret_cast<const char*>(from.data() + width % 16),
            .to = nullptr,
            .from_step = {1LL * heads * rows_there * step, 1LL * rows_there * step, step},
            .to_row_step = (row_bytes + 15) / 16 * 16LL,
            .sequences = outer,
            .heads = heads,
            .rows = rows_there,
            .row_bytes = row_bytes,
            .width = width,
            .span = CopiedSpan::all,
            .paged = 0,
            .shares = 0};
  }
  void make_room() {
    constexpr std::size_t kGuard = 256;
    to.assign(static_cast<std::size_t>(rows.sequences) * rows.heads * rows.rows * rows.to_row_step + 2 * kGuard,
              kUnwritten);
    const std::size_t to_16 = (16 - reinterpret_cast<std::uintptr_t>(to.data()) % 16) % 16;
    rows.to = reinterpret_cast<char*>(to.data() + kGuard / 2 + to_16);
    rows.shares = shared::copied_shares(rows.sequences, rows.heads, rows.rows);
  }
};

/// `length_of`: rows of a sequence; `source_of`: where a row of a sequence and head stands.
template <class LengthOf, class SourceOf>
void expect_copied(const Rows& all, LengthOf&& length_of, SourceOf&& source_of) {
  const CopiedRows& rows = all.rows;
  std::vector<unsigned char> expected(all.to.size(), kUnwritten);
  unsigned char* const begin = expected.data() + (rows.to - reinterpret_cast<const char*>(all.to.data()));
  for (int sequence = 0; sequence < rows.sequences; ++sequence) {
    for (int head = 0; head < rows.heads; ++head) {
      for (int row = 0; row < std::min(length_of(sequence), rows.rows); ++row) {
        const long long number = (1LL * sequence * rows.heads + head) * rows.rows + row;
        std::memset(begin + number * rows.to_row_step, 0, static_cast<std::size_t>(rows.to_row_step));
        std::memcpy(begin + number * rows.to_row_step, source_of(sequence, head, row),
                    static_cast<std::size_t>(rows.row_bytes));
      }
    }
  }
  EXPECT_EQ(expected, all.to);
}

void launch(CopiedRowsParams params, std::initializer_list<CopiedRows> tensors, int ctas) {
  int count = 0;
  for (const CopiedRows& tensor : tensors) {
    params.tensors[count++] = tensor;
    params.shares += tensor.shares;
  }
  gridDim.x = static_cast<unsigned>(ctas);
  host_cta::launch(copy_rows, ctas, shared::kCopyThreads, params);
}

TEST(CopyRows, OfEveryWidthAndLength) {
  std::mt19937 random(1);
  for (const int width : {1, 2, 4, 8, 16}) {
    for (const int words : {1, 3, 8, 33, 255, 256}) {
      SCOPED_TRACE(fmt::format("{} words of {} bytes", words, width));
      const int bytes = words * width;
      Rows one(2, 3, 70, bytes, bytes + 3 * width, width, random), two(1, 1, 5, bytes, bytes, width, random);
      one.make_room(), two.make_room();
      launch({}, {one.rows, two.rows}, 4);
      for (const Rows* rows : {&one, &two}) {
        expect_copied(
            *rows, [&](int) { return rows->rows.rows; },
            [&](int sequence, int head, int row) {
              const long long* step = rows->rows.from_step;
              return rows->rows.from + sequence * step[0] + head * step[1] + row * step[2];
            });
      }
    }
  }
}

// Backwards, and from one head for all.
TEST(CopyRows, AtStepsOfTheirOwn) {
  std::mt19937 random(2);
  Rows all(2, 4, 130, 34, 36, 2, random);
  all.make_room();
  all.rows.from += 129LL * 36;
  all.rows.from_step[1] = 0;
  all.rows.from_step[2] = -36;
  launch({}, {all.rows}, 3);
  expect_copied(
      all, [](int) { return 130; },
      [&](int sequence, int, int row) { return all.rows.from + sequence * all.rows.from_step[0] - row * 36LL; });
}

// No more than its sequence has, which may be nothing, or more than there is room for.
TEST(CopyRows, UpToTheirLengths) {
  std::mt19937 random(3);
  shared::SequenceSpan spans[4] = {};
  const int q_lengths[] = {0, 1, 64, 999}, kv_lengths[] = {65, 0, 100, 99};
  for (int i = 0; i < 4; ++i) spans[i].q_len = q_lengths[i], spans[i].kv_len = kv_lengths[i];
  Rows queries(4, 2, 100, 24, 24, 8, random), keys(4, 1, 100, 16, 48, 16, random), all(4, 1, 100, 16, 16, 16, random);
  queries.rows.span = CopiedSpan::queries;
  keys.rows.span = CopiedSpan::keys;
  for (Rows* rows : {&queries, &keys, &all}) rows->make_room();
  CopiedRowsParams params{};
  params.sequences = spans;
  launch(params, {queries.rows, keys.rows, all.rows}, 5);
  const auto in_order = [](const Rows& rows) {
    return [&rows](int sequence, int head, int row) {
      const long long* step = rows.rows.from_step;
      return rows.rows.from + sequence * step[0] + head * step[1] + row * step[2];
    };
  };
  expect_copied(
      queries, [&](int i) { return q_lengths[i]; }, in_order(queries));
  expect_copied(
      keys, [&](int i) { return kv_lengths[i]; }, in_order(keys));
  expect_copied(
      all, [](int) { return 100; }, in_order(all));
}

// Pages in any order; entries that are no pages count as the nearest, and those past an end are not read.
TEST(CopyRows, FromPages) {
  std::mt19937 random(4);
  constexpr int kPages = 50, kSequences = 3, kHeads = 2, kColumns = 40;
  const int lengths[kSequences] = {97, 0, 120};
  shared::SequenceSpan spans[kSequences] = {};
  for (int i = 0; i < kSequences; ++i) spans[i].kv_len = lengths[i];
  for (const int page_rows : {1, 3, 16, 128}) {
    SCOPED_TRACE(page_rows);
    Rows pages(kPages, kHeads, page_rows, 10, 14, 2, random);
    pages.rows.paged = 1;
    pages.rows.span = CopiedSpan::keys;
    pages.rows.sequences = kSequences;
    pages.rows.rows = 120;
    pages.make_room();
    std::vector<int> table(static_cast<std::size_t>(kSequences) * kColumns * 3 * 2);
    for (int& entry : table) entry = static_cast<int>(random() % kPages);
    table[0] = -7;
    table[2LL * kColumns * 6] = kPages + 1000;
    CopiedRowsParams params{};
    params.sequences = spans;
    params.page_rows = page_rows;
    params.page_table = {.data = table.data(), .stride = {kColumns * 6LL, 2}, .pages = kPages};
    launch(params, {pages.rows}, 2);
    const auto expect_pages = [&](const auto& first_entry) {
      expect_copied(
          pages, [&](int i) { return lengths[i]; },
          [&](int sequence, int head, int row) {
            const int entry = table[first_entry(sequence) * 2UL + row / page_rows * 2UL];
            const long long* step = pages.rows.from_step;
            return pages.rows.from + std::clamp(entry, 0, kPages - 1) * step[0] + head * step[1] +
                   row % page_rows * step[2];
          });
    };
    expect_pages([](int sequence) { return static_cast<std::size_t>(sequence) * kColumns * 3; });
    // Parts of a list.
    const int starts[] = {40, 0, 170, 0, 200, 0};
    params.page_table.stride[0] = 0;
    params.page_table.starts = {starts, 2, static_cast<int>(table.size() / 2)};
    launch(params, {pages.rows}, 2);
    expect_pages([&](int sequence) { return static_cast<std::size_t>(starts[2 * sequence]); });
  }
}

}  // namespace
}  // namespace heddle::cuda
