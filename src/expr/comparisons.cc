#include "expr/comparisons.h"

#include "heddle/error.h"

namespace heddle::expr {

Op mirrored(Op comparison) {
  switch (comparison) {
    case Op::lt:
      return Op::gt;
    case Op::le:
      return Op::ge;
    case Op::gt:
      return Op::lt;
    case Op::ge:
      return Op::le;
    default:
      return comparison;
  }
}

Op complement(Op comparison) {
  switch (comparison) {
    case Op::lt:
      return Op::ge;
    case Op::le:
      return Op::gt;
    case Op::gt:
      return Op::le;
    case Op::ge:
      return Op::lt;
    case Op::eq:
      return Op::ne;
    default:
      return Op::eq;
  }
}

bool has_complement(const Node& comparison) {
  return is_comparison(comparison.op) &&
         (comparison.operands[0]->type == ExprType::i32 || comparison.op == Op::eq || comparison.op == Op::ne);
}

bool opposite(const Node& x, const Node& y) {
  if (x.op == Op::logical_not && x.operands[0].get() == &y) return true;
  if (y.op == Op::logical_not && y.operands[0].get() == &x) return true;
  if (!has_complement(x) || !is_comparison(y.op)) return false;
  const Op negated = complement(x.op);
  if (x.operands == y.operands) return y.op == negated;
  return x.operands[0] == y.operands[1] && x.operands[1] == y.operands[0] && y.op == mirrored(negated);
}

}  // namespace heddle::expr
