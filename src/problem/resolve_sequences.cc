#include "problem/resolve_sequences.h"

#include <limits>
#include <span>
#include <string_view>
#include <utility>

#include "base/element.h"
#include "mask/shape.h"
#include "problem/one_device.h"
#include "problem/option_views.h"
#include "problem/refuse.h"

namespace heddle::problem {
namespace {

using Int32 = std::numeric_limits<std::int32_t>;

// An i32 or i64 vector of the options, all but its content.
void check_integers(std::string_view name, const ConstTensorView& view) {
  check_view(name, view);
  if (view.rank() != 1) refuse("{} has shape {}; one axis is accepted", name, to_string(view.shape));
  if (view.dtype != DType::i32 && view.dtype != DType::i64) {
    refuse("{} is {}; i32 and i64 are accepted", name, heddle::name(view.dtype));
  }
  check_memory(name, view);
}

// Checked, as 64-bit integers.
std::vector<std::int64_t> read_integers(std::string_view name, const ConstTensorView& view) {
  check_integers(name, view);
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < view.shape[0]; ++i) {
    const std::int64_t offset = i * view.strides[0];
    values.push_back(view.dtype == DType::i32 ? base::load_raw<std::int32_t>(view.data, offset)
                                              : base::load_raw<std::int64_t>(view.data, offset));
  }
  return values;
}

void check_entries(std::string_view name, const ConstTensorView& view, std::int64_t sequences) {
  if (view.shape[0] == sequences) return;
  refuse("{} has shape {}; [{}] is accepted, an entry a sequence", name, to_string(view.shape), sequences);
}

// One integer a sequence.
std::vector<std::int64_t> read_per_sequence(std::string_view name, const ConstTensorView& view,
                                            std::int64_t sequences) {
  check_integers(name, view);
  check_entries(name, view, sequences);
  return read_integers(name, view);
}

// Lengths of one side: of the queries, or of the keys.
struct Side {
  std::string_view lengths, cumulative, longest;
  const std::optional<ConstTensorView>&given, &given_cumulative;
  const std::optional<std::int64_t>& most;
  std::int64_t rows;       // of the tensors, or of the pages that a table lists
  bool has_parts = false;  // each sequence has pages of its own number
};
Side q_side(const AttentionOptions& options, const PaddedSizes& sizes) {
  return {"q_lengths",          "cu_seqlens_q",    "max_q_len", options.q_lengths,
          options.cu_seqlens_q, options.max_q_len, sizes.q_rows};
}
Side kv_side(const AttentionOptions& options, const PaddedSizes& sizes) {
  return {"kv_lengths",          "cu_seqlens_kv",    "max_kv_len",  options.kv_lengths,
          options.cu_seqlens_kv, options.max_kv_len, sizes.kv_rows, options.page_starts.has_value()};
}

// No sequence is longer: the caller's bound, or the rows, which are a bound themselves.
std::int64_t longest(const Side& side) {
  if (!side.most) return side.rows;
  if (!side.given && !side.given_cumulative && !side.has_parts) {
    refuse("{} is given without {} and {}; it bounds those", side.longest, side.lengths, side.cumulative);
  }
  if (*side.most < 0) refuse("{} is {}; 0 and more are accepted", side.longest, *side.most);
  return std::min(*side.most, side.rows);
}

bool bounded_by_caller(const Side& side) { return side.most && *side.most <= side.rows; }

void check_lengths(const Side& side, std::string_view name, std::span<const std::int64_t> values) {
  const std::int64_t most = longest(side);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] >= 0 && values[i] <= most) continue;
    refuse("{}[{}] is {}; lengths from 0 to {} {} are accepted", name, i, values[i],
           bounded_by_caller(side) ? side.longest : "the padded size", most);
  }
}

std::vector<std::int64_t> read_lengths(const Side& side, std::int64_t sequences) {
  const std::int64_t most = longest(side);
  if (!side.given) return std::vector<std::int64_t>(static_cast<std::size_t>(sequences), most);
  std::vector<std::int64_t> values = read_per_sequence(side.lengths, *side.given, sequences);
  check_lengths(side, side.lengths, values);
  return values;
}

