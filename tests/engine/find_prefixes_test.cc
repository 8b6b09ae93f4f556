// Sequences whose first pages are the same, found in a table and in a list.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "expect_error.h"
#include "heddle/kv_cache.h"

namespace heddle::test {
namespace {

using Integers = std::vector<std::int32_t>;

ConstTensorView view_of(const Integers& values) {
  return ConstTensorView(values.data(), DType::i32, {std::ssize(values)});
}
ConstTensorView table_of(const Integers& entries, std::int64_t columns) {
  return ConstTensorView(entries.data(), DType::i32, {std::ssize(entries) / columns, columns});
}

TEST(FindPrefixes, GroupsOfNeighbours) {
  const Integers table = {5, 1, 2, 5, 1, 3, 5, 4, 0, 6, 7, 8}, lengths = {48, 40, 30, 48};
  const Prefixes found = find_prefixes(table_of(table, 3), view_of(lengths), 16);
  // Two that share two pages save as much as three that share one, and come first.
  EXPECT_EQ(found.group, (Integers{0, 0, -1, -1}));
  EXPECT_EQ(found.len, (Integers{32, 32, 0, 0}));
  // Where three save more.
  const Integers wide = {5, 1, 5, 2, 5, 3, 5, 4}, all(4, 32);
  const Prefixes four = find_prefixes(table_of(wide, 2), view_of(all), 16);
  EXPECT_EQ(four.group, (Integers{0, 0, 0, 0}));
  EXPECT_EQ(four.len, (Integers{16, 16, 16, 16}));
}

// Entries behind a sequence's last page do not matter, and a page that is not full counts with its keys.
TEST(FindPrefixes, KeysThatBothHave) {
  const Integers table = {1, 2, 9, 1, 2, 9, 9, 9, 9}, lengths = {20, 25, 0};
  const Prefixes found = find_prefixes(table_of(table, 3), view_of(lengths), 16);
  EXPECT_EQ(found.group, (Integers{0, 0, -1}));
  EXPECT_EQ(found.len, (Integers{20, 20, 0}));
}

TEST(FindPrefixes, Lists) {
  const Integers list = {-1, 3, 4, 3, 4, 5, 8}, starts = {1, 3, 6, 7}, lengths = {8, 11, 3};
  const Prefixes found = find_prefixes(view_of(list), view_of(lengths), 4, view_of(starts));
  EXPECT_EQ(found.group, (Integers{0, 0, -1}));
  EXPECT_EQ(found.len, (Integers{8, 8, 0}));
}

/// The most keys that groups of the sequences from `first` on save.
std::int64_t most_saved(const Integers& shared, std::size_t first) {
  if (first >= shared.size()) return 0;
  std::int64_t most = most_saved(shared, first + 1), keys = 1 << 30;
  for (std::size_t end = first + 2; end <= shared.size(); ++end) {
    keys = std::min<std::int64_t>(keys, shared[end - 1]);
    most = std::max(most, keys * static_cast<std::int64_t>(end - first - 1) + most_saved(shared, end));
  }
  return most;
}

TEST(FindPrefixes, NoGroupsSaveMore) {
  std::mt19937 rng(3);
  for (int round = 0; round < 200; ++round) {
    constexpr std::int64_t kColumns = 4, kSequences = 8, kPage = 4;
    Integers table(kSequences * kColumns), lengths;
    for (std::int32_t& page : table) page = static_cast<std::int32_t>(rng() % 2);
    for (std::int64_t b = 0; b < kSequences; ++b) {
      lengths.push_back(static_cast<std::int32_t>(rng() % (kColumns * kPage + 1)));
    }
    const Prefixes found = find_prefixes(table_of(table, kColumns), view_of(lengths), kPage);
    Integers shared = {0};
    std::int64_t saved = 0;
    for (std::size_t b = 1; b < kSequences; ++b) {
      std::int32_t keys = 0;
      const auto page = [&](std::size_t of) { return table[of * kColumns + static_cast<std::size_t>(keys / kPage)]; };
      while (keys < std::min(lengths[b - 1], lengths[b]) && page(b - 1) == page(b)) ++keys;
      shared.push_back(keys);
      if (found.group[b] < 0 || found.group[b] != found.group[b - 1]) continue;
      EXPECT_LE(found.len[b], keys);
      EXPECT_EQ(found.len[b], found.len[b - 1]);
      saved += found.len[b];
    }
    EXPECT_EQ(saved, most_saved(shared, 0)) << round;
  }
}

TEST(FindPrefixes, Refusals) {
  const Integers table = {0, 1, 0, 2}, lengths = {8, 3}, three = {0, 1, 4}, back = {0, 3, 2};
  const auto refused = [](auto&& call, const char* sentence) {
    expect_error(call, ErrorCode::invalid_argument, sentence);
  };
  refused([&] { find_prefixes(table_of(table, 2), view_of(three), 4); },
          "kv_lengths has shape [3]; [2] is accepted, an entry a sequence of page_table");
  refused([&] { find_prefixes(table_of(table, 2), view_of(lengths), 0); }, "page_size is 0; at least 1 is accepted");
  refused([&] { find_prefixes(table_of(table, 2), view_of(lengths), 3); },
          "kv_lengths[0] is 8; 0 to 6 are accepted, the rows of 2 pages of 3");
  refused([&] { find_prefixes(view_of(table), view_of(lengths), 4); },
          "page_table has shape [4]; two axes are accepted");
  refused([&] { find_prefixes(view_of(table), view_of(lengths), 4, view_of(back)); },
          "page_starts gives sequence 1 the entries from 3 to 2; entries of the list, in order, are accepted");
  ConstTensorView there = table_of(table, 2);
  there.device = {DeviceKind::cuda, 0};
  refused([&] { find_prefixes(there, view_of(lengths), 4); },
          "page_table is on cuda:0; the CPU is accepted, where it is read");
}

}  // namespace
}  // namespace heddle::test
