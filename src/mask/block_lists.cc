// Block masks from and to PyTorch's lists of blocks.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "base/element.h"
#include "base/view_checks.h"
#include "expr/verify.h"
#include "heddle/error.h"
#include "mask/access.h"
#include "mask/row_store.h"
#include "mask/shape.h"

namespace heddle {
namespace {

using State = BlockMaskAccess::State;

[[noreturn]] void refuse(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

/// The extents that the lists of a shape have; KV is free.
struct ListExtents {
  std::int64_t batch = 0, heads = 0, q_blocks = 0, kv_blocks = 0;
};

ListExtents extents_of(const MaskShape& shape, BlockSize block) {
  ListExtents extents{.batch = std::ssize(shape.sequences), .heads = shape.heads};
  for (const Sequence& sequence : shape.sequences) {
    extents.q_blocks = std::max(extents.q_blocks, mask::block_count(sequence.q_len, block.q));
    extents.kv_blocks = std::max(extents.kv_blocks, mask::block_count(sequence.kv_len, block.kv));
  }
  return extents;
}

/// One pair of tensors, checked, and the reading of its rows.
class List {
 public:
  List(const char* counts_name, const Tensor& counts, const char* indices_name, const Tensor& indices,
       const ListExtents& extents)
      : counts_name_(counts_name), indices_name_(indices_name), counts_(counts), indices_(indices), extents_(extents) {
    check(counts_name, counts_, 3, "[B, H, Q]");
    check(indices_name, indices_, 4, "[B, H, Q, KV]");
    if (!std::equal(counts_.shape.begin(), counts_.shape.end(), indices_.shape.begin())) {
      refuse(fmt::format("{} is {} and {} {}; their first three extents must agree", counts_name,
                         to_string(counts_.shape), indices_name, to_string(indices_.shape)));
    }
  }

  std::int64_t batch() const { return counts_.shape[0]; }
  std::int64_t heads() const { return counts_.shape[1]; }

  /// Calls f(block) for each entry of a row; every one is a block of the longest sequence.
  template <class F>
  void for_entries(std::int64_t b, std::int64_t h, std::int64_t q_block, F&& f) const {
    b = std::min(b, batch() - 1);
    h = std::min(h, heads() - 1);
    const std::int64_t room = indices_.shape[3];
    const std::int32_t count = at(counts_, {b, h, q_block});
    if (count < 0 || count > room) {
      refuse(fmt::format("{}[{}, {}, {}] is {}; 0 to {}, the last extent of {}, is accepted", counts_name_, b, h,
                         q_block, count, room, indices_name_));
    }
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int32_t entry = at(indices_, {b, h, q_block, i});
      if (entry < 0 || entry >= extents_.kv_blocks) {
        refuse(fmt::format("{}[{}, {}, {}, {}] is {}; there are {} blocks of keys", indices_name_, b, h, q_block, i,
                           entry, extents_.kv_blocks));
      }
      f(entry);
    }
  }

 private:
  void check(const char* argument, const ConstTensorView& view, int rank, const char* form) const {
    base::check_view(argument, view);
    if (view.dtype != DType::i32) refuse(fmt::format("{} is {}; i32 is accepted", argument, name(view.dtype)));
    if (view.device.kind != DeviceKind::cpu) refuse(fmt::format("{} is not on the CPU, where it is read", argument));
    const auto fits = [](std::int64_t given, std::int64_t wanted) { return given == wanted || given == 1; };
    if (view.rank() != rank || !fits(view.shape[0], extents_.batch) || !fits(view.shape[1], extents_.heads) ||
        view.shape[2] != extents_.q_blocks) {
      refuse(fmt::format("{} is {}; {} with B {} or 1, H {} or 1, Q {} is accepted", argument, to_string(view.shape),
                         form, extents_.batch, extents_.heads, extents_.q_blocks));
    }
    base::check_memory(argument, view);
  }

  static std::int32_t at(const ConstTensorView& view, std::initializer_list<std::int64_t> index) {
    std::int64_t offset = 0;
    int axis = 0;
    for (std::int64_t i : index) offset += i * view.strides[axis++];
    return base::load_raw<std::int32_t>(view.data, offset);
  }

  const char* counts_name_;
  const char* indices_name_;
  ConstTensorView counts_, indices_;
  const ListExtents& extents_;
};

bool is_absent(const Tensor& tensor) { return tensor.shape() == Dims{0}; }

void check_given(const char* name, const Tensor& list, const char* beside) {
  if (is_absent(list)) refuse(fmt::format("{} is not given; it is accepted together with {}", name, beside));
}

/// The entries of one row of blocks, collected and made runs.
class RowOfEntries {
 public:
  /// `columns`: the sequence's own blocks of keys; entries past them are left out.
  void collect(const List& partial, const List* full, std::int64_t b, std::int64_t h, std::int64_t q_block) {
    entries_.clear();
    partial.for_entries(b, h, q_block, [&](std::int32_t block) { entries_.push_back({block, RunKind::partial}); });
    if (full) full->for_entries(b, h, q_block, [&](std::int32_t block) { entries_.push_back({block, RunKind::full}); });
    std::sort(entries_.begin(), entries_.end());
    for (std::size_t i = 1; i < entries_.size(); ++i) {
      if (entries_[i].first != entries_[i - 1].first) continue;
      refuse(fmt::format("row [{}, {}, {}] of the lists has block {} {}; each block may be listed once", b, h, q_block,
                         entries_[i].first,
                         entries_[i].second == entries_[i - 1].second ? "twice" : "both partial and full"));
    }
  }