/// `whole`: the last sequence ends where the tensor does.
std::vector<std::int64_t> read_cumulative(const Side& side, bool whole) {
  const std::string_view name = side.cumulative;
  const std::int64_t total = side.rows, most = longest(side);
  check_integers(name, *side.given_cumulative);
  mask::check_sequence_count(name, side.given_cumulative->shape[0] - 1);
  std::vector<std::int64_t> values = read_integers(name, *side.given_cumulative);
  if (values.empty()) refuse("{} is empty; N + 1 entries are accepted, the first 0", name);
  if (values.front() != 0) refuse("{}[0] is {}; cumulative lengths start at 0", name, values.front());
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] < values[i - 1]) {
      refuse("{}[{}] is {} after {}; cumulative lengths never decrease", name, i, values[i], values[i - 1]);
    }
    if (bounded_by_caller(side) && values[i] - values[i - 1] > most) {
      refuse("{}[{}] is {} after {}; sequences of up to {} {} rows are accepted", name, i, values[i], values[i - 1],
             side.longest, most);
    }
  }
  if (values.size() == 1 && total > 0) {
    refuse("{} has one entry, for no sequence, and the tensor {} rows; N + 1 entries for N of at least 1 are accepted",
           name, total);
  }
  if (values.back() > total) {
    refuse("{} ends at {}; up to the tensor's {} rows are accepted", name, values.back(), total);
  }
  if (whole && values.back() != total) {
    refuse("{} ends at {}; the tensor's {} rows are accepted, and less where {} is on the GPU", name, values.back(),
           total, name);
  }
  return values;
}

void check_packed(const AttentionOptions& options, const PaddedSizes& sizes) {
  const bool paged = options.page_table.has_value();
  if (!options.cu_seqlens_q && !paged) {
    refuse("cu_seqlens_kv is given without cu_seqlens_q; both or none are accepted");
  }
  if (paged && options.cu_seqlens_kv) {
    refuse("cu_seqlens_kv is given together with page_table; kv_lengths is accepted");
  }
  if (!paged && !options.cu_seqlens_kv) {
    refuse("cu_seqlens_q is given without cu_seqlens_kv; both or none are accepted");
  }
  if (options.q_lengths) refuse("q_lengths is given together with cu_seqlens_q, which says the lengths");
  if (sizes.batch != 1) refuse("q, k, v have batch {}; with cu_seqlens 1 is accepted", sizes.batch);
}

void check_counts(std::int64_t q_entries, std::int64_t kv_entries) {
  if (q_entries == kv_entries) return;
  refuse("cu_seqlens_q has {} entries and cu_seqlens_kv {}; the same number is accepted", q_entries, kv_entries);
}

// kv_lengths beside cu_seqlens_kv says how many of each sequence's keys count.
void cut_to_lengths(const Side& kv, std::vector<Sequence>& sequences) {
  if (!kv.given) return;
  const auto lengths = read_per_sequence(kv.lengths, *kv.given, std::ssize(sequences));
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    std::int64_t& length = sequences[i].kv_len;
    if (lengths[i] < 0 || lengths[i] > length) {
      refuse("{}[{}] is {}; lengths from 0 to the {} rows that {} gives the sequence are accepted", kv.lengths, i,
             lengths[i], length, kv.cumulative);
    }
    length = lengths[i];
  }
}

std::vector<Sequence> packed_sequences(const AttentionOptions& options, const PaddedSizes& sizes, bool whole) {
  const auto q = read_cumulative(q_side(options, sizes), whole);
  if (options.page_table) {
    std::vector<Sequence> sequences;
    const auto lengths = read_lengths(kv_side(options, sizes), std::ssize(q) - 1);
    for (std::size_t i = 0; i + 1 < q.size(); ++i) {
      sequences.push_back({.q_begin = q[i], .q_len = q[i + 1] - q[i], .kv_len = lengths[i]});
    }
    return sequences;
  }
  const Side of_keys = kv_side(options, sizes);
  const auto kv = read_cumulative(of_keys, whole);
  check_counts(std::ssize(q), std::ssize(kv));
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i + 1 < q.size(); ++i) {
    sequences.push_back({.q_begin = q[i], .q_len = q[i + 1] - q[i], .kv_begin = kv[i], .kv_len = kv[i + 1] - kv[i]});
  }
  cut_to_lengths(of_keys, sequences);
  return sequences;
}

std::vector<Sequence> padded_sequences(const AttentionOptions& options, const PaddedSizes& sizes) {
  const auto q = read_lengths(q_side(options, sizes), sizes.batch);
  const auto kv = read_lengths(kv_side(options, sizes), sizes.batch);
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i < q.size(); ++i) sequences.push_back({.q_len = q[i], .kv_len = kv[i]});
  return sequences;
}

// Numbers added to the positions of the queries, or of the keys.
struct Starts {
  std::string_view name, sum;
  const std::optional<ConstTensorView>& given;
  std::int64_t Sequence::*member;
  std::int64_t Sequence::*length;
};

void read_starts(const Starts& starts, std::vector<Sequence>& sequences) {
  if (!starts.given) return;
  const auto values = read_per_sequence(starts.name, *starts.given, std::ssize(sequences));
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::int64_t length = sequences[i].*starts.length;
    if (!mask::fits_i32(values[i], length)) {
      refuse("{}[{}] is {}; every {} must fit i32, so {} to {} are accepted", starts.name, i, values[i], starts.sum,
             Int32::min(), Int32::max() - std::max<std::int64_t>(0, length - 1));
    }
    sequences[i].*starts.member = values[i];
  }
}

