#include "expr/ranges.h"

#include <limits>

#include "expr/range_program.h"
#include "heddle/error.h"

namespace heddle::expr {

Range Range::any(ExprType type) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (type == ExprType::f32) return {-kInfinity, kInfinity, true};
  if (type == ExprType::boolean) return boolean(true, true);
  return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max(), false};
}

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
