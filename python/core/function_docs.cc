#include "function_docs.h"

#include <map>

namespace heddle::python {
namespace {

/// A function: its description, a call of it on params x, y (f32), i, j (i32) and c (bool), and the text of its result.
struct Row {
  const char *name, *what, *call, *result;
};

constexpr Row kRows[] = {
    {"abs", "The absolute value of an i32 or f32.", "heddle.abs(x)", "abs(x)"},
    {"exp", "e to the power of x, f32.", "heddle.exp(x)", "exp(x)"},
    {"exp2", "2 to the power of x, f32.", "heddle.exp2(x)", "exp2(x)"},
    {"log", "The natural logarithm, f32: -inf of 0, NaN of negative numbers.", "heddle.log(x)", "log(x)"},
    {"log2", "The logarithm to base 2, f32: -inf of 0, NaN of negative numbers.", "heddle.log2(x)", "log2(x)"},
    {"tanh", "The hyperbolic tangent, f32.", "heddle.tanh(x)", "tanh(x)"},
    {"sigmoid", "1 / (1 + exp(-x)), f32.", "heddle.sigmoid(x)", "sigmoid(x)"},
    {"sqrt", "The square root, f32: NaN of negative numbers.", "heddle.sqrt(x)", "sqrt(x)"},
    {"rsqrt", "1 / sqrt(x), f32.", "heddle.rsqrt(x)", "rsqrt(x)"},
    {"sin", "The sine, f32.", "heddle.sin(x)", "sin(x)"},
    {"cos", "The cosine, f32.", "heddle.cos(x)", "cos(x)"},
    {"erf", "The error function, f32.", "heddle.erf(x)", "erf(x)"},
    {"floor", "The largest whole number that is not larger, f32.", "heddle.floor(x)", "floor(x)"},
    {"ceil", "The smallest whole number that is not smaller, f32.", "heddle.ceil(x)", "ceil(x)"},
    {"round", "The nearest whole number, halves to even, f32.", "heddle.round(x)", "round(x)"},
    {"trunc", "The whole number toward zero, f32.", "heddle.trunc(x)", "trunc(x)"},
    {"sign", "-1, 0 or 1, of x's type; NaN of NaN.", "heddle.sign(x)", "sign(x)"},
    {"expm1", "exp(x) - 1, exact near 0, f32.", "heddle.expm1(x)", "expm1(x)"},
    {"log1p", "log(1 + x), exact near 0, f32.", "heddle.log1p(x)", "log1p(x)"},
    {"tan", "The tangent, f32.", "heddle.tan(x)", "tan(x)"},
    {"atan", "The inverse tangent, f32.", "heddle.atan(x)", "atan(x)"},
    {"isnan", "Whether an f32 is NaN.", "heddle.isnan(x)", "isnan(x)"},
    {"isinf", "Whether an f32 is infinite.", "heddle.isinf(x)", "isinf(x)"},
    {"relu", "max(x, 0), f32.", "heddle.relu(x)", "max(x, 0.0)"},
    {"silu", "x * sigmoid(x), f32.", "heddle.silu(x)", "x * sigmoid(x)"},
    {"softplus", "log(1 + exp(x)), f32.", "heddle.softplus(x).type", "f32"},
    {"gelu", "x times the normal distribution function, f32.", "heddle.gelu(x).type", "f32"},
    {"gelu_tanh", "gelu by its approximation with tanh, f32.", "heddle.gelu_tanh(x).type", "f32"},
    {"to_f32", "f32 of an i32, and of a bool (0 or 1).", "heddle.to_f32(i)", "f32(i)"},
    {"to_i32", "i32 of an f32 (truncated, saturated, NaN gives 0), and of a bool.", "heddle.to_i32(x)", "i32(x)"},
    {"minimum", "The smaller of two.", "heddle.minimum(i, 4)", "min(i, 4)"},
    {"maximum", "The larger of two.", "heddle.maximum(i, 4)", "max(i, 4)"},
    {"power", "x to the power of y: i32 of an i32 and a literal from 0 to 31, else f32.", "heddle.power(x, y)", "pow(x, y)"},
    {"clip", "min(max(x, low), high).", "heddle.clip(i, 0, 4)", "min(max(i, 0), 4)"},
    {"where", "x where the condition (a bool) is true, else y. It guards reads of arrays in x and y.",
     "heddle.where(c, x, y)", "where(c, x, y)"},
    {"random_uniform",
     "k / 2^15, uniform in [0, 1): a pure function of its five i32 arguments, the same on every device.",
     "heddle.random_uniform(7, i, i, i, j)", "random_uniform(7, i, i, i, j)"},
    {"param",
     "A number by name, whose value `params` of a call gives: another value never compiles again. `type` is 'f32', "
     "'i32' "
     "or 'bool'.",
     "heddle.param('window', 'i32') + 1", "window + 1"},
    {"plan_cache_counts",
     "Of the plans that heddle.attention keeps: hits, misses and evictions since the process began; plans and bytes "
     "kept "
     "now.",
     "sorted(heddle.plan_cache_counts())", "['bytes', 'evictions', 'hits', 'misses', 'plans']"},
    {"clear_plan_cache",
     "Forgets all plans that heddle.attention keeps, and frees its workspaces, but for those in use. On a GPU it waits "
     "until the device is idle.",
     "heddle.clear_plan_cache()", "None"},
};

std::map<std::string, std::string> make_docs() {
  std::map<std::string, std::string> docs;
  for (const auto& [name, what, call, result] : kRows) {
    const std::string
        text = what,
        params = text.starts_with("Of the plans") || text.starts_with("Forgets")
                     ? ""
                     : "\n>>> x, y = heddle.param('x', 'f32'), heddle.param('y', 'f32')"
                       "\n>>> i, j, c = heddle.param('i', 'i32'), heddle.param('j', 'i32'), heddle.param('c', 'bool')";
    docs[name] = text + "\n\n>>> import heddle" + params + "\n>>> print(" + call + ")\n" + result + "\n";
  }
  return docs;
}

}  // namespace

const char* function_doc(const std::string& name) {
  static const std::map<std::string, std::string> docs = make_docs();
  const auto found = docs.find(name);
  return found == docs.end() ? "" : found->second.c_str();
}

}  // namespace heddle::python
