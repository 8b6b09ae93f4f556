// Sequences whose first pages are the same.
#include <algorithm>
#include <limits>
#include <string_view>

#include "base/element.h"
#include "heddle/kv_cache.h"
#include "problem/one_device.h"
#include "problem/refuse.h"

namespace heddle {
namespace {

using problem::refuse;

void check(std::string_view name, const ConstTensorView& view, int rank, bool may_be_i64) {
  problem::check_view(name, view);
  problem::check_on_cpu(name, view);
  if (view.rank() != rank) {
    refuse("{} has shape {}; {} are accepted", name, to_string(view.shape), rank == 1 ? "one axis" : "two axes");
  }
  if (view.dtype != DType::i32 && !(may_be_i64 && view.dtype == DType::i64)) {
    refuse("{} is {}; {} accepted", name, heddle::name(view.dtype), may_be_i64 ? "i32 and i64 are" : "i32 is");
  }
  problem::check_memory(name, view);
}

std::int64_t integer_at(const ConstTensorView& view, std::int64_t offset) {
  return view.dtype == DType::i32 ? base::load_raw<std::int32_t>(view.data, offset)
                                  : base::load_raw<std::int64_t>(view.data, offset);
}

/// The pages of each sequence, as far as keys stand in them.
class Pages {
 public:
  Pages(const ConstTensorView& table, const ConstTensorView& lengths, std::int64_t page_size,
        const std::optional<ConstTensorView>& starts)
      : table_(table), lengths_(lengths), starts_(starts), page_size_(page_size) {
    check("page_table", table, starts ? 1 : 2, false);
    check("kv_lengths", lengths, 1, true);
    if (page_size < 1) refuse("page_size is {}; at least 1 is accepted", page_size);
    if (starts) check("page_starts", *starts, 1, false);
    const std::int64_t rows = starts ? starts->shape[0] - 1 : table.shape[0];
    if (rows != count()) {
      refuse("kv_lengths has shape {}; [{}] is accepted, an entry a sequence of {}", to_string(lengths.shape), rows,
             starts ? "page_starts" : "page_table");
    }
    for (std::int64_t b = 0; b < count(); ++b) check_sequence(b);
  }

  std::int64_t count() const { return lengths_.shape[0]; }
  /// Keys that sequence b shares with the one before.
  std::int64_t shared_keys(std::int64_t b) const {
    const std::int64_t most = std::min(length(b - 1), length(b));
    std::int64_t page = 0;
    while (page * page_size_ < most && at(b - 1, page) == at(b, page)) ++page;
    return std::min(most, page * page_size_);
  }

 private:
  std::int64_t length(std::int64_t b) const { return integer_at(lengths_, b * lengths_.strides[0]); }
  std::int64_t start(std::int64_t b) const { return integer_at(*starts_, b * starts_->strides[0]); }
  std::int64_t at(std::int64_t b, std::int64_t page) const {
    return integer_at(
        table_, starts_ ? (start(b) + page) * table_.strides[0] : b * table_.strides[0] + page * table_.strides[1]);
  }
  void check_sequence(std::int64_t b) const {
    std::int64_t pages = table_.shape[table_.rank() - 1];
    if (starts_) {
      if (start(b) < 0 || start(b + 1) < start(b) || start(b + 1) > pages) {
        refuse("page_starts gives sequence {} the entries from {} to {}; entries of the list, in order, are accepted",
               b, start(b), start(b + 1));
      }
      pages = start(b + 1) - start(b);
    }
    const std::int64_t most =
        std::min<std::int64_t>(pages, std::numeric_limits<std::int32_t>::max() / page_size_) * page_size_;
    if (length(b) < 0 || length(b) > most) {
      refuse("kv_lengths[{}] is {}; 0 to {} are accepted, the rows of {} pages of {}", b, length(b), most, pages,
             page_size_);
    }
  }

  const ConstTensorView &table_, &lengths_;
  const std::optional<ConstTensorView>& starts_;
  std::int64_t page_size_;
};

}  // namespace

Prefixes find_prefixes(const ConstTensorView& page_table, const ConstTensorView& kv_lengths, std::int64_t page_size,
                       const std::optional<ConstTensorView>& page_starts) {
  const Pages pages(page_table, kv_lengths, page_size, page_starts);
  const auto count = static_cast<std::size_t>(pages.count());
  // The most keys that groups of the sequences before each one save, and where the last group of them begins.
  std::vector<std::int64_t> saved(count + 1, 0), shared(count, 0);
  std::vector<std::size_t> begins(count + 1, 0);
  std::vector<std::int32_t> of_last(count + 1, 0);
  for (std::size_t b = 1; b < count; ++b) shared[b] = pages.shared_keys(static_cast<std::int64_t>(b));
  for (std::size_t end = 1; end <= count; ++end) {
    saved[end] = saved[end - 1];
    begins[end] = end - 1;
    std::int64_t keys = std::numeric_limits<std::int64_t>::max();
    for (std::size_t first = end - 1; first > 0; --first) {
      keys = std::min(keys, shared[first]);
      if (keys == 0) break;
      const std::size_t begin = first - 1;
      const std::int64_t all = saved[begin] + static_cast<std::int64_t>(end - 1 - begin) * keys;
      if (all <= saved[end]) continue;
      saved[end] = all;
      begins[end] = begin;
      of_last[end] = static_cast<std::int32_t>(keys);
    }
  }
  Prefixes found{std::vector<std::int32_t>(count, -1), std::vector<std::int32_t>(count, 0)};
  for (std::size_t end = count; end > 0; end = begins[end]) {
    if (end - begins[end] < 2) continue;
    for (std::size_t b = begins[end]; b < end; ++b) {
      found.group[b] = static_cast<std::int32_t>(begins[end]);
      found.len[b] = of_last[end];
    }
  }
  return found;
}

}  // namespace heddle
