// Activations, of the operations of the language.
#include <numbers>

#include "heddle/expr.h"

namespace heddle {

Expr relu(const Expr& x) { return max(x, 0); }

/// No exponential of a positive number, which would overflow.
Expr softplus(const Expr& x) { return max(x, 0.0) + log1p(exp(-abs(x))); }

Expr gelu(const Expr& x) { return 0.5 * x * (1.0 + erf(x * (1 / std::numbers::sqrt2))); }

Expr gelu_tanh(const Expr& x) {
  constexpr double kScale = 0.79788456080286535588;  // sqrt(2 / pi)
  return 0.5 * x * (1.0 + tanh(kScale * (x + 0.044715 * (x * x * x))));
}

Expr silu(const Expr& x) { return x * sigmoid(x); }

}  // namespace heddle
