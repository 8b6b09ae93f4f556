#include "problem/append_checks.h"

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/element.h"
#include "problem/one_device.h"
#include "problem/overlap.h"
#include "problem/pages.h"
#include "problem/refuse.h"
#include "problem/tensors.h"

namespace heddle::problem {
namespace {

bool is_8_bits(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

void check_beside_k(std::string_view name, const ConstTensorView& view, const ConstTensorView& k) {
  if (view.device == k.device) return;
  refuse("{} is on {}; {} is accepted, where k is", name, problem::name(view.device), problem::name(k.device));
}

void check_new(std::string_view name, const ConstTensorView& view, const ConstTensorView& k, std::string_view axes) {
  check_rows(name, view, 4, axes);
  check_beside_k(name, view, k);
  if (view.dtype != k.dtype) {
    refuse("{} is {} and k is {}; one dtype for k, v and q is accepted", name, heddle::name(view.dtype),
           heddle::name(k.dtype));
  }
  check_memory(name, view);
}

void check_shape(std::string_view name, const ConstTensorView& view, const Dims& accepted, std::string_view why) {
  if (view.shape == accepted) return;
  refuse("{} has shape {}; {} is accepted, {}", name, to_string(view.shape), to_string(accepted), why);
}

void check_integers(std::string_view name, const ConstTensorView& view, std::int64_t entries,
                    const ConstTensorView& k) {
  check_view(name, view);
  check_beside_k(name, view, k);
  check_shape(name, view, {entries}, "an entry a sequence");
  if (view.dtype != DType::i32 && view.dtype != DType::i64) {
    refuse("{} is {}; i32 and i64 are accepted", name, heddle::name(view.dtype));
  }
  check_memory(name, view);
}

void check_cache(std::string_view name, const ConstTensorView& cache, const ConstTensorView& rows,
                 const AppendTensors& tensors, const AppendOptions& options) {
  const bool paged = options.page_table.has_value();
  check_rows(name, cache, 4, paged ? "[pages, Hkv, page_size, D]" : "[B, Hkv, rows, D]");
  check_beside_k(name, cache, tensors.k);
  const Dims accepted = {paged ? tensors.k_cache.shape[0] : append_sizes(tensors, options).batch, rows.shape[1],
                         tensors.k_cache.shape[2], rows.shape[3]};
  check_shape(name, cache, accepted, paged ? "with k_cache's pages" : "a row of the cache a sequence");
  check_memory(name, cache);
  if (overlaps_itself(cache)) {
    refuse("{} has shape {} and strides {}, so that elements share memory; one place an element is accepted", name,
           to_string(cache.shape), to_string(cache.strides));
  }
}

void check_descale(std::string_view name, const std::optional<ConstTensorView>& descale, std::string_view cache_name,
                   const ConstTensorView& cache, const AppendTensors& tensors, const AppendSizes& sizes) {
  if (!descale) return;
  check_view(name, *descale);
  check_beside_k(name, *descale, tensors.k);
  if (!is_8_bits(cache.dtype)) {
    refuse("{} is given, and {} is {}; e4m3 and e5m2 are accepted with a factor", name, cache_name,
           heddle::name(cache.dtype));
  }
  if (descale->dtype != DType::f32) refuse("{} is {}; f32 is accepted", name, heddle::name(descale->dtype));
  const std::int64_t extents[] = {sizes.batch, tensors.k.shape[1]};
  bool fits = descale->rank() == 2;
  for (int axis = 0; axis < 2 && fits; ++axis) {
    fits = descale->shape[axis] == 1 || descale->shape[axis] == extents[axis];
  }
  if (!fits) {
    refuse("{} has shape {}; [{}, {}] is accepted, where an extent may be 1", name, to_string(descale->shape),
           extents[0], extents[1]);
  }
  check_memory(name, *descale);
}

void check_table(const AppendTensors& tensors, const AppendOptions& options, const AppendSizes& sizes) {
  const ConstTensorView& table = *options.page_table;
  check_view("page_table", table);
  check_beside_k("page_table", table, tensors.k);
  if (options.page_starts) {
    const ConstTensorView& starts = *options.page_starts;
    check_view("page_starts", starts);
    check_beside_k("page_starts", starts, tensors.k);
    check_shape("page_starts", starts, {sizes.batch + 1}, "an entry a sequence and the end of the last one");
    if (starts.dtype != DType::i32) refuse("page_starts is {}; i32 is accepted", heddle::name(starts.dtype));
    check_memory("page_starts", starts);
  } else if (table.shape[0] != sizes.batch) {
    refuse("page_table has shape {}; [{}, max_pages] is accepted, a row a sequence", to_string(table.shape),
           sizes.batch);
  }
  if (table.dtype != DType::i32) refuse("page_table is {}; i32 is accepted", heddle::name(table.dtype));
  if (sizes.page_rows == 0) refuse("k_cache has pages of 0 rows; at least 1 is accepted");
  check_memory("page_table", table);
}

void check_rotary(const Rotary& rotary, const AppendTensors& tensors, const AppendSizes& sizes) {
  for (const auto& [name, view] : {std::pair("rotary_cos", &rotary.cos), std::pair("rotary_sin", &rotary.sin)}) {
    check_rows(name, *view, 2, "[positions, R / 2]");
    check_beside_k(name, *view, tensors.k);
    check_memory(name, *view);
  }
  if (rotary.sin.dtype != rotary.cos.dtype || !(rotary.sin.shape == rotary.cos.shape)) {
    refuse("rotary_sin is {} and rotary_cos {}; one dtype and shape for both are accepted", describe(rotary.sin),
           describe(rotary.cos));
  }
  if (rotary.cos.shape[1] > tensors.k.shape[3] / 2) {
    refuse("rotary_cos has shape {}, for {} columns; k has {}, half of which is accepted", to_string(rotary.cos.shape),
           2 * rotary.cos.shape[1], tensors.k.shape[3]);
  }
  if (rotary.cos.shape[0] == 0 && sizes.rows + sizes.q_rows > 0)
    refuse("rotary_cos has no positions; at least 1 is accepted");
  if (rotary.positions) {
    check_integers("rotary_positions", *rotary.positions, sizes.batch, tensors.k);
  }
}

void check_queries(const AppendTensors& tensors, const AppendOptions& options) {
  if (tensors.q.has_value() != tensors.q_out.has_value()) {
    refuse("{} is given without {}; both are accepted, or none", tensors.q ? "q" : "q_out", tensors.q ? "q_out" : "q");
  }
  if (!tensors.q) return;
  if (!options.rotary) refuse("q is given without rotary_cos and rotary_sin, which turn it; all are accepted, or none");
  const ConstTensorView& q = *tensors.q;
  check_new("q", q, tensors.k, "[B, Hq, Sq, Dqk]");
  const std::int64_t rows = options.cu_seqlens ? tensors.k.shape[2] : q.shape[2];
  check_shape("q", q, {tensors.k.shape[0], q.shape[1], rows, tensors.k.shape[3]}, "as k has it");
  check_rows("q_out", *tensors.q_out, 4, "[B, Hq, Sq, Dqk]");
  check_beside_k("q_out", *tensors.q_out, tensors.k);
  check_shape("q_out", *tensors.q_out, q.shape, "q's");
  check_memory("q_out", *tensors.q_out);
  if (overlaps_itself(*tensors.q_out)) {
    refuse("q_out has shape {} and strides {}, so that elements share memory; one place an element is accepted",
           to_string(q.shape), to_string(tensors.q_out->strides));
  }
}

using Named = std::pair<std::string_view, ConstTensorView>;

void check_apart(const AppendTensors& tensors, const AppendOptions& options) {
  std::vector<Named> written = {{"k_cache", tensors.k_cache}};
  if (tensors.v_cache) written.emplace_back("v_cache", *tensors.v_cache);
  if (tensors.q_out) written.emplace_back("q_out", *tensors.q_out);
  std::vector<Named> read = {{"k", tensors.k}, {"kv_lengths", options.kv_lengths}};
  const auto add = [&](std::string_view name, const std::optional<ConstTensorView>& view) {
    if (view) read.emplace_back(name, *view);
  };
  add("v", tensors.v);
  add("q", tensors.q);
  add("cu_seqlens", options.cu_seqlens);
  add("page_table", options.page_table);
  add("page_starts", options.page_starts);
  add("k_descale", options.k_descale);
  add("v_descale", options.v_descale);
  if (options.rotary) {
    read.emplace_back("rotary_cos", options.rotary->cos);
    read.emplace_back("rotary_sin", options.rotary->sin);
    add("rotary_positions", options.rotary->positions);
  }
  for (std::size_t i = 0; i < written.size(); ++i) {
    const auto& [name, view] = written[i];
    for (const auto& [other, input] : read) {
      if (!overlaps(view, input)) continue;
      refuse("{} overlaps {} in memory; an output that shares no byte with an input is accepted", name, other);
    }
    for (std::size_t j = 0; j < i; ++j) {
      if (!overlaps(view, written[j].second)) continue;
      refuse("{} overlaps {} in memory; outputs that share no byte are accepted", name, written[j].first);
    }
  }
}

/// Where a sequence writes, by the entry of the cache: rows [first, end).
struct Written {
  std::int64_t entry, first, end, sequence;
};

/// Rows that sequence b may have.
std::int64_t room_of(const AppendOptions& options, const AppendSizes& sizes, std::int64_t b) {
  if (!options.page_starts) return sizes.room;
  return (integer_at(*options.page_starts, b + 1) - integer_at(*options.page_starts, b)) * sizes.page_rows;
}

/// Rows of sequence b have room, and pages; what it writes comes to `written`.
void check_sequence(const AppendOptions& options, const AppendSizes& sizes, std::int64_t entries, std::int64_t b,
                    std::vector<Written>& written) {
  const std::int64_t length = integer_at(options.kv_lengths, b);
  if (length < 0) refuse("kv_lengths[{}] is {}; 0 and more are accepted", b, length);
  const std::int64_t room = room_of(options, sizes, b);
  const AppendSpan span = append_span(options, sizes, b);
  const std::int64_t rows = span.end - span.begin;
  if (rows > 0 && length > room - rows) {
    refuse("kv_lengths[{}] is {}, and {} new rows follow; the cache has room for {} rows of {} sequence", b, length,
           rows, room, options.page_starts ? "the" : "a");
  }
  for (std::int64_t i = 0; i < rows;) {
    const AppendIndex index = append_index(options, sizes, b, i);
    const std::int64_t here = std::min(rows - i, sizes.page_rows - index.row);
    if (index.entry < 0 || index.entry >= entries) {
      const std::int64_t number = (length + i) / sizes.page_rows;
      const std::string of_table = options.page_starts
                                       ? fmt::format("[{}]", integer_at(*options.page_starts, b) + number)
                                       : fmt::format("[{}, {}]", b, number);
      refuse("page_table{} is {}, for new rows of {}; pages are numbered from 0 to {}", of_table, index.entry,
             options.page_starts ? fmt::format("sequence {}", b) : "the sequence", entries - 1);
    }
    written.push_back({index.entry, index.row, index.row + here, b});
    i += here;
  }
}

void check_page_starts(const AppendOptions& options, const AppendSizes& sizes) {
  const std::int64_t entries = options.page_table->shape[0];
  for (std::int64_t b = 0; b <= sizes.batch; ++b) {
    const std::int64_t start = integer_at(*options.page_starts, b),
                       before = b == 0 ? 0 : integer_at(*options.page_starts, b - 1);
    if (start < before || start > entries) refuse_page_start(b, start, before, entries);
  }
}

void check_starts(const ConstTensorView& starts, const AppendSizes& sizes) {
  for (std::int64_t b = 0; b <= sizes.batch; ++b) {
    const std::int64_t start = integer_at(starts, b), before = b == 0 ? 0 : integer_at(starts, b - 1);
    if (start < before || start > sizes.rows) {
      refuse("cu_seqlens[{}] is {}; {} to {} are accepted", b, start, before, sizes.rows);
    }
  }
}

}  // namespace

AppendSizes append_sizes(const AppendTensors& tensors, const AppendOptions& options) {
  const bool paged = options.page_table.has_value();
  AppendSizes sizes{};
  sizes.batch = options.cu_seqlens ? options.cu_seqlens->shape[0] - 1 : tensors.k.shape[0];
  sizes.rows = tensors.k.shape[2];
  sizes.q_rows = tensors.q ? tensors.q->shape[2] : 0;
  sizes.page_rows = tensors.k_cache.shape[2];
  const std::int64_t pages = paged ? options.page_table->shape[options.page_table->rank() - 1] : 1;
  sizes.room = pages * sizes.page_rows;
  return sizes;
}

void check_append(const AppendTensors& tensors, const AppendOptions& options) {
  const ConstTensorView& k = tensors.k;
  check_new("k", k, k, "[B, Hkv, n, Dqk]");
  if (tensors.v.has_value() != tensors.v_cache.has_value()) {
    refuse("{} is given without {}; both are accepted, or none", tensors.v ? "v" : "v_cache",
           tensors.v ? "v_cache" : "v");
  }
  if (tensors.v) {
    check_new("v", *tensors.v, k, "[B, Hkv, n, Dv]");
    check_shape("v", *tensors.v, {k.shape[0], k.shape[1], k.shape[2], tensors.v->shape[3]}, "as k has it");
  }
  check_rows("k_cache", tensors.k_cache, 4, options.page_table ? "[pages, Hkv, page_size, D]" : "[B, Hkv, rows, D]");
  if (options.cu_seqlens) {
    const ConstTensorView& starts = *options.cu_seqlens;
    if (starts.rank() != 1 || starts.shape[0] < 1) {
      refuse("cu_seqlens has shape {}; [N + 1] is accepted", to_string(starts.shape));
    }
    check_integers("cu_seqlens", starts, starts.shape[0], k);
    if (k.shape[0] != 1) refuse("k has shape {}; [1, Hkv, T, Dqk] is accepted with cu_seqlens", to_string(k.shape));
  }
  if (options.page_starts && !options.page_table) {
    refuse("page_starts is given without page_table, the list of pages; both are accepted");
  }
  if (options.page_table && options.page_table->rank() != (options.page_starts ? 1 : 2)) {
    refuse("page_table has shape {}; {} is accepted", to_string(options.page_table->shape),
           options.page_starts ? "[entries], beside page_starts," : "[B, max_pages]");
  }
  const AppendSizes sizes = append_sizes(tensors, options);
  check_integers("kv_lengths", options.kv_lengths, sizes.batch, k);
  if (options.page_table) check_table(tensors, options, sizes);
  check_cache("k_cache", tensors.k_cache, k, tensors, options);
  if (tensors.v) check_cache("v_cache", *tensors.v_cache, *tensors.v, tensors, options);
  check_descale("k_descale", options.k_descale, "k_cache", tensors.k_cache, tensors, sizes);
  if (options.v_descale && !tensors.v) refuse("v_descale is given without v; both are accepted, or none");
  if (tensors.v) check_descale("v_descale", options.v_descale, "v_cache", *tensors.v_cache, tensors, sizes);
  if (options.rotary) check_rotary(*options.rotary, tensors, sizes);
  check_queries(tensors, options);
  check_apart(tensors, options);
}

void check_append_rows(const AppendTensors& tensors, const AppendOptions& options) {
  const AppendSizes sizes = append_sizes(tensors, options);
  if (options.cu_seqlens) check_starts(*options.cu_seqlens, sizes);
  if (options.page_starts) check_page_starts(options, sizes);
  std::vector<Written> written;
  for (std::int64_t b = 0; b < sizes.batch; ++b) {
    check_sequence(options, sizes, tensors.k_cache.shape[0], b, written);
    if (!options.rotary) continue;
    const Rotary& rotary = *options.rotary;
    const AppendSpan span = append_span(options, sizes, b);
    const std::int64_t of_queries = options.cu_seqlens || rotary.queries_at_first ? 0 : sizes.q_rows;
    const std::int64_t count = std::max(span.end - span.begin, of_queries),
                       first = integer_at(rotary.positions ? *rotary.positions : options.kv_lengths, b);
    if (count == 0 || (first >= 0 && first <= rotary.cos.shape[0] - count)) continue;
    refuse("{}[{}] is {}, the position of the first of {} rows; rotary_cos has angles of positions 0 to {}",
           rotary.positions ? "rotary_positions" : "kv_lengths", b, first, count, rotary.cos.shape[0] - 1);
  }
  std::ranges::sort(written, {}, [](const Written& x) { return std::tuple(x.entry, x.first); });
  for (std::size_t i = 1; i < written.size(); ++i) {
    const Written &before = written[i - 1], &after = written[i];
    if (before.entry != after.entry || before.end <= after.first) continue;
    refuse("sequences {} and {} both have row {} of {} {}; a place of its own for each new row is accepted",
           std::min(before.sequence, after.sequence), std::max(before.sequence, after.sequence), after.first,
           options.page_table ? "page" : "sequence", after.entry);
  }
}

std::int64_t integer_at(const ConstTensorView& view, std::int64_t i) {
  const std::int64_t at = i * view.strides[0];
  return view.dtype == DType::i32 ? base::load_raw<std::int32_t>(view.data, at)
                                  : base::load_raw<std::int64_t>(view.data, at);
}

AppendSpan append_span(const AppendOptions& options, const AppendSizes& sizes, std::int64_t b) {
  if (!options.cu_seqlens) return {0, sizes.rows};
  return {integer_at(*options.cu_seqlens, b), integer_at(*options.cu_seqlens, b + 1)};
}

AppendIndex append_index(const AppendOptions& options, const AppendSizes& sizes, std::int64_t b, std::int64_t row) {
  const std::int64_t at = integer_at(options.kv_lengths, b) + row;
  if (!options.page_table) return {b, at};
  const ConstTensorView& table = *options.page_table;
  const std::int64_t number = at / sizes.page_rows;
  const std::int64_t place = options.page_starts ? (integer_at(*options.page_starts, b) + number) * table.strides[0]
                                                 : b * table.strides[0] + number * table.strides[1];
  return {base::load_raw<std::int32_t>(table.data, place), at % sizes.page_rows};
}

}  // namespace heddle::problem
