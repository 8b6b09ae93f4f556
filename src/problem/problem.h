// AttentionProblem: one attention as plain data, validated, with every option resolved. What later stages read instead
// of the options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "expr/ranges.h"
#include "heddle/attention.h"
#include "heddle/backward.h"

namespace heddle::problem {

enum class Pass : std::uint8_t { forward, backward };  // a decode is a forward of few queries
std::string_view name(Pass pass);

/// Gradients that the caller of a backward wants.
struct WantedGradients {
  bool q = false, k = false, v = false, sinks = false;
  std::vector<std::string> captures, params;  // sorted; each is floating, and read by the score or weight mod
};

struct AttentionProblem {
  Pass pass = Pass::forward;
  Device device{};         // of q, k, v, o and lse
  std::int64_t batch = 0;  // sequences: B, or N of a packed batch
  std::int64_t q_heads = 0, kv_heads = 0;
  std::int64_t q_rows = 0, kv_rows = 0;  // padded sizes of the tensors: Sq, Skv (packed: the totals)
  std::int64_t qk_dim = 0, v_dim = 0;
  std::int64_t q_rest_dim = 0, k_rest_dim = 0;  // of qk_dim: the last columns, which q_rest and k_rest have; 0: none
  DType q_dtype{}, k_dtype{}, v_dtype{}, o_dtype{};
  bool packed = false;
  std::int64_t page_rows = 0;  // rows of a page of k and v, which a table finds for each sequence; 0: no pages
  bool listed_pages = false;   // the table is a list, of which each sequence has a part
  std::vector<std::int32_t> page_starts;  // where the parts begin and the last one ends, if the host knows
  bool shared_kv = false;                 // k and v have batch 1 and serve every sequence of a larger batch
  bool with_lse = false, with_max_scores = false;
  bool with_lse_rest = false;  // a forward writes it, a backward reads it
  bool with_sinks = false;
  expr::Precision precision{};  // f64 when the inputs are f64
  double scale = 0;
  Normalizer normalizer{};
  std::vector<Sequence> sequences;  // [batch]; device_lengths: the longest that any may be, at the origin
  // Each run reads lengths, or cumulative lengths, or starts from the device's memory; among them q_start; kv_start.
  bool device_lengths = false, device_starts = false, device_kv_starts = false;
  DType kv_start_dtype = DType::i32;                   // of those there
  std::int64_t fresh_tokens = 0;                       // as promised; 0: nothing is
  bool with_prefixes = false;                          // sequences of a group begin with equal keys
  std::vector<std::int64_t> prefix_group, prefix_len;  // [batch], if the host knows

  // Flags as asked for: clamp_reads, deterministic, ... (false of a forward if they are a backward's).
#define HEDDLE_FLAG_OPTION(name, shown, help) bool name = false;
#define HEDDLE_BACKWARD_FLAG_OPTION(name, shown, help) bool name = false;
#include "heddle/options.def"
  /// clamp_reads is set, and some read may leave its tensor for some values of params and captures.
  bool reads_leave = false;
  Expr score_mod, mask_mod, weight_mod;  // role-checked, as given (not simplified); may be empty
  std::vector<std::string> captures;     // the names that they read, sorted
  std::vector<std::string> params;

  // Backward only. Its o and lse are inputs.
  bool with_d_lse = false;
  WantedGradients wanted{};

  /// Query heads that read one kv head; there may be none of either.
  std::int64_t group() const { return kv_heads == 0 ? 1 : q_heads / kv_heads; }
};

/// "forward softmax bf16 q[2, 16, 512, 64] k[2, 4, 512, 64] v[2, 4, 512, 64] -> bf16 o, lse; scale 0.125; padded"
std::string to_string(const AttentionProblem& problem);
std::string_view name(Normalizer normalizer);
/// "; deterministic": the flags of a backward.
std::string describe_backward_flags(const AttentionProblem& problem);
/// "the CPU", "cuda:0"
std::string name(const Device& device);

/// Validates everything that does not depend on the memory of q, k, v, o and lse (their data may be null), reads
/// lengths, cu_seqlens, q_start, kv_start, page_starts and the captures that index others, and resolves it all. Each
/// refusal is a sentence that names the argument, what was given and what is accepted. Every refusal of the library
/// about an attention's arguments stands in this folder.
AttentionProblem validate(const AttentionTensors& tensors, const AttentionOptions& options);
/// Validates a backward.
template <std::same_as<BackwardTensors> Tensors>
AttentionProblem validate(const Tensors& tensors, const AttentionOptions& options);
extern template AttentionProblem validate(const BackwardTensors& tensors, const AttentionOptions& options);
/// The tensors of the forward whose backward this is. Nothing is written through o and lse.
AttentionTensors forward_tensors(const BackwardTensors& tensors);

/// Every name that the mods read has a value of the right type, rank and place, and no read (but `at`) can leave its
/// tensor, unless the problem clamps reads.
void validate_bindings(const AttentionProblem& problem, const Bindings& bindings);
/// Refuses a param or capture that no mod reads, naming it and what they read: a misspelt name would change nothing.
void refuse_unread(const AttentionProblem& problem, const Bindings& bindings);
/// True when some read is inside its tensor only for some values of the params and captures, so that those of another
/// run must be checked again; never when the problem clamps reads. Of the bindings only the captures' shapes matter.
bool reads_depend_on_values(const AttentionProblem& problem, const Bindings& bindings);

/// The shapes that o and lse must have for these inputs, and the dtypes that they get when the caller gives none;
/// max_scores and lse_rest are as lse.
struct Outputs {
  Dims o_shape, lse_shape;
  DType o_dtype, lse_dtype;
};
/// Throws as validate does when q, k, v and the options' q_rest and k_rest do not fit each other.
Outputs outputs_of(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                   const AttentionOptions& options = {});

/// The intervals of the leaves over the whole problem, for range analysis. Meaningful only when the problem has
/// elements.
expr::LeafRanges leaf_ranges(const AttentionProblem& problem);
/// The intervals by which kernels' forms of mods are chosen: leaf_ranges(), or those of any batch if it is not to
/// matter (batch_invariant).
expr::LeafRanges form_ranges(const AttentionProblem& problem);
/// True when a sequence does not fill the padded tensors, or its q_start is not the others'. kv_start does not count:
/// kernels of sequences that are alike read it from a vector (plan/mods/kv_start.h).
bool sequences_differ(const AttentionProblem& problem);
/// True when the mod reads a leaf whose values only the device knows.
bool reads_device_lengths(const AttentionProblem& problem, const Expr& mod);
/// True when some sequence has a query and a key.
bool has_elements(const AttentionProblem& problem);

}  // namespace heddle::problem
