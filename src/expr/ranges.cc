#include "expr/ranges.h"

#include "expr/range_program.h"
#include "heddle/error.h"

namespace heddle::expr {

struct RangeAnalysis::Program : RangeProgram {
  using RangeProgram::RangeProgram;
};

RangeAnalysis::RangeAnalysis(const Expr& root, Precision precision, const CaptureBounds* bounds) {
  if (root.empty()) throw Error(ErrorCode::invalid_argument, "an empty expression has no range");
  program_ = std::make_unique<const Program>(root, precision, bounds, false);
}
RangeAnalysis::~RangeAnalysis() = default;
RangeAnalysis::RangeAnalysis(RangeAnalysis&&) noexcept = default;

Range RangeAnalysis::operator()(const LeafRanges& leaves, std::vector<Range>& scratch) const {
  scratch.resize(program_->size());
  program_->run(leaves, scratch);
  return scratch.back();
}

Range RangeAnalysis::operator()(const LeafRanges& leaves) const {
  std::vector<Range> scratch;
  return (*this)(leaves, scratch);
}

}  // namespace heddle::expr
