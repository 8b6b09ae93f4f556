// Expressions: the language of score, mask and weight functions. An Expr is a handle on an immutable, shared node;
// building the same expression twice gives the same node. Three ways to write one: C++ on Exprs, text (parse), and the
// ready-made mods of mods.h.
//
//   Expr distance = leaf::kv_idx() - leaf::q_idx();
//   Expr alibi = leaf::score() + Capture("slopes", DType::f32, 1)(leaf::h()) * distance;
//   print(alibi);  // score + slopes[h] * f32(kv_idx - q_idx)
//
// Types: f32 (f64 when the attention's inputs are f64), i32, boolean. Promotion is Python's: i32 with f32 gives f32,
// `/` gives f32. Arithmetic on a boolean is an error, and so is a bit operation on f32. The edge behaviour of each
// operation (overflow, division by zero, NaN) and the largest error of each transcendental stand in src/expr/ops.def.
#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "heddle/dtype.h"
#include "heddle/tensor.h"

namespace heddle {

namespace expr {
struct Node;
}

enum class ExprType : std::uint8_t { f32, i32, boolean };
std::string_view name(ExprType type);

class Expr {
 public:
  /// No expression: a mod that was not given.
  Expr() = default;
  /// Literals.
  template <std::integral T>
  requires(!std::same_as<T, bool>) Expr(T value)
      : Expr(int_literal(std::in_range<std::int64_t>(value) ? static_cast<std::int64_t>(value) : INT64_MAX)) {}
  template <std::floating_point T>
  Expr(T value) : Expr(float_literal(static_cast<double>(value))) {}
  template <std::same_as<bool> T>
  Expr(T value) : Expr(bool_literal(value)) {}

  explicit Expr(std::shared_ptr<const expr::Node> node) : node_(std::move(node)) {}

  bool empty() const { return node_ == nullptr; }
  ExprType type() const;
  const expr::Node* node() const { return node_.get(); }
  const std::shared_ptr<const expr::Node>& shared() const { return node_; }

 private:
  static Expr int_literal(std::int64_t value);  // throws invalid_argument outside i32
  static Expr float_literal(double value);
  static Expr bool_literal(bool value);

  std::shared_ptr<const expr::Node> node_;
};

/// Whether both are one expression, node for node (operator== builds a comparison expression instead).
inline bool same(const Expr& x, const Expr& y) { return x.node() == y.node(); }

/// Inputs of a mod: the element's score and indices. Indices are i32.
namespace leaf {
Expr score();    // f32: scale * q.k; score mods only
Expr b();        // batch entry; the sequence's number in a packed batch
Expr h();        // query head
Expr q_idx();    // position of the query in its sequence, q_start included
Expr kv_idx();   // position of the key in its sequence, kv_start included
Expr q_token();  // row of the query in its tensor (differs from q_idx in packed batches and under q_start)
Expr kv_token();
Expr q_len();  // number of queries and keys of this sequence, and its q_start and kv_start
Expr kv_len();
Expr q_start();
Expr kv_start();
}  // namespace leaf

/// A scalar given at run time; a new value never needs a new kernel.
Expr param(std::string name, ExprType type);

/// A tensor read at computed indices. Storage dtype: f64..e5m2 give f32; every integer type gives i32 (the low 32 bits
/// of the wider ones; u32 and u64 wrap, too); boolean gives boolean.
class Capture {
 public:
  Capture(std::string name, DType dtype, int rank);

  template <class... Index>
  Expr operator()(const Index&... index) const {
    return read({Expr(index)...});
  }
  /// Planning refuses a read whose index it cannot prove inside the tensor wherever the value counts, unless
  /// AttentionOptions::clamp_reads is set; use at() for such reads. where() guards its branches, and the terms of `and`
  /// and `or` guard each other: in `q_idx < 4 & x(q_idx) > 0` the read counts only where q_idx < 4.
  Expr read(std::vector<Expr> indices) const;
  /// `fill` where any index is outside the tensor (negative ones too).
  Expr at(std::vector<Expr> indices, Expr fill) const;

