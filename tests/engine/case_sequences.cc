// The sequences of a case: lengths, cumulative lengths, starts, granules, pages, slots and prefixes.
#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "engine/attention_case.h"

namespace heddle::test {
namespace {

Tensor i32_tensor(const std::vector<std::int64_t>& values) {
  Tensor tensor = Tensor::empty(DType::i32, {std::ssize(values)});
  for (std::size_t i = 0; i < values.size(); ++i) {
    static_cast<std::int32_t*>(tensor.data())[i] = static_cast<std::int32_t>(values[i]);
  }
  return tensor;
}

// Lengths with 0 and the full size among them.
std::vector<std::int64_t> draw_lengths(AttentionCase& c, std::int64_t count, std::int64_t full) {
  std::vector<std::int64_t> lengths;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t kind = c.below(4);
    lengths.push_back(kind == 0 ? 0 : kind == 1 ? full : c.below(full + 1));
  }
  return lengths;
}

// Parts, some of them empty, that add up to `total`.
std::vector<std::int64_t> draw_parts(AttentionCase& c, std::int64_t count, std::int64_t total) {
  std::vector<std::int64_t> parts;
  for (std::int64_t i = 0; i + 1 < count; ++i) {
    parts.push_back(c.below(3) == 0 ? 0 : c.below(total + 1));
    total -= parts.back();
  }
  parts.push_back(total);
  return parts;
}

std::vector<std::int64_t> cumulative(const std::vector<std::int64_t>& parts) {
  std::vector<std::int64_t> sums = {0};
  for (std::int64_t part : parts) sums.push_back(sums.back() + part);
  return sums;
}

}  // namespace

void AttentionCase::make_sequences() {
  if (spec_.sequences == "packed" || spec_.sequences == "slots") {
    sequences_ = 1 + below(5);
    q_lengths_ = draw_parts(*this, sequences_, spec_.q_rows);
    kv_lengths_ = draw_parts(*this, sequences_, spec_.kv_rows);
    options_.cu_seqlens_q = keep(i32_tensor(cumulative(q_lengths_)));
    if (spec_.page_rows > 0) {
      kv_lengths_ = draw_lengths(*this, sequences_, spec_.kv_rows);
    } else {
      kv_begins_ = cumulative(kv_lengths_);
      options_.cu_seqlens_kv = keep(i32_tensor(kv_begins_).to(DType::i64));
    }
    if (spec_.sequences == "slots") {
      for (std::int64_t& length : kv_lengths_) length = draw_lengths(*this, 1, length).front();
      options_.kv_lengths = keep(i32_tensor(kv_lengths_));
    }
  } else {
    sequences_ = spec_.batch;
    q_lengths_.assign(static_cast<std::size_t>(sequences_), spec_.q_rows);
    kv_lengths_.assign(static_cast<std::size_t>(sequences_), spec_.kv_rows);
  }
  if (spec_.sequences == "lengths") {
    q_lengths_ = draw_lengths(*this, sequences_, spec_.q_rows);
    kv_lengths_ = draw_lengths(*this, sequences_, spec_.kv_rows);
    options_.q_lengths = keep(i32_tensor(q_lengths_));
    options_.kv_lengths = keep(i32_tensor(kv_lengths_).to(DType::i64));
  }
  std::vector<std::int64_t> starts(q_lengths_.size(), 0), kv_starts = starts;
  if (spec_.kv_start != "none") {
    const std::int64_t common = below(300);
    for (std::int64_t& start : kv_starts) start = spec_.kv_start == "uniform" ? common : below(200);
    options_.kv_start = keep(i32_tensor(kv_starts).to(below(2) == 0 ? DType::i32 : DType::i64));
    for (const std::int64_t start : kv_starts) largest_kv_start_ = std::max(largest_kv_start_, start);
  }
  const std::int64_t common = spec_.q_start == "uniform" ? below(300) - 100 : 0;
  for (std::size_t i = 0; i < starts.size(); ++i) {
    if (spec_.q_start == "uniform") starts[i] = common;
    if (spec_.q_start == "ahead") starts[i] = below(100);
    if (spec_.q_start == "aligned")
      starts[i] = std::max<std::int64_t>(0, kv_starts[i] + kv_lengths_[i] - q_lengths_[i]);
    // If lengths on the device are not read, any row may be a query's or a key's.
    const std::int64_t q_len = spec_.device_lengths ? spec_.q_rows : q_lengths_[i],
                       kv_len = spec_.device_lengths ? most_keys() : kv_lengths_[i];
    positions_ = std::max({positions_, starts[i] + q_len, kv_starts[i] + kv_len});
  }
  if (spec_.q_start != "none") options_.q_start = keep(i32_tensor(starts));
  if (spec_.granule > 0) {
    granules_ = (std::max(spec_.q_rows, spec_.kv_rows) + spec_.granule - 1) / spec_.granule + 2;
    positions_ = std::max(positions_, granules_ * spec_.granule);
  }
}

