// A cache of keys and values: new rows go behind those that count.
//
//   new rows       k [B, Hkv, n, Dqk]              v [B, Hkv, n, Dv]
//   cache          k_cache [B, Hkv, rows, Dqk]     v_cache [B, Hkv, rows, Dv]
//   in pages       k_cache [pages, Hkv, size, Dqk] v_cache [pages, Hkv, size, Dv], page_table i32 [B, max_pages],
//                  or a list i32 [entries] with page_starts i32 [B + 1]
//
// All in element strides, so [B, rows, Hkv, D] and keys beside values in one tensor are such caches too. A cache of
// which sequences take any row (cache_batch_idx) is one of pages as long as its rows, with a page_table of [B, 1].
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "heddle/tensor.h"

namespace heddle {

/// The tensors of one call. k, v and q share one of f64, f32, f16, bf16, e4m3, e5m2; caches and q_out have any of them
/// each. Packed: k is [1, Hkv, T, Dqk], v [1, Hkv, T, Dv] and q [1, Hq, T, Dqk].
struct AppendTensors {
  ConstTensorView k;
  TensorView k_cache;
  /// Both or none: a cache whose values are columns of its keys (MLA) has keys alone.
  std::optional<ConstTensorView> v{};
  std::optional<TensorView> v_cache{};
  /// Both or none, with a rotary embedding alone: queries [B, Hq, Sq, Dqk], and their place once they are turned. Row i
  /// of a sequence's queries has the position of its new row i.
  std::optional<ConstTensorView> q{};
  std::optional<TensorView> q_out{};
};

/// A rotary embedding turns pairs of columns (x, y) of keys and queries by the angle of their position:
/// (x cos - y sin, y cos + x sin). (Su et al. 2021, RoFormer, eq. 34.)
struct Rotary {
  /// [positions, R / 2], of one floating dtype: the angle of each position and pair. R is at most Dqk; columns from R
  /// on stay as they are.
  ConstTensorView cos, sin;
  bool interleaved = false;  // pair i is the columns 2 i and 2 i + 1; else i and i + R / 2
  /// i32 or i64 [B] (packed: [N]): the position of each sequence's first new row. Not given: its row in the cache.
  std::optional<ConstTensorView> positions{};
  bool queries_at_first = false;  // all queries of a sequence have its first new row's position
};

struct AppendOptions {
  /// i32 or i64 [B] (packed: [N]): how many rows of each sequence count before. New row i becomes row kv_lengths[b] +
  /// i.
  ConstTensorView kv_lengths;
  /// i32 or i64 [N + 1]: where the new rows of each sequence begin in a packed batch, and the end of the last ones.
  /// Rows behind that belong to no sequence.
  std::optional<ConstTensorView> cu_seqlens{};
  std::optional<ConstTensorView> page_table{};  // i32 [B, max_pages] (packed: [N, max_pages])
  /// i32 [B + 1] (packed: [N + 1]): page_table is a list [entries], as AttentionOptions::page_starts says.
  std::optional<ConstTensorView> page_starts{};
  /// f32 [B, Hkv] (packed: [N, Hkv]; an extent may be 1), with a cache of 8 bits alone: stored is x / descale, so that
  /// attention with these factors sees x.
  std::optional<ConstTensorView> k_descale{}, v_descale{};
  std::optional<Rotary> rotary{};
  void* stream = nullptr;  // a GPU's, as AttentionOptions::stream
};

/// Writes k and v into the caches, and turned queries to q_out. Each element is rounded once, to nearest even, from f32
/// (f64 if a tensor is f64); in 8 bits, larger magnitudes become the largest finite number, and NaN stays.
///
/// On the CPU throws Error before anything is written: for lengths below 0, rows without room, pages that are not
/// there, positions without an angle, and two new rows with one place. On a GPU it is one launch, which reads lengths
/// and tables there, so a CUDA graph serves all of them: new rows that have no place are not written, and the angle of
/// a position that has none is the nearest one's. The first call of a process with these dtypes on a device also
/// compiles and loads the kernel, and must not be captured in a graph.
///
/// Caches and q_out share no byte with each other or with the tensors that are read.
void append_kv(const AppendTensors& tensors, const AppendOptions& options);

/// Groups of sequences whose first pages are the same, as AttentionOptions::prefix_group and prefix_len take them.
struct Prefixes {
  std::vector<std::int32_t> group;  // [B]: the number of the group's first sequence; -1: none
  std::vector<std::int32_t> len;    // [B]: keys that all sequences of the group share; 0: none
};

/// Compares the pages of neighbours in a table on the CPU, and cuts the batch into groups of neighbours so that the
/// keys that need not be read again are the most that they can be. Sequences that share pages must therefore stand
/// beside each other. Computed on the host: compare before the table goes to a GPU.
///
/// page_table, i32 [B, max_pages], or with page_starts i32 [B + 1] a list [entries]: as AttentionOptions has them.
/// kv_lengths, i32 or i64 [B]. page_size: keys of a page. All on the CPU. Throws Error(invalid_argument).
Prefixes find_prefixes(const ConstTensorView& page_table, const ConstTensorView& kv_lengths, std::int64_t page_size,
                       const std::optional<ConstTensorView>& page_starts = {});

}  // namespace heddle
