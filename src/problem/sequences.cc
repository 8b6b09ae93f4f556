#include "problem/sequences.h"

#include <limits>

#include "base/element.h"
#include "problem/places.h"
#include "problem/refuse.h"

namespace heddle::problem {
namespace {

using Int32 = std::numeric_limits<std::int32_t>;

// An i32 or i64 vector of the options, checked, as 64-bit integers.
std::vector<std::int64_t> read_integers(std::string_view name, const ConstTensorView& view) {
  check_view(name, view);
  check_on_cpu(name, view);
  if (view.rank() != 1) refuse("{} has shape {}; one axis is accepted", name, to_string(view.shape));
  if (view.dtype != DType::i32 && view.dtype != DType::i64) {
    refuse("{} is {}; i32 and i64 are accepted", name, heddle::name(view.dtype));
  }
  check_memory(name, view);
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < view.shape[0]; ++i) {
    const std::int64_t offset = i * view.strides[0];
    values.push_back(view.dtype == DType::i32 ? base::load_raw<std::int32_t>(view.data, offset)
                                              : base::load_raw<std::int64_t>(view.data, offset));
  }
  return values;
}

// One integer a sequence.
std::vector<std::int64_t> read_per_sequence(std::string_view name, const ConstTensorView& view,
                                            std::int64_t sequences) {
  std::vector<std::int64_t> values = read_integers(name, view);
  if (view.shape[0] != sequences) {
    refuse("{} has shape {}; [{}] is accepted, an entry a sequence", name, to_string(view.shape), sequences);
  }
  return values;
}

std::vector<std::int64_t> read_lengths(std::string_view name, const std::optional<ConstTensorView>& lengths,
                                       std::int64_t sequences, std::int64_t rows) {
  if (!lengths) return std::vector<std::int64_t>(static_cast<std::size_t>(sequences), rows);
  std::vector<std::int64_t> values = read_per_sequence(name, *lengths, sequences);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0 || values[i] > rows) {
      refuse("{}[{}] is {}; lengths from 0 to the padded size {} are accepted", name, i, values[i], rows);
    }
  }
  return values;
}

std::vector<std::int64_t> read_cumulative(std::string_view name, const ConstTensorView& cumulative,
                                          std::int64_t total) {
  std::vector<std::int64_t> values = read_integers(name, cumulative);
  if (values.empty()) refuse("{} is empty; N + 1 entries are accepted, the first 0", name);
  if (values.front() != 0) refuse("{}[0] is {}; cumulative lengths start at 0", name, values.front());
  for (std::size_t i = 1; i < values.size(); ++i) {
    if (values[i] < values[i - 1]) {
      refuse("{}[{}] is {} after {}; cumulative lengths never decrease", name, i, values[i], values[i - 1]);
    }
  }
  if (values.back() != total) {
    refuse("{} ends at {}; the tensor's {} rows are accepted", name, values.back(), total);
  }
  return values;
}

std::vector<Sequence> packed_sequences(const AttentionOptions& options, const PaddedSizes& sizes) {
  if (!options.cu_seqlens_q && !options.page_table)
    refuse("cu_seqlens_kv is given without cu_seqlens_q; both or none are accepted");
  const bool paged = options.page_table.has_value();
  if (paged && options.cu_seqlens_kv) {
    refuse("cu_seqlens_kv is given together with page_table; kv_lengths is accepted");
  }
  if (!paged && !options.cu_seqlens_kv) {
    refuse("cu_seqlens_q is given without cu_seqlens_kv; both or none are accepted");
  }
  if (options.q_lengths) refuse("q_lengths is given together with cu_seqlens; a packed batch has no other lengths");
  if (!paged && options.kv_lengths)
    refuse("kv_lengths is given together with cu_seqlens; a packed batch has no other lengths");
  if (sizes.batch != 1) refuse("q, k, v have batch {}; with cu_seqlens 1 is accepted", sizes.batch);
  const auto q = read_cumulative("cu_seqlens_q", *options.cu_seqlens_q, sizes.q_rows);
  if (paged) {
    std::vector<Sequence> sequences;
    const auto lengths = read_lengths("kv_lengths", options.kv_lengths, std::ssize(q) - 1, sizes.kv_rows);
    for (std::size_t i = 0; i + 1 < q.size(); ++i) {
      sequences.push_back({.q_begin = q[i], .q_len = q[i + 1] - q[i], .kv_len = lengths[i]});
    }
    return sequences;
  }
  const auto kv = read_cumulative("cu_seqlens_kv", *options.cu_seqlens_kv, sizes.kv_rows);
  if (q.size() != kv.size()) {
    refuse("cu_seqlens_q has {} entries and cu_seqlens_kv {}; the same number is accepted", q.size(), kv.size());
  }
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i + 1 < q.size(); ++i) {
    sequences.push_back({.q_begin = q[i], .q_len = q[i + 1] - q[i], .kv_begin = kv[i], .kv_len = kv[i + 1] - kv[i]});
  }
  return sequences;
}

std::vector<Sequence> padded_sequences(const AttentionOptions& options, const PaddedSizes& sizes) {
  const auto q = read_lengths("q_lengths", options.q_lengths, sizes.batch, sizes.q_rows);
  const auto kv = read_lengths("kv_lengths", options.kv_lengths, sizes.batch, sizes.kv_rows);
  std::vector<Sequence> sequences;
  for (std::size_t i = 0; i < q.size(); ++i) sequences.push_back({.q_len = q[i], .kv_len = kv[i]});
  return sequences;
}

}  // namespace

std::vector<Sequence> resolve_sequences(const AttentionOptions& options, const PaddedSizes& sizes) {
  const bool packed = options.cu_seqlens_q || options.cu_seqlens_kv;
  std::vector<Sequence> sequences = packed ? packed_sequences(options, sizes) : padded_sequences(options, sizes);
  if (!options.q_start) return sequences;
  const auto starts = read_per_sequence("q_start", *options.q_start, std::ssize(sequences));
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const std::int64_t last_row = std::max<std::int64_t>(0, sequences[i].q_len - 1);
    if (starts[i] < Int32::min() || starts[i] > Int32::max() - last_row) {
      refuse("q_start[{}] is {}; every q_idx = q_start + row must fit i32, so {} to {} are accepted", i, starts[i],
             Int32::min(), Int32::max() - last_row);
    }
    sequences[i].q_start = starts[i];
  }
  return sequences;
}

}  // namespace heddle::problem
