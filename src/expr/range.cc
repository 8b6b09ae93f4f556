#include "expr/range.h"

#include <cstdint>
#include <limits>

namespace heddle::expr {

Range Range::any(ExprType type) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  if (type == ExprType::f32) return {-kInfinity, kInfinity, true};
  if (type == ExprType::boolean) return boolean(true, true);
  return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max(), false};
}

}  // namespace heddle::expr
