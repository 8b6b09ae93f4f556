// The backward of an attention case: dO, d_lse and the gradients in poisoned memory; how to run it and judge it.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/attention_case.h"
#include "heddle/backward.h"

namespace heddle::test {

/// The backends whose backward these tests run. HEDDLE_TEST_BACKEND names another one instead.
const std::vector<BackendChoice>& backward_backends();
/// The backends among them whose results have the same bits for any number of threads. The reference adds in no fixed
/// order.
const std::vector<BackendChoice>& bitwise_backward_backends();

/// Whether lse alone has lost digits of ln l that right gradients need, so that callers give lse_rest
/// (docs/guide/backward.md). Runs the case's forward on the CPU.
bool needs_lse_rest(CaseSpec spec);

/// The arguments of a backward beside its forward's.
struct BackwardSpec {
  Layout layout = Layout::bhsd;           // of dO, d_lse, dq, dk and dv; of the gradients bhsd where it overlaps
  bool d_o_as_q = false;                  // dO has q's dtype, else o's
  std::optional<DType> gradient_dtype{};  // of all gradients; else those that attention_backward gives them
  bool with_d_lse = true;                 // softmax only
  bool deterministic = false;             // is asked for
  std::string wanted = "all";  // all, q, k, v, kv, reads (sinks, captures, params; q if there are none), k reads
  std::string text() const;
};

/// A wanted gradient: its name as check_backward reports it, and its memory.
struct Gradient {
  std::string name;
  GuardedTensor memory;
  TensorView view;
};

/// A case and its backward. The case runs forward first: o and lse are the CPU backend's, also for the reference.
class BackwardCase {
 public:
  /// Draws dO and d_lse; NaN in rows past a sequence's end. Finds what has a gradient in the case's options: captures
  /// and params may be bound, and mods set, before.
  BackwardCase(AttentionCase& attention_case, const BackwardSpec& spec);

  const AttentionCase& forward() const { return forward_; }
  std::string text() const { return forward_.spec().text() + "; " + spec_.text(); }
  GuardedTensor d_o, d_lse_rows;  // d_lse_rows: [B, H, 1, S]

  /// The gradient that check_backward calls so; throws if it is not asked for.
  const Gradient& gradient(const std::string& name) const;
  const std::vector<Gradient>& gradients() const { return gradients_; }
  BackwardTensors tensors() const;

  /// Computes o and lse.
  void run_forward();
  /// Fills the gradients with NaN and computes them.
  void run(BackendChoice backend);
  /// Expects what every run owes: the criterion, nothing written beside the gradients, and inputs as they were.
  void judge() const;
  /// The bits of all gradients, to compare runs.
  std::vector<std::vector<std::byte>> bits() const;

 private:
  void make_gradient(const std::string& name, DType dtype, const Dims& shape);
  void make_row_gradients();
  void make_gradients_of_reads();
  DType dtype_of(DType own) const;
  std::vector<std::vector<std::byte>> input_bits() const;

  AttentionCase& forward_;
  BackwardSpec spec_;
  std::vector<Gradient> gradients_;
  std::vector<std::vector<std::byte>> inputs_before_;
};

/// Runs the case forward and backward on the backend, and expects what every run owes.
void run_and_judge(BackwardCase& backward_case, BackendChoice backend);

}  // namespace heddle::test
