// The scalar interpreter: one expression at one element. It defines what every other evaluator must compute, so it is
// plain and shares no code with them. Transcendentals are computed in double (f64: by the C library) and rounded once.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <variant>

#include "expr/node.h"

namespace heddle::expr {

/// f32: reals are float, each operation rounded to float. f64: reals are double (attention on f64 inputs).
enum class Precision : std::uint8_t { f32, f64 };

/// A scalar of any type: real (exact in double also when f32), integer or boolean.
using Value = std::variant<double, std::int32_t, bool>;

/// Where an expression is evaluated.
struct Element {
  double score = 0;
  std::array<std::int32_t, kLeafCount> index{};  // by Leaf; index[Leaf::score] is unused
  std::int32_t& operator[](Leaf leaf) { return index[static_cast<std::size_t>(leaf)]; }
  std::int32_t operator[](Leaf leaf) const { return index[static_cast<std::size_t>(leaf)]; }
};

/// One operation on values. Reads, leaves and params are not operations of values: interpret() handles them.
Value apply(Op op, ExprType result, std::span<const Value> operands, Precision precision);

/// Evaluates an expression many times: the order of nodes and the bound names are resolved once.
class Interpreter {
 public:
  /// Throws invalid_argument for a name without a value or of another type. Views must outlive the interpreter; they
  /// are on the CPU.
  Interpreter(const Expr& root, const Bindings& bindings, Precision precision);
  /// Computes in `arithmetic` from what is `given`: constants, params, elements of captures and converted integers.
  /// With f64 from f32 it knows what an f32 mod's inputs are, and none of its rounding errors.
  Interpreter(const Expr& root, const Bindings& bindings, Precision arithmetic, Precision given);

  Value operator()(const Element& element) const;
  double real(const Element& element) const { return std::get<double>((*this)(element)); }
  bool boolean(const Element& element) const { return std::get<bool>((*this)(element)); }

 private:
  struct Step {
    const Node* node;
    std::vector<int> operands;  // positions of earlier steps
    Value constant;             // of constants and params
    ConstTensorView capture;    // of reads
  };
  Expr root_;
  std::vector<Step> steps_;
  Precision arithmetic_, given_;
};

/// Throws invalid_argument, naming the name, when `bindings` lacks a capture or param of `e` or gives it another type
/// or rank.
void check_bound(const Expr& e, const Bindings& bindings);
void check_bound(const Symbols& symbols, const Bindings& bindings);
/// Params replaced by their values.
Expr bind_params(const Expr& e, const Bindings& bindings);

}  // namespace heddle::expr
