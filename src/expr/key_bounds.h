// The keys that a mask may leave a sequence, from its comparisons: those of sums of integers in which kv_idx stands
// once bound it, plainly or below //, min, max or abs. `and` intersects, `or` unites, and whatever else reads a key
// bounds nothing. So windows, chunks, first tokens, prefixes and documents by their begins leave one run or two.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "expr/range_program.h"
#include "shared/key_runs.h"

namespace heddle::expr {

/// The mask may leave no pair of keys that lie within its bounds: it reads memory by key, or differs by head.
bool leaves_holes(const Expr& mask);

/// The names of the params that hold what a sequence's q_idx and kv_idx lack to q_token and kv_token (KeyBounds). No
/// caller's param can have them.
inline constexpr const char* kQTokenParam = "q_token";
inline constexpr const char* kKvTokenParam = "kv_token";

/// The mask with q_idx and kv_idx plus these params for q_token and kv_token.
Expr with_affine_tokens(const Expr& mask);

class KeyBounds {
 public:
  /// A simplified mask.
  explicit KeyBounds(const Expr& mask);

  /// False: all keys are to be read, since nothing bounds them.
  bool bounds() const { return root_ != kAll; }
  /// The rest of the mask without the terms that bound nothing: "q_idx - kv_idx <= 128 and kv_idx <= q_idx".
  std::string text() const;
  /// The keys that it leaves, if any, are one run from the first key on, whatever the lengths: a term bounds keys from
  /// above alone.
  bool leaves_first_keys() const;
  /// The keys for which the mask can be true where the leaves lie in these intervals, kv_idx in that of all keys.
  shared::KeyRuns operator()(const LeafRanges& leaves) const;

  // The steps, for who writes them in another language (backend/device_text/key_runs_text.h).

  /// A term that reads no key: all keys, where that step of the program can be `value`.
  struct Condition {
    int step;
    bool value;
    Expr term;
  };
  /// An interval of one value bounds a value below it: term number `term` of the sum `step`; or `step` itself, which is
  /// divided, shifted, or under min, max or abs, beside the step `other`.
  struct Link {
    enum class Kind : std::uint8_t { sum, quotient, shift, min, max, abs } kind;
    int step, term, other;
  };
  /// Keys of a comparison: term number `term` of the difference of its sides, and from there to kv_idx.
  struct Bound {
    int step, term;
    shared::Relation relation;
    std::vector<Link> links;
    Expr comparison;
    bool value;
  };
  struct Join {
    bool both;
    int first, second;
  };
  using Step = std::variant<Condition, Bound, Join>;
  const std::vector<Step>& steps() const { return steps_; }
  /// The mask's; some steps may serve none.
  int root() const { return root_; }
  const RangeProgram& program() const { return program_; }

 private:
  using NodePointer = std::shared_ptr<const Node>;
  static constexpr int kAll = -1;

  int build(const NodePointer& node, bool value);
  int build_new(const NodePointer& node, bool value);
  int bound_of(const NodePointer& node, bool value);
  bool follow(const Node& node, std::vector<Link>& links) const;
  bool follow_sum(const Node& node, std::vector<Link>& links) const;
  std::optional<int> follow_a_term(const LinearForm& form, std::vector<Link>& links) const;
  int joined(bool both, int first, int second);
  int add(Step step);

  shared::KeyRuns evaluate(const Bound& bound, Interval keys, std::span<const Range> slots) const;
  const RangeProgram::Sum& difference_of(const Bound& bound) const;
  const RangeProgram::Sum& sum_of(const Link& link) const;
  std::int64_t coefficient(const RangeProgram::Sum& sum, int term) const;
  bool bounds_from_above(const Bound& bound) const;
  Interval without(const RangeProgram::Sum& sum, int term, std::span<const Range> slots) const;
  std::string text_of(int step) const;

  Expr mask_;
  RangeProgram program_;
  std::vector<Step> steps_;
  std::map<std::pair<const Node*, bool>, int> built_;
  int root_ = kAll;
};

}  // namespace heddle::expr
