// A cache of keys and values: new rows are appended after the valid ones.
//
//   new rows       k [B, Hkv, n, Dqk]              v [B, Hkv, n, Dv]
//   cache          k_cache [B, Hkv, rows, Dqk]     v_cache [B, Hkv, rows, Dv]
//   in pages       k_cache [pages, Hkv, size, Dqk] v_cache [pages, Hkv, size, Dv], page_table i32 [B, max_pages],
//                  or a list i32 [entries] with page_starts i32 [B + 1]
//
// All have element strides, so [B, rows, Hkv, D], and keys and values in one tensor, are accepted, too. For a cache in
// which a sequence may have any batch row (cache_batch_idx), use pages of the length of a row, with a page_table [B,
// 1].
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
  /// Both or none: a cache with values that are columns of the keys (MLA) has only keys.
  std::optional<ConstTensorView> v{};
  std::optional<TensorView> v_cache{};
  /// Both or none, only with a rotary embedding: queries [B, Hq, Sq, Dqk], and the output for the rotated queries. Row
  /// i of a sequence's queries has the position of its new row i.
  std::optional<ConstTensorView> q{};
  std::optional<TensorView> q_out{};
};

/// A rotary embedding rotates pairs of columns (x, y) of keys and queries by the angle of their position: (x cos - y
/// sin, y cos + x sin). (Su et al. 2021, RoFormer, eq. 34.)
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
  /// i32 or i64 [B] (packed: [N]): the number of valid rows of each sequence before the call. New row i becomes row
  /// kv_lengths[b] + i.
  ConstTensorView kv_lengths;
  /// i32 or i64 [N + 1]: the first new row of each sequence in a packed batch, then the end of the last sequence. Rows
  /// after that belong to no sequence.
  std::optional<ConstTensorView> cu_seqlens{};
  std::optional<ConstTensorView> page_table{};  // i32 [B, max_pages] (packed: [N, max_pages])
  /// i32 [B + 1] (packed: [N + 1]): page_table is a list [entries], as AttentionOptions::page_starts says.
  std::optional<ConstTensorView> page_starts{};
  /// f32 [B, Hkv] (packed: [N, Hkv]; an extent may be 1), only with an 8-bit cache: the stored value is x / descale, so
  /// attention with these factors sees x.
  std::optional<ConstTensorView> k_descale{}, v_descale{};
  std::optional<Rotary> rotary{};
  void* stream = nullptr;  // a GPU's, as AttentionOptions::stream
};

/// Writes k and v into the caches, and the rotated queries to q_out. Each element is rounded once, to nearest even,
/// from f32 (f64 if a tensor is f64); in 8 bits, larger magnitudes become the largest finite number, and NaN stays.
///
/// On the CPU it throws Error before it writes anything: for lengths below 0, rows that do not fit, pages that do not
/// exist, positions without an angle, and two new rows for the same place. On a GPU it is one launch, which reads
/// lengths and tables on the device, so one CUDA graph serves all their values. There a new row without a valid place
/// is not written, and a position without an angle gets the nearest angle. The first call of a process with these
/// dtypes on a device also compiles and loads the kernel, and must not be captured in a graph.
///
/// Caches and q_out share no byte with each other or with the tensors that are read.
void append_kv(const AppendTensors& tensors, const AppendOptions& options);

/// Groups of sequences with the same first pages, as AttentionOptions::prefix_group and prefix_len take them.
struct Prefixes {
  std::vector<std::int32_t> group;  // [B]: the number of the group's first sequence; -1: none
  std::vector<std::int32_t> len;    // [B]: keys that all sequences of the group share; 0: none
};

/// Compares the pages of neighbouring sequences, and splits the batch into groups of neighbours that save the most
/// reads of keys. Place sequences that share pages next to each other. It runs on the host: call it before you copy the
/// table to a GPU.
///
/// page_table, i32 [B, max_pages], or with page_starts i32 [B + 1] a list [entries]: as AttentionOptions has them.
/// kv_lengths, i32 or i64 [B]. page_size: keys of a page. All on the CPU. Throws Error(invalid_argument).
Prefixes find_prefixes(const ConstTensorView& page_table, const ConstTensorView& kv_lengths, std::int64_t page_size,
                       const std::optional<ConstTensorView>& page_starts = {});

}  // namespace heddle
