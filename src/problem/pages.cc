#include "problem/pages.h"

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "base/element.h"
#include "heddle/block_mask.h"
#include "problem/one_device.h"
#include "problem/refuse.h"

namespace heddle::problem {
namespace {

constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();

// [entries, page_starts on the CPU]
std::vector<std::int32_t> read_page_starts(const ConstTensorView& starts, std::int64_t entries) {
  check_memory("page_starts", starts);
  std::vector<std::int32_t> values;
  for (std::int64_t i = 0; i < starts.shape[0]; ++i) {
    const auto start = base::load_raw<std::int32_t>(starts.data, i * starts.strides[0]);
    const std::int32_t before = values.empty() ? 0 : values.back();
    if (start < before || start > entries) refuse_page_start(i, start, before, entries);
    values.push_back(start);
  }
  return values;
}

void check_page_starts(const ConstTensorView& starts, const Device& device) {
  check_view("page_starts", starts);
  if (starts.device.kind != DeviceKind::cpu) check_beside("page_starts", starts, device);
  if (starts.rank() != 1 || starts.shape[0] < 1) {
    refuse("page_starts has shape {}; [B + 1] is accepted", to_string(starts.shape));
  }
  if (starts.dtype != DType::i32) refuse("page_starts is {}; i32 is accepted", heddle::name(starts.dtype));
}

// Rows of the pages of the sequence that has the most.
std::int64_t longest_part(const AttentionProblem& problem, std::int64_t entries) {
  if (problem.page_starts.empty()) {
    // The device alone knows: one may have all entries.
    return std::min(entries, kMostRows / problem.page_rows) * problem.page_rows;
  }
  std::int64_t most = 0;
  for (std::size_t i = 1; i < problem.page_starts.size(); ++i) {
    most = std::max<std::int64_t>(most, problem.page_starts[i] - problem.page_starts[i - 1]);
  }
  return most * problem.page_rows;
}

/// Which keys some query of a sequence attends.
class AttendedKeys {
 public:
  AttendedKeys(const AttentionProblem& problem, const AttentionOptions& options, const Bindings& bindings)
      : problem_(problem), options_(options), bindings_(bindings) {}

  /// Whether one of the keys [begin, end) of sequence b is attended. A given mask answers by its blocks, others by
  /// pages.
  bool any(std::int64_t b, std::int64_t begin, std::int64_t end) {
    if (mask_ == nullptr && !find_mask()) return true;
    if (b != sequence_) mark_blocks(b);
    const std::int64_t block = mask_->block().kv;
    const auto first = attended_.begin() + begin / block, last = attended_.begin() + (end + block - 1) / block;
    return std::find(first, last, true) != last;
  }

 private:
  /// False if there is no mask.
  bool find_mask() {
    if (options_.block_mask != nullptr && options_.block_mask->is_from_lists()) {
      mask_ = options_.block_mask.get();
    } else if (!problem_.mask_mod.empty()) {
      const DType reals = problem_.precision == expr::Precision::f64 ? DType::f64 : DType::f32;
      by_pages_ = BlockMask::build(problem_.mask_mod, {problem_.q_heads, problem_.sequences},
                                   {.q = 128, .kv = problem_.page_rows}, bindings_, options_.threads, reals,
                                   problem_.clamp_reads);
      mask_ = &by_pages_;
    }
    return mask_ != nullptr;
  }

  void mark_blocks(std::int64_t b) {
    sequence_ = b;
    attended_.assign(static_cast<std::size_t>(mask_->kv_blocks(b)), false);
    for (std::int64_t head = 0; head < (mask_->shared_by_heads() ? 1 : problem_.q_heads); ++head) {
      for (std::int64_t row = 0; row < mask_->q_blocks(b); ++row) {
        for (const Run& run : mask_->row(b, head, row)) {
          std::fill(attended_.begin() + run.begin, attended_.begin() + run.end, true);
        }
      }
    }
  }