// Mods of positions in the longer sequence.
void AttentionCase::deal_granules() {
  if (spec_.granule == 0) return;
  std::vector<std::int64_t> order(static_cast<std::size_t>(granules_));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  for (const auto& [name, rows] : {std::pair("q_granules", spec_.q_rows), {"kv_granules", spec_.kv_rows}}) {
    std::ranges::shuffle(order, rng_);
    const auto held = static_cast<std::size_t>((rows + spec_.granule - 1) / spec_.granule);
    capture(name, i32_tensor({order.begin(), order.begin() + static_cast<std::ptrdiff_t>(held)}));
  }
  const Capture queries("q_granules", DType::i32, 1), keys("kv_granules", DType::i32, 1);
  const auto place = [&](Expr& mod) {
    mod = mods::by_granules(mod, queries, keys, spec_.granule, granules_ * spec_.granule);
  };
  place(options_.score_mod), place(options_.mask_mod), place(options_.weight_mod);
  if (options_.score_mod.empty() && options_.mask_mod.empty() && options_.weight_mod.empty()) {
    options_.bindings.captures.clear();
  }
}

// Pages of all sequences in mixed order, two without a sequence, and entries past the ends that are no pages.
void AttentionCase::make_pages() {
  const std::int64_t rows = spec_.page_rows, columns = table_columns();
  std::int64_t pages = 2;
  for (const std::int64_t length : kv_lengths_) pages += (length + rows - 1) / rows;
  std::vector<std::int32_t> free(static_cast<std::size_t>(pages));
  for (std::size_t i = 0; i < free.size(); ++i) free[i] = static_cast<std::int32_t>(i);
  std::ranges::shuffle(free, rng_);
  page_first_.assign(free.size(), 0);
  page_used_.assign(free.size(), 0);
  options_.kv_lengths = keep(i32_tensor(kv_lengths_));
  if (spec_.listed_pages) return make_list(free);
  const Tensor table = keep(Tensor::empty(DType::i32, {sequences_, columns}));
  auto* entry = static_cast<std::int32_t*>(table.data());
  for (const std::int64_t length : kv_lengths_) {
    for (std::int64_t n = 0; n < columns; ++n, ++entry) {
      *entry = n % 2 == 0 ? 2147483647 : -5;
      if (n * rows < length) *entry = take_page(free, n * rows, length);
    }
  }
  options_.page_table = table;
}

std::int32_t AttentionCase::take_page(std::vector<std::int32_t>& free, std::int64_t first, std::int64_t length) {
  const std::int32_t page = free.back();
  free.pop_back();
  page_first_[static_cast<std::size_t>(page)] = first;
  page_used_[static_cast<std::size_t>(page)] = std::min(spec_.page_rows, length - first);
  return page;
}

