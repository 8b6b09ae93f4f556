// AttentionProblem: one attention as plain data, validated, with every option resolved. What later stages read instead
// of the options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "expr/ranges.h"
#include "heddle/attention.h"

namespace heddle::problem {

struct AttentionProblem {
  std::int64_t batch = 0;  // sequences: B, or N of a packed batch
  std::int64_t q_heads = 0, kv_heads = 0;
  std::int64_t q_rows = 0, kv_rows = 0;  // padded sizes of the tensors: Sq, Skv (packed: the totals)
  std::int64_t qk_dim = 0, v_dim = 0;
  DType q_dtype{}, k_dtype{}, v_dtype{}, o_dtype{};
  bool packed = false;
  bool with_lse = false;
  expr::Precision precision{};  // f64 when the inputs are f64
  double scale = 0;
  Normalizer normalizer{};
  std::vector<Sequence> sequences;  // [batch]

  Expr score_mod, mask_mod, weight_mod;  // role-checked, as given (not simplified); may be empty

  std::int64_t group() const { return q_heads / kv_heads; }
};

/// "forward bf16 q[2, 16, 512, 64] ..."
std::string to_string(const AttentionProblem& problem);

/// Validates everything that does not depend on memory's content, plus lengths, cu_seqlens, q_start and capture
/// indices, and resolves it. Each refusal is a sentence that names the argument, what was given and what is accepted.
/// Every refusal of the library about an attention's arguments stands in validate.cc.
AttentionProblem validate(const AttentionTensors& tensors, const AttentionOptions& options);

/// What a run may change must still fit the plan: same shapes, dtypes and strides, memory present, no overlap of o or
/// lse with anything.
void validate_run(const AttentionTensors& planned, const AttentionTensors& given);

/// The intervals of the leaves over the whole problem, for range analysis.
expr::LeafRanges leaf_ranges(const AttentionProblem& problem);

}  // namespace heddle::problem
