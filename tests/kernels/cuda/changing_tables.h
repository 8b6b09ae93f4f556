// A plan of paged keys that runs while lengths and the table on the device change.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "kernels/cuda/gpu_runs.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {

using Lengths = std::vector<std::int64_t>;
using Table = std::vector<std::int32_t>;

inline constexpr std::int64_t kSequences = 4, kColumns = 21, kRows = 16, kKeys = kColumns * kRows;

inline Lengths clamped(const Lengths& values, std::int64_t most) {
  Lengths all = values;
  for (std::int64_t& value : all) value = std::clamp<std::int64_t>(value, 0, most);
  return all;
}

/// All of its pages hold keys: 4 sequences of up to 21 pages, and two pages more.
inline CaseSpec changing(std::uint64_t seed, bool packed, std::int64_t queries) {
  CaseSpec spec;
  spec.seed = seed;
  spec.threads = 1;
  spec.batch = packed ? 1 : kSequences;
  spec.kv_heads = 2;
  spec.group = 2;
  spec.q_rows = queries;
  spec.kv_rows = packed ? kSequences * kKeys : kKeys;
  spec.page_rows = kRows;
  spec.qk_dim = spec.v_dim = 128;
  spec.q_dtype = spec.k_dtype = spec.v_dtype = DType::bf16;
  spec.layout = Layout::bshd;
  spec.mask = "causal_lower_right";
  return spec;
}

/// Changes before one run. The table is dealt anew each time from the pages that hold keys; `nonsense`: the first
/// entries of sequences are no pages, but stand for the first and the last one.
struct Change {
  Lengths q, kv;  // lengths; packed: q's sums
  bool nonsense = false;
};

class Tables {
 public:
  explicit Tables(GpuCase& c) {
    const ConstTensorView& table = *c.options().page_table;
    const auto* entries = static_cast<const std::int32_t*>(table.data);
    const std::int64_t used = c.host().spec().kv_rows / kRows;
    for (std::int64_t b = 0; b < table.shape[0]; ++b) {
      for (std::int64_t n = 0; n < used; ++n) pages_.push_back(entries[b * table.shape[1] + n]);
    }
    last_ = static_cast<std::int32_t>(c.tensors().k.shape[0] - 1);
  }
  /// [kSequences + 1, kColumns], of which the last row is of no sequence of the plan's.
  void deal(std::mt19937_64& rng, bool nonsense) {
    std::ranges::shuffle(pages_, rng);
    there_.assign(pages_.begin(), pages_.begin() + kSequences * kColumns);
    right_ = there_;
    for (std::int64_t b = 0; nonsense && b < kSequences; ++b) {
      // Where the nearest page holds keys.
      const auto i = static_cast<std::size_t>(b * kColumns);
      const std::int32_t nearest = b % 2 == 0 ? 0 : last_;
      if (std::ranges::find(pages_, nearest) == pages_.end()) continue;
      there_[i] = b % 2 == 0 ? -7 : 2'000'000'000;
      right_[i] = nearest;
    }
    right_.resize((kSequences + 1) * kColumns, 0);
  }
  const Table& there() const { return there_; }
  const Table& right() const { return right_; }

 private:
  Table pages_, there_, right_;
  std::int32_t last_;
};

/// Lengths and pages as the reference takes them of a run. `kv` and the table have each sequence; `q` has none, a
/// length each, or one number more, which are sums.
struct Right {
  Lengths kv;
  Table table;
  Lengths q = {};
};

/// Runs the plan of `options` once for each change, or replays its graph. `set(change)` writes what the run reads, and
/// returns the Right of it.
template <class Each, class Set>
void expect_each(GpuCase& c, const AttentionOptions& options, const std::vector<Each>& changes, bool graph, Set&& set) {
  Runs runs(c, options);
  std::optional<cuda::ContextScope> scope;
  if (gpu_backend() == BackendChoice::cuda) scope.emplace(0);
  if (graph) runs.capture();
  for (const Each& change : changes) {
    const Right own = set(change);
    const auto view = [](const Lengths& values) {
      return ConstTensorView(values.data(), DType::i64, {std::ssize(values)});
    };
    AttentionOptions& right = c.options();
    right.cu_seqlens_q = right.q_lengths = {};
    if (!own.q.empty()) (own.q.size() > own.kv.size() ? right.cu_seqlens_q : right.q_lengths) = view(own.q);
    right.kv_lengths = view(own.kv);
    right.page_table = ConstTensorView(own.table.data(), DType::i32, {std::ssize(own.kv), kColumns});
    graph ? runs.replay() : runs.run();
    judge(c.host());
  }
  if (graph) runs.destroy_graph();
}

