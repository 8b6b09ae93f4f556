// The steps of a mask's range program (expr/range_program.h) as device code, a declaration a step, for the texts that
// are made of them.
#pragma once

#include <string>
#include <vector>

#include "backend/device_text/mod_layout.h"
#include "expr/range_program.h"

namespace heddle::device_text {

/// The intervals of the leaves: expressions of type shared::Interval.
struct LeafTexts {
  std::string b, h, q_idx, kv_idx, q_len, kv_len, q_start;
  std::string q_token{}, kv_token{};  // of the params of these names (expr/key_bounds.h); empty: they are in the layout

  /// Empty for a leaf that no program may read.
  const std::string& of(expr::Leaf leaf) const;
};

/// "shared::Relation::lt"
std::string relation_text(shared::Relation relation);

class RangeSteps {
 public:
  /// `axes` is empty where captures have no zone maps: then reads of a few elements have their range, those of many
  /// none.
  RangeSteps(const expr::RangeProgram& program, const ModLayout& layout, const ZoneAxes& axes, const LeafTexts& leaves);

  /// Declares s0, s1 ..., each after those that it reads.
  const std::vector<std::string>& declarations() const { return declarations_; }
  /// The steps that step `number` reads.
  std::vector<int> reads_of(int number) const;
  std::vector<int> reads_of(const expr::RangeProgram::Sum& sum) const;

  /// A sum over the integers; `without`: all terms but that one.
  std::string sum_text(const expr::RangeProgram::Sum& sum, int without = -1) const;
  /// Whether no side of a comparison of integers wraps.
  std::string exact_text(int comparison) const;

 private:
  struct Value {
    ExprType type;
    std::string text;
  };
  using RangeProgram = expr::RangeProgram;

  ExprType type_of(int step) const { return types_[static_cast<std::size_t>(step)]; }
  Value write(const RangeProgram::Constant& constant) const;
  Value write(const RangeProgram::Param& param) const;
  Value write(const RangeProgram::LeafValue& value) const;
  Value write(const RangeProgram::Sum& sum) const;
  Value write(const RangeProgram::Comparison& comparison) const;
  Value write(const RangeProgram::Pair& pair) const;
  Value write(const RangeProgram::Read& read);
  Value write(const RangeProgram::Operation& operation) const;
  ExprType result_of(const RangeProgram::Operation& operation) const;

  const RangeProgram& program_;
  const ModLayout& layout_;
  const ZoneAxes& axes_;
  const LeafTexts& leaves_;
  std::string before_;           // declarations that the step being written needs first
  std::vector<ExprType> types_;  // of the steps written so far
  std::vector<std::string> declarations_;
};

}  // namespace heddle::device_text