  const std::string& name() const { return name_; }
  DType dtype() const { return dtype_; }
  int rank() const { return rank_; }

 private:
  std::string name_;
  DType dtype_;
  int rank_;
};

Expr operator+(const Expr& x, const Expr& y);
Expr operator-(const Expr& x, const Expr& y);
Expr operator*(const Expr& x, const Expr& y);
Expr operator/(const Expr& x, const Expr& y);  // f32 always
Expr operator%(const Expr& x, const Expr& y);  // sign of the divisor, as Python's
Expr operator-(const Expr& x);
Expr floor_div(const Expr& x, const Expr& y);  // toward minus infinity, as Python's //
Expr min(const Expr& x, const Expr& y);
Expr max(const Expr& x, const Expr& y);
Expr abs(const Expr& x);
Expr sign(const Expr& x);                                     // -1, 0 or 1, of x's type; NaN of NaN
Expr clip(const Expr& x, const Expr& low, const Expr& high);  // min(max(x, low), high)

Expr operator<(const Expr& x, const Expr& y);
Expr operator<=(const Expr& x, const Expr& y);
Expr operator>(const Expr& x, const Expr& y);
Expr operator>=(const Expr& x, const Expr& y);
Expr operator==(const Expr& x, const Expr& y);
Expr operator!=(const Expr& x, const Expr& y);
/// & | ^ ~ take booleans, or the bits of i32.
Expr operator&(const Expr& x, const Expr& y);
Expr operator|(const Expr& x, const Expr& y);
Expr operator^(const Expr& x, const Expr& y);
Expr operator~(const Expr& x);
/// && || ! take booleans alone. Both sides are computed.
Expr operator&&(const Expr& x, const Expr& y);
Expr operator||(const Expr& x, const Expr& y);
Expr operator!(const Expr& x);
/// Shifts take i32. x << y wraps modulo 2^32, x >> y keeps the sign. For y outside 0 to 31: x << y = 0, x >> y = 0 or
/// -1.
Expr operator<<(const Expr& x, const Expr& y);
Expr operator>>(const Expr& x, const Expr& y);
Expr where(const Expr& condition, const Expr& yes, const Expr& no);

Expr to_f32(const Expr& x);  // from i32, and from boolean (0 or 1)
Expr to_i32(const Expr& x);  // from f32: truncates, saturates, NaN gives 0; from boolean
Expr exp(const Expr& x);
Expr exp2(const Expr& x);
Expr expm1(const Expr& x);  // exp(x) - 1, accurate near 0
Expr log(const Expr& x);
Expr log2(const Expr& x);
Expr log1p(const Expr& x);  // log(1 + x), accurate near 0
Expr tanh(const Expr& x);
Expr sigmoid(const Expr& x);
Expr sqrt(const Expr& x);
Expr rsqrt(const Expr& x);
Expr sin(const Expr& x);
Expr cos(const Expr& x);
Expr tan(const Expr& x);
Expr atan(const Expr& x);
Expr erf(const Expr& x);
Expr erfc(const Expr& x);  // 1 - erf(x), accurate for large x
Expr floor(
    const Expr& x);  // whole numbers, as f32: toward minus infinity, plus infinity, the nearest (half to even), 0
Expr ceil(const Expr& x);
Expr round(const Expr& x);
Expr trunc(const Expr& x);
Expr isnan(const Expr& x);  // boolean
Expr isinf(const Expr& x);
/// f32, but for an i32 to an integer literal from 0 to 31: this is a product of i32, which wraps. f32 to an integer
/// literal from 0 to 3 is a product of f32.
Expr pow(const Expr& x, const Expr& y);
/// k / 2^15, uniform in [0, 1): a pure function of its five i32 arguments, the same on every device (Philox4x32-10;
/// src/shared/philox.h). For finer numbers add 2^-15 times a draw of another seed.
Expr random_uniform(const Expr& seed, const Expr& b, const Expr& h, const Expr& q_idx, const Expr& kv_idx);

// Activations, made of the operations above.
Expr relu(const Expr& x);       // max(x, 0), of x's type; its slope at 0 is 1/2
Expr softplus(const Expr& x);   // log(1 + exp(x)), without overflow
Expr gelu(const Expr& x);       // x / 2 * (1 + erf(x / sqrt(2)))
Expr gelu_tanh(const Expr& x);  // x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))); as gelu to 5e-4
Expr silu(const Expr& x);       // x * sigmoid(x); NaN of -inf, as gelu and gelu_tanh

/// Traces a C++ callable: score_mod([](Expr score, Expr b, Expr h, Expr q_idx, Expr kv_idx) { return score * 2.0; }).
template <class F>
Expr score_mod(F&& f) {
  return Expr(f(leaf::score(), leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx()));
}
/// mask_mod and weight_mod record masks and weights, which see no score.
template <class F>
Expr mask_mod(F&& f) {
  return Expr(f(leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx()));
}
template <class F>
Expr weight_mod(F&& f) {
  return mask_mod(static_cast<F&&>(f));
}

/// A run-time scalar's value: f32 (or f64), i32 or boolean.
using ParamValue = std::variant<double, std::int32_t, bool>;

/// The values of names: what a mod's Params and Captures stand for in one run. Views are not owned.
struct Bindings {
  std::map<std::string, ConstTensorView> captures;
  std::map<std::string, ParamValue> params;
};

/// The meaning of names in text.
struct Symbols {
  struct CaptureDecl {
    DType dtype;
    int rank;
  };
  std::map<std::string, CaptureDecl> captures;
  std::map<std::string, ExprType> params;

