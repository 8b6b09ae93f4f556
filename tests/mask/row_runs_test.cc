// Rows of many runs, which block masks keep by windows of columns: they read as any row, their columns are those of the
// dense mask, and a run takes fewer bytes.
#include "heddle/row_runs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "heddle/block_mask.h"
#include "mask/dense.h"

namespace heddle::test {
namespace {

using Runs = std::vector<heddle::Run>;

std::string text_of(const std::vector<std::string>& rows) {
  std::string text;
  for (const std::string& row : rows) text += row + '\n';
  return text;
}

/// A mask with blocks of 1 x 1 and these rows: '#' full, '+' partial, '.' empty.
BlockMask mask_of(const std::vector<std::string>& rows) {
  const auto q = std::ssize(rows), kv = std::ssize(rows.front());
  const auto list = [&](char kind) {
    Tensor count = Tensor::zeros(DType::i32, {1, 1, q}), index = Tensor::zeros(DType::i32, {1, 1, q, kv});
    for (std::int64_t r = 0; r < q; ++r) {
      std::int32_t& found = static_cast<std::int32_t*>(count.data())[r];
      for (std::int64_t c = 0; c < kv; ++c) {
        if (rows[static_cast<std::size_t>(r)][static_cast<std::size_t>(c)] != kind) continue;
        static_cast<std::int32_t*>(index.data())[r * kv + found++] = static_cast<std::int32_t>(c);
      }
    }
    return std::pair(count, index);
  };
  const auto [partial_count, partial] = list('+');
  const auto [full_count, full] = list('#');
  return BlockMask::from_lists({partial_count, partial, full_count, full}, MaskShape::uniform(1, 1, q, kv), {1, 1},
                               leaf::kv_idx() >= 0);
}

/// Rows that change their kind from one column to the next with a chance that the row draws: from a run in some windows
/// to a run of each column. Some repeat an earlier row, or differ from it in one column.
std::vector<std::string> random_rows(std::uint64_t seed, std::int64_t rows, std::int64_t columns) {
  std::mt19937_64 rng(seed);
  const auto below = [&](std::uint64_t n) { return rng() % n; };
  std::vector<std::string> all;
  for (std::int64_t r = 0; r < rows; ++r) {
    if (!all.empty() && below(3) == 0) {
      all.push_back(all[below(all.size())]);
      if (below(2) == 0) all.back()[below(static_cast<std::uint64_t>(columns))] = "#+."[below(3)];
      continue;
    }
    const std::uint64_t change = 1 + below(3) * below(60);
    std::string row;
    for (char kind = '.'; std::ssize(row) < columns; row += kind) {
      if (below(change) == 0) kind = "#+."[below(3)];
    }
    all.push_back(row);
  }
  return all;
}

Runs runs_of(const std::string& row) {
  Runs runs;
  for (std::int32_t c = 0; c < std::ssize(row); ++c) {
    const char what = row[static_cast<std::size_t>(c)];
    if (what == '.') continue;
    const RunKind kind = what == '#' ? RunKind::full : RunKind::partial;
    if (!runs.empty() && runs.back().end == c && runs.back().kind == kind) {
      ++runs.back().end;
    } else {
      runs.push_back({c, c + 1, kind});
    }
  }
  return runs;
}

TEST(RowRuns, RowsOfAnyNumberOfRunsReadAlike) {
  for (const std::int64_t columns : {40, 127, 128, 129, 385, 600}) {
    SCOPED_TRACE(columns);
    const std::vector<std::string> rows = random_rows(static_cast<std::uint64_t>(columns), 150, columns);
    const BlockMask mask = mask_of(rows);
    for (std::int64_t r = 0; r < std::ssize(rows); ++r) {
      const RowRuns row = mask.row(0, 0, r);
      const Runs runs = runs_of(rows[static_cast<std::size_t>(r)]);
      ASSERT_EQ(Runs(row.begin(), row.end()), runs) << "row " << r;
      EXPECT_EQ(row.size(), runs.size());
      EXPECT_EQ(row.empty(), runs.empty());
      if (!runs.empty()) {
        EXPECT_EQ(row[runs.size() - 1], runs.back());
        EXPECT_EQ(row.front(), runs.front());
      }
      Runs room;
      EXPECT_TRUE(std::ranges::equal(row.side_by_side(room), runs));
      EXPECT_EQ(row == mask.row(0, 0, 0), runs == runs_of(rows.front()));
      EXPECT_TRUE(row == RowRuns(std::span<const heddle::Run>(runs)));
    }
  }
}

TEST(RowRuns, ARowBeginsAtAnyColumn) {
  constexpr std::int64_t kColumns = 300;
  const std::vector<std::string> rows = random_rows(7, 40, kColumns);
  const BlockMask mask = mask_of(rows);
  for (std::int64_t r = 0; r < std::ssize(rows); ++r) {
    for (const std::int32_t column : {0, 1, 77, 127, 128, 129, 255, 256, 299, 300, 1000}) {
      std::string rest = rows[static_cast<std::size_t>(r)];
      std::fill_n(rest.begin(), std::min<std::int64_t>(column, kColumns), '.');
      const RowRuns row = mask.row(0, 0, r).from(column);
      ASSERT_EQ(Runs(row.begin(), row.end()), runs_of(rest)) << "row " << r << " from " << column;
      Runs room;
      EXPECT_TRUE(std::ranges::equal(row.side_by_side(room), runs_of(rest)));
      EXPECT_TRUE(row.from(column) == row);
    }
  }
}

TEST(RowRuns, ColumnsAreThoseOfTheDenseMask) {
  struct Shape {
    std::int64_t rows, columns;
  };
  // More differences from row to row than 32 a column turn by windows; few rows and columns do not.
  for (const auto& [rows, columns] : {Shape{600, 300}, {257, 128}, {128, 513}, {40, 600}, {600, 40}}) {
    SCOPED_TRACE(rows);
    const std::vector<std::string> drawn = random_rows(static_cast<std::uint64_t>(rows + columns), rows, columns);
    const BlockMask mask = mask_of(drawn), turned = mask.transposed();
    EXPECT_EQ(run_classes(mask, 0, 0), text_of(drawn));
    EXPECT_TRUE(run_classes(turned, 0, 0) == exchanged(text_of(drawn), rows, columns));
    EXPECT_TRUE(turned.transposed() == mask);
    std::int64_t full = 0, partial = 0;
    for (const std::string& row : drawn) {
      full += std::ranges::count(row, '#');
      partial += std::ranges::count(row, '+');
    }
    for (const BlockMask::Statistics& s : {mask.statistics(), turned.statistics()}) {
      EXPECT_EQ(s.full, full);
      EXPECT_EQ(s.partial, partial);
    }
  }
}

TEST(RowRuns, RunsOfRowsThatShareNothingTakeFewBytes) {
  std::mt19937_64 rng(3);
  std::vector<std::string> rows(400, std::string(1000, '.'));
  for (std::string& row : rows) {
    for (char& block : row) block = "#+"[rng() % 2];
  }
  const BlockMask mask = mask_of(rows);
  const BlockMask::Statistics s = mask.statistics();
  EXPECT_GT(s.runs, 400 * 450);
  EXPECT_LT(s.bytes, 4 * s.runs);
  EXPECT_LT(mask.transposed().statistics().bytes, 4 * s.runs);
}

}  // namespace
}  // namespace heddle::test