// Entries that are no pages before the first sequence's, behind the last one's, and at the end of some sequences'
// parts.
void AttentionCase::make_list(std::vector<std::int32_t>& free) {
  std::vector<std::int64_t> list = {-5}, starts = {1};
  for (std::size_t b = 0; b < kv_lengths_.size(); ++b) {
    for (std::int64_t first = 0; first < kv_lengths_[b]; first += spec_.page_rows) {
      list.push_back(take_page(free, first, kv_lengths_[b]));
    }
    if (b % 2 == 0) list.push_back(2147483647);
    starts.push_back(std::ssize(list));
  }
  list.push_back(-7);
  options_.page_table = keep(i32_tensor(list));
  options_.page_starts = keep(i32_tensor(starts));
  options_.max_kv_len = table_columns() * spec_.page_rows;  // which a GPU would not know
}

std::pair<std::int64_t, std::int64_t> AttentionCase::row_of_key(std::int64_t sequence, std::int64_t key) const {
  if (spec_.page_rows > 0) {
    const auto* table = static_cast<const std::int32_t*>(options_.page_table->data);
    std::int64_t first = sequence * table_columns();
    if (spec_.listed_pages) first = static_cast<const std::int32_t*>(options_.page_starts->data)[sequence];
    return {table[first + key / spec_.page_rows], key % spec_.page_rows};
  }
  if (!kv_begins_.empty()) return {0, kv_begins_[static_cast<std::size_t>(sequence)] + key};
  return {spec_.share_kv_batch ? 0 : sequence, key};
}

// Sequences of a group, neighbours or not, get the first keys of the one that shares the most.
void AttentionCase::make_prefixes() {
  std::vector<std::int64_t> groups, lengths;
  const auto keys_of = [&](std::size_t b) { return kv_lengths_.empty() ? spec_.kv_rows : kv_lengths_[b]; };
  const std::int64_t common = spec_.kv_rows - below(spec_.kv_rows / 4 + 1);  // of most
  for (std::size_t b = 0; b < static_cast<std::size_t>(sequences_); ++b) {
    const std::int64_t any = below(spec_.kv_rows + 10) - 3;
    groups.push_back(below(5) == 0 ? -1 - below(3) : below(2) * 9);
    lengths.push_back(below(4) == 0 ? any : common);
  }
  const auto shared = [&](std::size_t b) { return std::min(lengths[b], keys_of(b)); };
  const auto copy_key = [&](const GuardedTensor& tensor, std::size_t from, std::size_t to, std::int64_t key) {
    const TensorView view = tensor.view();
    const std::int64_t size = size_of(view.dtype);
    const auto place = [&](std::size_t b, std::int64_t head) {
      const auto [entry, row] = row_of_key(static_cast<std::int64_t>(b), key);
      const std::int64_t entry_stride = view.shape[0] == 1 ? 0 : view.strides[0];
      return static_cast<std::byte*>(view.data) +
             size * (entry * entry_stride + head * view.strides[1] + row * view.strides[2]);
    };
    for (std::int64_t head = 0; head < view.shape[1]; ++head) {
      std::memmove(place(to, head), place(from, head), static_cast<std::size_t>(size * view.shape[3]));
    }
  };
  for (std::size_t b = 0; b < groups.size(); ++b) {
    if (groups[b] < 0) continue;
    std::size_t most = b;
    for (std::size_t other = 0; other < groups.size(); ++other) {
      const bool is_first = shared(other) == shared(most) && other < most;
      if (groups[other] == groups[b] && (shared(other) > shared(most) || is_first)) most = other;
    }
    for (std::int64_t key = 0; most != b && key < shared(b); ++key) {
      copy_key(k, most, b, key);
      if (spec_.k_rest > 0) copy_key(k_rest, most, b, key);
      if (!spec_.values_in_keys) copy_key(v, most, b, key);
    }
  }
  options_.prefix_group = keep(i32_tensor(groups));
  options_.prefix_len = keep(i32_tensor(lengths).to(DType::i64));
}

}  // namespace heddle::test
