// Measurements of kernels as far as a choice among plans needs them: which plan one found fastest, and whether one is
// due.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/prepare.h"
#include "heddle/attention.h"
#include "plan/plan.h"
#include "tune/tuning_record.h"

namespace heddle::engine {

/// The options' tuning, else the environment's; never automatic. Throws invalid_argument if the variable has an unknown
/// value.
Tuning tuning_of(const AttentionOptions& options);

class Tuner {
 public:
  /// Reads the record of the request's class of problems, if tuning is to follow one.
  explicit Tuner(const plan::Request& request);

  /// Plans that are only worth measuring may be chosen, too.
  bool wants_variants() const { return record_ || asks_; }
  /// One plan of each kernel's name, those that the record has first, in its order.
  std::vector<plan::Choice> ordered(std::vector<plan::Choice> choices) const;
  /// These are to be measured.
  bool measures(const std::vector<plan::Choice>& choices) const;
  /// Prepares and measures all choices, and keeps the record. Throws Error(compile) with all reasons if the compiler
  /// makes none of them well.
  Prepared fastest_of(std::vector<plan::Choice> choices, const Prepare& prepare) const;
  /// Why the record was not read: a sentence, or empty.
  const std::string& trouble() const { return trouble_; }

 private:
  const plan::Request& request_;
  std::string problem_class_, trouble_;
  std::optional<tune::Record> record_;
  bool asks_ = false;  // for a measurement
};

}  // namespace heddle::engine
