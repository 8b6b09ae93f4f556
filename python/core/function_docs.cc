#include "function_docs.h"

#include <map>

namespace heddle::python {
namespace {

/// A function: its description, a call of it on params x, y (f32), i, j (i32) and c (bool), and the text of its result.
struct Row {
  const char *name, *what, *call, *result;
};

constexpr Row kRows[] = {
#define HEDDLE_OP(name, form, text, arity, kind, ulp)
#define HEDDLE_FUNCTION(name, kind, ulp, what) {#name, what, "heddle." #name "(x)", #name "(x)"},
#include "../../src/expr/ops.def"
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