/// Lists of such entries, whose starts change with each run: within the list, beyond its ends, and going backwards.
inline void expect_each_list(GpuCase& c, bool graph) {
  constexpr int kEntries = kSequences * kColumns;
  const std::vector<std::vector<std::int32_t>> changes = {{0, kColumns, 2 * kColumns, 3 * kColumns, kEntries},
                                                          {-3, 1, 1, 2 * kColumns, 2147483647},
                                                          {2, kColumns, 3, kEntries, kEntries - 1},
                                                          {kEntries, 0, kColumns, kColumns + 3, kColumns + 4}};
  const Lengths lengths = {kKeys, 17, std::numeric_limits<std::int64_t>::max(), 200};
  Tables tables(c);
  Numbers<std::int64_t> kv({kSequences});
  Numbers<std::int32_t> list({kEntries}), starts({kSequences + 1});
  AttentionOptions options = c.options();
  options.cu_seqlens_q = options.q_lengths = {};
  options.kv_lengths = kv.view();
  options.page_table = list.view();
  options.page_starts = starts.view();
  options.max_kv_len = kKeys;
  expect_each(c, options, changes, graph, [&](const std::vector<std::int32_t>& change) {
    tables.deal(c.host().rng(), false);
    kv.set(lengths);
    list.set(Table(tables.there().begin(), tables.there().begin() + kEntries));
    starts.set(change);
    Right right = {.kv = {}, .table = Table(static_cast<std::size_t>(kEntries), 0)};
    for (std::size_t b = 0; b < kSequences; ++b) {
      const int first = std::clamp(change[b], 0, kEntries), end = std::clamp(change[b + 1], 0, kEntries),
                pages = std::min<int>(std::max(end - first, 0), kColumns);
      std::copy_n(tables.there().begin() + first, pages, right.table.begin() + static_cast<int>(b) * kColumns);
      right.kv.push_back(std::min<std::int64_t>({lengths[b], kKeys, std::int64_t{pages} * kRows}));
    }
    return right;
  });
}

/// Groups of sequences whose first pages are the same, which change with each run, as lengths and the table do.
struct Groups {
  std::vector<std::int32_t> group, len;
  Lengths kv;
};
inline void expect_each_group(GpuCase& c, const std::vector<Groups>& changes, bool graph) {
  Tables tables(c);
  Numbers<std::int64_t> kv({kSequences});
  Numbers<std::int32_t> table({kSequences, kColumns}), group({kSequences}), len({kSequences});
  AttentionOptions options = c.options();
  options.cu_seqlens_q = options.q_lengths = {};
  options.kv_lengths = kv.view();
  options.page_table = table.view();
  options.prefix_group = group.view();
  options.prefix_len = len.view();
  expect_each(c, options, changes, graph, [&](const Groups& change) {
    tables.deal(c.host().rng(), false);
    Table shared(tables.there().begin(), tables.there().begin() + kSequences * kColumns);
    for (std::size_t b = 0; b < kSequences; ++b) {
      const auto first = std::ranges::find(change.group, change.group[b]) - change.group.begin();
      if (change.group[b] < 0) continue;
      const std::int64_t keys = std::clamp<std::int64_t>(change.len[b], 0, kKeys);
      const auto pages = static_cast<int>((keys + kRows - 1) / kRows);
      std::copy_n(shared.begin() + first * kColumns, pages, shared.begin() + static_cast<std::ptrdiff_t>(b) * kColumns);
    }
    kv.set(change.kv);
    table.set(shared);
    group.set(change.group);
    len.set(change.len);
    return Right{.kv = clamped(change.kv, kKeys), .table = shared};
  });
}

inline void expect_each_change(GpuCase& c, const std::vector<Change>& changes, bool packed, bool graph) {
  const std::int64_t queries = c.host().spec().q_rows;
  Tables tables(c);
  Numbers<std::int64_t> q({kSequences + packed}), kv({kSequences});
  Numbers<std::int32_t> table({kSequences, kColumns});
  AttentionOptions options = c.options();
  options.cu_seqlens_q = {};
  (packed ? options.cu_seqlens_q : options.q_lengths) = q.view();
  if (packed) options.max_q_len = std::min<std::int64_t>(queries, 100);
  options.kv_lengths = kv.view();
  options.page_table = table.view();
  expect_each(c, options, changes, graph, [&](const Change& change) {
    tables.deal(c.host().rng(), change.nonsense);
    q.set(change.q);
    kv.set(change.kv);
    table.set(tables.there());
    Right right = {
        .kv = clamped(change.kv, kKeys), .table = tables.right(), .q = packed ? change.q : clamped(change.q, queries)};
    // Packed: queries behind the last sequence are one more, without keys.
    if (packed) right.q.push_back(queries), right.kv.push_back(0);
    return right;
  });
}

}  // namespace heddle::test