// Whether the views are where q is, on another device than the CPU. All must be in one place.
bool on_device(const AttentionOptions& options, const Device& device) {
  const OptionView* first = nullptr;
  for (const OptionView& named : kLengthViews) {
    const std::optional<ConstTensorView>& view = options.*named.member;
    if (!view) continue;
    if (device.kind == DeviceKind::cpu) check_on_cpu(named.name, *view);
    if (view->device.kind != DeviceKind::cpu) check_beside(named.name, *view, device);
    if (first == nullptr) first = &named;
    const Device& other = (options.*first->member)->device;
    if (view->device == other) continue;
    refuse(
        "{} is on {} and {} on {}; lengths, cu_seqlens, q_start, kv_start, page_starts and prefixes all on the CPU, or "
        "all where q is, are accepted",
        first->name, problem::name(other), named.name, problem::name(view->device));
  }
  return first != nullptr && (options.*first->member)->device.kind != DeviceKind::cpu;
}

// One a sequence, with the most queries and keys that it may have.
ResolvedSequences longest_sequences(const AttentionOptions& options, const PaddedSizes& sizes) {
  const Side q = q_side(options, sizes), kv = kv_side(options, sizes);
  for (const auto& [name, member] : kLengthViews) {
    if (options.*member) check_integers(name, *(options.*member));
  }
  std::int64_t count = sizes.batch;
  if (q.given_cumulative) {
    if (kv.given_cumulative) check_counts(q.given_cumulative->shape[0], kv.given_cumulative->shape[0]);
    count = q.given_cumulative->shape[0] - 1;
    mask::check_sequence_count(q.cumulative, count);
    for (const Side& side : {q, kv}) {
      if (!side.given_cumulative) continue;  // keys in pages: up to all that the table lists
      if (count < 0) refuse("{} is empty; N + 1 entries are accepted, the first 0", side.cumulative);
      if (count == 0 && side.rows > 0) {
        refuse("{} has 1 entry, for no sequence, but the tensor {} rows; at least 2 are accepted", side.cumulative,
               side.rows);
      }
      if (side.most) continue;
      refuse("{} is not given; with {} on a GPU the largest length is accepted, which planning does not read",
             side.longest, side.cumulative);
    }
  }
  for (const auto& [name, view] : {std::pair(q.lengths, q.given),
                                   {kv.lengths, kv.given},
                                   {"q_start", options.q_start},
                                   {"kv_start", options.kv_start},
                                   {"prefix_group", options.prefix_group},
                                   {"prefix_len", options.prefix_len}}) {
    if (view) check_entries(name, *view, count);
  }
  const Sequence most = {.q_len = longest(q), .kv_len = longest(kv)};
  return {std::vector(static_cast<std::size_t>(count), most), true, options.q_start.has_value(),
          options.kv_start.has_value()};
}

}  // namespace

ResolvedSequences resolve_sequences(const AttentionOptions& options, const PaddedSizes& sizes, const Device& device) {
  const bool packed = options.cu_seqlens_q || options.cu_seqlens_kv;
  if (packed) check_packed(options, sizes);
  mask::check_sequence_count("q", sizes.batch);
  if (options.prefix_group.has_value() != options.prefix_len.has_value()) {
    const bool has_group = options.prefix_group.has_value();
    refuse("{} is given without {}; both are accepted, or none", has_group ? "prefix_group" : "prefix_len",
           has_group ? "prefix_len" : "prefix_group");
  }
  if (on_device(options, device)) return longest_sequences(options, sizes);
  // A GPU's kernels that take lengths from the host write the rows of sequences alone.
  std::vector<Sequence> sequences =
      packed ? packed_sequences(options, sizes, device.kind != DeviceKind::cpu) : padded_sequences(options, sizes);
  const Starts of_q = {"q_start", "q_idx = q_start + row", options.q_start, &Sequence::q_start, &Sequence::q_len};
  const Starts of_kv = {"kv_start", "kv_idx = kv_start + position", options.kv_start, &Sequence::kv_start,
                        &Sequence::kv_len};
  for (const Starts& starts : {of_q, of_kv}) read_starts(starts, sequences);
  ResolvedSequences resolved = {std::move(sequences)};
  if (options.prefix_group) {
    const std::int64_t count = std::ssize(resolved.sequences);
    resolved.prefix_group = read_per_sequence("prefix_group", *options.prefix_group, count);
    resolved.prefix_len = read_per_sequence("prefix_len", *options.prefix_len, count);
  }
  return resolved;
}

}  // namespace heddle::problem