  const AttentionProblem& problem_;
  const AttentionOptions& options_;
  const Bindings& bindings_;
  BlockMask by_pages_;
  const BlockMask* mask_ = nullptr;
  std::int64_t sequence_ = -1;
  std::vector<bool> attended_;  // by blocks of keys
};

}  // namespace

void resolve_pages(const AttentionTensors& tensors, const AttentionOptions& options, AttentionProblem& problem) {
  const ConstTensorView& table = *options.page_table;
  problem.listed_pages = options.page_starts.has_value();
  check_view("page_table", table);
  check_beside("page_table", table, tensors.q.device);
  if (table.rank() != (problem.listed_pages ? 1 : 2)) {
    refuse("page_table has shape {}; {} is accepted", to_string(table.shape),
           problem.listed_pages ? "[entries], beside page_starts," : "[B, max_pages]");
  }
  if (table.dtype != DType::i32) refuse("page_table is {}; i32 is accepted", heddle::name(table.dtype));
  problem.page_rows = tensors.k.shape[2];
  if (problem.page_rows == 0) refuse("k has pages of 0 rows; at least 1 is accepted");
  const std::int64_t entries = table.shape[table.rank() - 1];
  if (problem.listed_pages) {
    const ConstTensorView& starts = *options.page_starts;
    check_page_starts(starts, tensors.q.device);
    if (entries > kMostRows) refuse("page_table has {} entries; up to {} are accepted", entries, kMostRows);
    if (starts.device.kind == DeviceKind::cpu) problem.page_starts = read_page_starts(starts, entries);
    problem.kv_rows = longest_part(problem, entries);
  } else if (__builtin_mul_overflow(entries, problem.page_rows, &problem.kv_rows)) {
    problem.kv_rows = std::numeric_limits<std::int64_t>::max();
  }
  if (problem.kv_rows > kMostRows) {
    refuse("page_table lists {} pages of {} rows for a sequence; up to 2147483647 rows are accepted",
           problem.listed_pages ? problem.kv_rows / problem.page_rows : entries, problem.page_rows);
  }
}

void refuse_page_start(std::int64_t i, std::int64_t start, std::int64_t before, std::int64_t entries) {
  refuse(
      "page_starts[{}] is {}, where the pages of sequence {} {}; {} to {} are accepted: the entries of page_table "
      "that no sequence before has",
      i, start, i == 0 ? 0 : i - 1, i == 0 ? "begin" : "end", before, entries);
}

void check_pages_of_sequences(const AttentionOptions& options, AttentionProblem& problem) {
  if (!problem.listed_pages) {
    if (options.page_table->shape[0] == problem.batch) return;
    refuse("page_table has shape {}; [{}, max_pages] is accepted, a row a sequence",
           to_string(options.page_table->shape), problem.batch);
  }
  if (options.page_starts->shape[0] != problem.batch + 1) {
    refuse("page_starts has shape {}; [{}] is accepted, an entry a sequence and the end of the last one",
           to_string(options.page_starts->shape), problem.batch + 1);
  }
  if (problem.page_starts.empty()) return;
  for (std::size_t b = 0; b < problem.sequences.size(); ++b) {
    const std::int64_t pages = problem.page_starts[b + 1] - problem.page_starts[b], rows = pages * problem.page_rows;
    std::int64_t& keys = problem.sequences[b].kv_len;
    if (!options.kv_lengths) keys = std::min(keys, rows);
    if (keys <= rows) continue;
    refuse("kv_lengths[{}] is {}; page_starts gives sequence {} {} pages of {} rows, so 0 to {} are accepted", b, keys,
           b, pages, problem.page_rows, rows);
  }
}

std::int64_t page_of(const AttentionProblem& problem, const ConstTensorView& page_table, std::int64_t b,
                     std::int64_t number) {
  const std::int64_t at = problem.listed_pages
                              ? (problem.page_starts[static_cast<std::size_t>(b)] + number) * page_table.strides[0]
                              : b * page_table.strides[0] + number * page_table.strides[1];
  return base::load_raw<std::int32_t>(page_table.data, at);
}

void check_pages(const AttentionProblem& problem, const AttentionOptions& options, const Bindings& bindings,
                 std::int64_t pages) {
  AttendedKeys attended(problem, options, bindings);
  for (std::int64_t b = 0; b < problem.batch; ++b) {
    const std::int64_t keys = problem.sequences[static_cast<std::size_t>(b)].kv_len;
    for (std::int64_t n = 0; n * problem.page_rows < keys; ++n) {
      const std::int64_t page = page_of(problem, *options.page_table, b, n);
      if (page >= 0 && page < pages) continue;
      if (!attended.any(b, n * problem.page_rows, std::min(keys, (n + 1) * problem.page_rows))) continue;
      const std::string place =
          problem.listed_pages
              ? fmt::format("page_table[{}] is {}, for the keys of sequence {}, which has {}",
                            problem.page_starts[static_cast<std::size_t>(b)] + n, page, b, keys)
              : fmt::format("page_table[{}, {}] is {}, for the keys of a sequence of {}", b, n, page, keys);
      refuse("{}; pages are numbered from 0 to {}", place, pages - 1);
    }
  }
}

}  // namespace heddle::problem