  void find_runs(std::int64_t columns, bool all_full, std::vector<Run>& runs) const {
    runs.clear();
    for (const auto& [block, listed] : entries_) {
      if (block >= columns) break;
      const RunKind kind = all_full ? RunKind::full : listed;
      if (!runs.empty() && runs.back().end == block && runs.back().kind == kind) {
        ++runs.back().end;
      } else {
        runs.push_back({block, block + 1, kind});
      }
    }
  }

 private:
  std::vector<std::pair<std::int32_t, RunKind>> entries_;
};

}  // namespace

BlockMask BlockMask::from_lists(const BlockLists& lists, const MaskShape& shape, BlockSize block, const Expr& mask) {
  mask::validate_shape(shape);
  mask::validate_block(block);
  if (!mask.empty()) expr::as_role(mask, expr::Role::mask);
  const ListExtents extents = extents_of(shape, block);
  check_given("kv_num_blocks", lists.kv_num_blocks, "kv_indices");
  check_given("kv_indices", lists.kv_indices, "kv_num_blocks");
  const List partial("kv_num_blocks", lists.kv_num_blocks, "kv_indices", lists.kv_indices, extents);
  std::optional<List> full;
  if (!is_absent(lists.full_kv_num_blocks) || !is_absent(lists.full_kv_indices)) {
    check_given("full_kv_num_blocks", lists.full_kv_num_blocks, "full_kv_indices");
    check_given("full_kv_indices", lists.full_kv_indices, "full_kv_num_blocks");
    full.emplace("full_kv_num_blocks", lists.full_kv_num_blocks, "full_kv_indices", lists.full_kv_indices, extents);
    if (full->batch() != partial.batch() || full->heads() != partial.heads()) {
      refuse(fmt::format("kv_num_blocks is {} and full_kv_num_blocks {}; B and H must agree",
                         to_string(lists.kv_num_blocks.shape()), to_string(lists.full_kv_num_blocks.shape())));
    }
  }

  BlockMask result;
  State& state = result.state_;
  state.shape = shape;
  state.block = block;
  state.mask = mask;
  state.from_lists = true;
  state.shared_by_batch = partial.batch() == 1;
  state.shared_by_heads = partial.heads() == 1;

  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> first_rows;  // by lengths, for shared rows
  mask::RowStore rows;
  std::vector<Run> runs;
  RowOfEntries entries;
  for (std::int64_t b = 0; b < extents.batch; ++b) {
    const Sequence& sequence = shape.sequences[static_cast<std::size_t>(b)];
    const std::int64_t next_row = rows.rows();
    const auto [known, added] = first_rows.emplace(std::pair(sequence.q_len, sequence.kv_len), next_row);
    const bool shares = state.shared_by_batch && !added;
    state.sequence_row.push_back(shares ? known->second : next_row);
    if (shares) continue;
    mask::check_row_count(next_row, partial.heads(), extents.q_blocks);
    for (std::int64_t h = 0; h < partial.heads(); ++h) {
      // All rows are checked, also those that a shorter sequence does not have.
      for (std::int64_t q = 0; q < extents.q_blocks; ++q) {
        entries.collect(partial, full ? &*full : nullptr, b, h, q);
        if (q >= result.q_blocks(b)) continue;
        entries.find_runs(result.kv_blocks(b), mask.empty(), runs);
        rows.add(runs);
      }
    }
  }
  rows.move_to(state);
  return result;
}

BlockLists BlockMask::to_lists() const {
  const auto& sequences = state_.shape.sequences;
  for (const Sequence& sequence : sequences) {
    if (sequence.q_len != sequences[0].q_len || sequence.kv_len != sequences[0].kv_len) {
      throw Error(ErrorCode::unsupported,
                  fmt::format("lists of blocks need sequences of one length; this mask has {} x {} and {} x {}",
                              sequences[0].q_len, sequences[0].kv_len, sequence.q_len, sequence.kv_len));
    }
  }
  const bool one_batch = !sequences.empty() && std::ranges::all_of(state_.sequence_row, [&](std::int64_t row) {
    return row == state_.sequence_row[0];
  });
  const ListExtents extents = extents_of(state_.shape, state_.block);
  const std::int64_t batch = one_batch ? 1 : extents.batch;
  const std::int64_t heads = state_.shared_by_heads ? std::min<std::int64_t>(extents.heads, 1) : extents.heads;
  const auto counts = [&] { return Tensor::zeros(DType::i32, {batch, heads, extents.q_blocks}); };
  const auto indices = [&] { return Tensor::zeros(DType::i32, {batch, heads, extents.q_blocks, extents.kv_blocks}); };
  BlockLists lists{counts(), indices(), counts(), indices()};

  const auto data = [](const Tensor& tensor) { return static_cast<std::int32_t*>(tensor.data()); };
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t h = 0; h < heads; ++h) {
      for (std::int64_t q = 0; q < extents.q_blocks; ++q) {
        const std::int64_t at = (b * heads + h) * extents.q_blocks + q;
        for (const Run& run : row(b, h, q)) {
          const bool is_full = run.kind == RunKind::full;
          std::int32_t& count = data(is_full ? lists.full_kv_num_blocks : lists.kv_num_blocks)[at];
          std::int32_t* entry = data(is_full ? lists.full_kv_indices : lists.kv_indices) + at * extents.kv_blocks;
          for (std::int32_t block = run.begin; block < run.end; ++block) entry[count++] = block;
        }
      }
    }
  }
  return lists;
}

}  // namespace heddle