  Symbols() = default;
  /// The names that `bindings` gives values to.
  explicit Symbols(const Bindings& bindings);
};

/// Reads the text form:
/// - Python's operators, precedence and chained comparisons; `**`; `x if c else y`;
/// - `and or not`, or `& | ~ ^` on booleans; `& | ~ ^ << >>` on i32, which bind as Python's do: tighter than
/// comparisons;
/// - calls by the names above; min and max take two or more;
/// - captures: `slopes[h]`, `bias[b, h, q_idx, kv_idx]`, `at(x, i, fill)`; one of rank 0 by its name alone;
/// - literals: 3, 3.5, 1e-3, True, False, inf, nan. Before all that: names, as in `x = score * 2.0; exp(x) + x`.
/// Throws invalid_argument with the text and a caret under the column. It accepts 64 KiB of text, 256 levels of
/// brackets, calls, prefixes, `**` and `else`, and 1000 nested operations (a sum of n terms nests n - 1). Every way of
/// building an Expr keeps to the 1000.
Expr parse(std::string_view text, const Symbols& symbols = {});
/// Throws invalid_argument for a name of a param or a capture (`what` says which, for the sentence) that no text can
/// read: one that is no identifier, or a word of the language. parse() does not ask it of names that the text lacks.
void require_name(std::string_view what, std::string_view name);
/// The text form. parse(print(e), symbols_of(e)) is the same expression. Long texts give names (_1, _2, ...) to parts
/// that are used more than once, or nest deep.
/// Throws invalid_argument if the text is longer than parse accepts even so.
std::string print(const Expr& e);
/// The least and the greatest value of an expression of type i32, as far as its text says: positions and lengths are 0
/// to 2^30, elements of captures have the values of their type (u8: 0 to 255), params any value. Where a sum may wrap
/// that is any value, too.
/// Throws invalid_argument for another type.
std::pair<std::int32_t, std::int32_t> integer_range(const Expr& e);
/// The captures and params that an expression reads. Throws invalid_argument when one name stands for two things.
Symbols symbols_of(const Expr& e);

}  // namespace heddle
