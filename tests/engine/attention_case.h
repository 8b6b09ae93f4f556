// An attention drawn from lists of shapes, types, layouts and mods, in poisoned memory; how to run it and judge it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "engine/guarded.h"
#include "heddle/attention.h"
#include "heddle/check.h"

namespace heddle::test {

/// Everything that one case is, as plain data.
struct CaseSpec {
  std::uint64_t seed = 0;
  std::int64_t batch = 1, kv_heads = 1, group = 1, q_rows = 64, kv_rows = 64, qk_dim = 64, v_dim = 64;
  DType q_dtype = DType::f32, k_dtype = DType::f32, v_dtype = DType::f32;
  std::optional<DType> o_dtype;  // the default one otherwise
  Layout layout = Layout::bhsd;
  bool share_q_batch = false, share_kv_batch = false;  // batch 1 where the attention's is larger
  bool share_k_batch = false;                          // k's alone
  std::int64_t q_rest = 0, k_rest = 0;                 // of Dqk: columns that stand in tensors of their own
  bool values_in_keys = false;                         // v is the first columns of k, in its memory
  std::string sequences = "whole";                     // whole, lengths, packed, slots: packed, not all keys count
  std::int64_t page_rows = 0;    // k and v are pages of so many rows, in any order; 0: they are not. Packed: q alone is
  bool listed_pages = false;     // the pages of all sequences stand in a list
  bool prefixes = false;         // groups of sequences begin with equal keys, and the options say so
  std::string q_start = "none";  // none, ahead, aligned (kv_len - q_len), uniform
  std::string kv_start = "none";    // none, ahead, uniform
  bool device_lengths = false;      // on a GPU: lengths, cu_seqlens and starts are there
  std::string score, mask, weight;  // names of mods_by_name(), or empty
  std::int64_t granule = 0;         // rows of granules of a longer sequence that q, k and v hold, in any order; 0: none
  std::string sinks = "none";       // none, normal, large, small, mixed (by head; -inf, +inf, NaN too)
  std::string rows = "built";       // built from the mask, given, lists (odd blocks, or `block`)
  std::optional<BlockSize> block;
  std::optional<BlockSize> tile;  // on a GPU: of the kernel that computes it; else the planner's first
  int packed = 0;                 // and with `tile`, how many queries of each head it packs; 0: its rows are one head's
  int ctas = 0;                   // and with `tile`, how many there are at most; 0: one a multiprocessor
  Normalizer normalizer = Normalizer::softmax;
  double spread = 1;  // scores are about spread * N(0, 1)
  double late = 1;    // what the last quarter of the keys is multiplied by
  double far = 0;     // what is added to all scores of some queries: 70 of every 150
  bool with_lse = true, with_max_scores = false;
  bool with_lse_rest = false;  // only where there is an lse
  std::optional<double> scale;
  bool descale = false;
  bool allow_tf32 = false;
  int threads = 2;
  int alignment = 16;  // on a GPU: the most that divides the addresses of q, k, v and o, but for lse's; at most 16

  std::int64_t q_heads() const { return kv_heads * group; }
  std::string text() const;
};

/// The names that score, mask and weight may have.
const std::vector<std::string>& score_names();
const std::vector<std::string>& mask_names();
const std::vector<std::string>& weight_names();
/// More names that mask may have: masks that leave few runs of keys.
const std::vector<std::string>& key_mask_names();

/// The case with its memory. Inputs are drawn from the seed; outputs are NaN.
class AttentionCase {
 public:
  explicit AttentionCase(const CaseSpec& spec);

  const CaseSpec& spec() const { return spec_; }
  AttentionTensors tensors() const;
  AttentionOptions& options() { return options_; }
  const AttentionOptions& options() const { return options_; }

  GuardedTensor q, k, v, o, lse_rows;  // lse_rows: [B, H, 1, S]
  GuardedTensor q_rest, k_rest;        // where the spec has them
  GuardedTensor max_score_rows;        // with_max_scores: as lse_rows
  GuardedTensor lse_rest_rows;         // with_lse_rest: as lse_rows

  /// Random integers and reals of this case.
  std::mt19937_64& rng() { return rng_; }
  std::int64_t below(std::int64_t bound) {
    return static_cast<std::int64_t>(rng_() % static_cast<std::uint64_t>(bound));
  }

  /// Draws what has the queries' rows on an axis from N(0, 1): dO, d_lse. Rows past a sequence's end stay as they are.
  void draw_beside_queries(const GuardedTensor& tensor, int row_axis) { fill(tensor, 1, q_lengths_, row_axis); }

  /// Keeps a tensor alive and binds it.
  void capture(const std::string& name, const Tensor& tensor);
  Tensor keep(const Tensor& tensor) {
    kept_.push_back(tensor);
    return tensor;
  }
  /// The largest q_idx and kv_idx plus one, at least 1: what captures over positions must cover.
  std::int64_t positions() const { return positions_; }
  std::int64_t sequences() const { return sequences_; }
  /// Where a key of a sequence is in k and v: the entry of the first axis, and the row.
  std::pair<std::int64_t, std::int64_t> row_of_key(std::int64_t sequence, std::int64_t key) const;
  /// How many keys planning takes a sequence to have at most: where a device alone knows, its pages' rows.
  std::int64_t most_keys() const {
    return spec_.page_rows > 0 && spec_.device_lengths ? table_columns() * spec_.page_rows : spec_.kv_rows;
  }
  /// The largest kv_start, at least 0: a bias over keys has this many columns before the keys'.
  std::int64_t largest_kv_start() const { return largest_kv_start_; }

 private:
  bool counts(std::int64_t row) const;
  void fill(const GuardedTensor& tensor, double spread, const std::vector<std::int64_t>& lengths, int row_axis = 2);
  void make_sequences();
  void make_pages();
  void make_list(std::vector<std::int32_t>& free);
  /// A page for keys of a sequence from `first` on.
  std::int32_t take_page(std::vector<std::int32_t>& free, std::int64_t first, std::int64_t length);
  /// One more than the keys take.
  std::int64_t table_columns() const { return (spec_.kv_rows + spec_.page_rows - 1) / spec_.page_rows + 1; }
  Dims kv_shape(std::int64_t batch, std::int64_t dim) const;
  void make_prefixes();
  void make_sinks();
  void make_small_tensors();
  void make_mods();
  void deal_granules();
  void make_rows();

  CaseSpec spec_;
  AttentionOptions options_;
  std::mt19937_64 rng_;
  std::vector<Tensor> kept_;
  std::vector<std::int64_t> q_lengths_, kv_lengths_, kv_begins_;  // kv_begins_: of packed keys
  std::int64_t granules_ = 0;                                     // of the longer sequence
  std::int64_t positions_ = 1, sequences_ = 1, largest_kv_start_ = 0;
  std::vector<std::int64_t> page_first_, page_used_;  // of each page: the key of its first row, and how many it holds
};

/// Runs the case on the backend under test (HEDDLE_TEST_BACKEND, else cpu) and expects what every run owes.
void run_and_judge(AttentionCase& attention_case);
/// Expects of a run: the criterion, and nothing written outside its outputs.
void judge(const AttentionCase& attention_case);
BackendChoice backend_under_test();

/// Copies of the outputs, to compare runs bit by bit.
struct Outputs {
  std::vector<std::byte> o, lse, max_scores, lse_rest;
  bool operator==(const Outputs&) const = default;
};
Outputs outputs_of(const AttentionCase& attention_case);

}  // namespace heddle::test
