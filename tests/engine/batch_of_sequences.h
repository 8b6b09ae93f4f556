// Batches of sequences that are the same numbers wherever they stand: for tests of batch_invariant. A sequence's
// numbers follow from its own seed, and a batch lays some of them out, padded, packed or in pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "heddle/attention.h"

namespace heddle::test {

struct OwnSequence {
  std::uint64_t seed = 0;
  std::int64_t q_len = 1, kv_len = 1;
};

/// The sizes, types and mods that all sequences of a batch have in common.
struct SequencesSpec {
  std::int64_t kv_heads = 2, group = 4, qk_dim = 64, v_dim = 64;
  DType q_dtype = DType::bf16, kv_dtype = DType::bf16;
  bool values_in_keys = false;
  Expr score{}, mask{};  // mask: over positions from the last query back, q_start = kv_len - q_len
  bool lengths_on_gpu = false;
  Device device{};  // where everything is
};

/// How a batch lies in memory.
struct BatchForm {
  bool packs_queries = false;  // and, without pages, the keys
  std::int64_t page_rows = 0;  // 0: no pages
  std::int64_t more_rows = 0;  // of the padded tensors, or of the table, behind the longest sequence's
};

/// A batch in memory, and the bits of its results.
class BatchOfSequences {
 public:
  BatchOfSequences(const SequencesSpec& spec, const std::vector<OwnSequence>& sequences, const BatchForm& form);

  AttentionTensors tensors() const;
  /// With batch_invariant.
  AttentionOptions options() const;
  /// The bytes of o and of lse of the rows of sequence number `i`, once tensors() have been computed.
  std::vector<std::byte> bits_of(std::size_t i) const;

 private:
  void place_queries();
  void place_keys();
  Tensor numbers(std::int64_t seed, DType dtype, std::int64_t heads, std::int64_t rows, std::int64_t dim) const;
  void add_lengths();
  Tensor placed(const Tensor& tensor) const;

  SequencesSpec spec_;
  std::vector<OwnSequence> sequences_;
  BatchForm form_;
  std::vector<std::int64_t> q_begins_;  // packed
  Tensor q_, k_, v_, o_, lse_, table_, q_lengths_, kv_lengths_, cu_q_, cu_kv_, q_start_;
  std::int64_t longest_q_ = 0, longest_kv_ = 0;
};

/// Computes a batch: tensors and options.
using ComputeBatch = std::function<void(const AttentionTensors&, const AttentionOptions&)>;

/// Expects that a sequence has the same bits alone and in batches of 3 to 40 others, in any position and form.
/// `queries`: the most of a sequence.
struct InvarianceTest {
  SequencesSpec spec{};
  std::int64_t queries = 1, keys = 700;  // the most of a sequence
  int batches = 6, most = 40;  // batches, and sequences of the largest one
  std::vector<BatchForm> forms = {{}, {.more_rows = 37}, {.packs_queries = true}, {.page_rows = 16}};
  std::uint64_t seed = 1;
};
void expect_invariant(const InvarianceTest& test, const ComputeBatch& compute);

}  // namespace heddle::test
