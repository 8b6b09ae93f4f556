// Expr and Capture in Python: operators, functions, text.
#include "expressions.h"

#include <nanobind/operators.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "function_docs.h"
#include "heddle/error.h"
#include "heddle/expr.h"

namespace heddle::python {

using namespace nb::literals;

namespace {

/// A scalar of NumPy's, or a tensor without axes.
bool is_scalar_array(nb::handle value) {
  const nb::object shape = nb::getattr(value, "shape", nb::none());
  return PyTuple_Check(shape.ptr()) && PyTuple_Size(shape.ptr()) == 0 && nb::hasattr(value, "item");
}

bool is_array_with_axes(nb::handle value) {
  const nb::object shape = nb::getattr(value, "shape", nb::none());
  return PyTuple_Check(shape.ptr()) && PyTuple_Size(shape.ptr()) > 0;
}

}  // namespace

Expr expr_of(nb::handle value) {
  if (nb::isinstance<Expr>(value)) return nb::cast<Expr>(value);
  if (nb::isinstance<Capture>(value)) {
    const auto& capture = nb::cast<const Capture&>(value);
    if (capture.rank() == 0) return capture.read({});
    throw nb::type_error(("a mod computes with elements of the array '" + capture.name() + "' of rank " +
                          std::to_string(capture.rank()) + ", not with all of it: index it")
                             .c_str());
  }
  if (PyBool_Check(value.ptr())) return Expr(value.ptr() == Py_True);
  if (PyFloat_Check(value.ptr())) return Expr(PyFloat_AsDouble(value.ptr()));
  if (PyLong_Check(value.ptr())) {
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow == 0 && std::in_range<std::int32_t>(number)) return Expr(number);
    throw nb::value_error(nb::str("a mod computes with integers of i32 (-2147483648 to 2147483647), and {} is none: "
                                  "write it as a float beside reals, and leave a bound out that no index reaches")
                              .format(value)
                              .c_str());
  }
  if (nb::hasattr(value.type(), "__heddle_expr__")) return expr_of(nb::getattr(value, "__heddle_expr__")());
  if (is_array_with_axes(value)) {
    throw nb::type_error(nb::str("a mod computes with one element at a time, not with an array of shape {}: index it")
                             .format(nb::getattr(value, "shape"))
                             .c_str());
  }
  if (is_scalar_array(value)) {  // before its index, which bools of NumPy 1 have, and tensors of reals refuse
    const nb::object item = nb::getattr(value, "item")();
    if (!item.is(value)) return expr_of(item);
  }
  if (PyIndex_Check(value.ptr())) {
    const nb::object index = nb::steal(PyNumber_Index(value.ptr()));
    if (index.is_valid()) return expr_of(index);
    throw nb::python_error();
  }
  if (PyNumber_Check(value.ptr()) && PyObject_HasAttrString(value.ptr(), "dtype")) {
    const nb::object item = nb::getattr(value, "item")();
    if (!item.is(value)) return expr_of(item);
  }
  throw nb::type_error(
      nb::str("a mod computes with expressions, numbers and bools, not with {}")
          .format(nb::str(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(value.ptr()))).attr("__name__")))
          .c_str());
}

namespace {

std::vector<Expr> indices_of(nb::handle index) {
  std::vector<Expr> indices;
  if (nb::isinstance<nb::tuple>(index)) {
    for (const nb::handle one : nb::borrow<nb::tuple>(index)) indices.push_back(expr_of(one));
  } else {
    indices.push_back(expr_of(index));
  }
  return indices;
}

template <class Function>
void binary(nb::class_<Expr>& type, const char* name, const char* reflected, Function function) {
  const auto forward = [function](const Expr& x, nb::handle y) { return function(x, expr_of(y)); };
  type.def(name, forward, nb::is_operator());
  if (reflected != nullptr) {
    type.def(
        reflected, [function](const Expr& y, nb::handle x) { return function(expr_of(x), y); }, nb::is_operator());
  }
}

void add_operators(nb::class_<Expr>& type) {
  binary(type, "__add__", "__radd__", [](const Expr& x, const Expr& y) { return x + y; });
  binary(type, "__sub__", "__rsub__", [](const Expr& x, const Expr& y) { return x - y; });
  binary(type, "__mul__", "__rmul__", [](const Expr& x, const Expr& y) { return x * y; });
  binary(type, "__truediv__", "__rtruediv__", [](const Expr& x, const Expr& y) { return x / y; });
  binary(type, "__floordiv__", "__rfloordiv__", [](const Expr& x, const Expr& y) { return floor_div(x, y); });
  binary(type, "__mod__", "__rmod__", [](const Expr& x, const Expr& y) { return x % y; });
  binary(type, "__pow__", "__rpow__", [](const Expr& x, const Expr& y) { return pow(x, y); });
  binary(type, "__and__", "__rand__", [](const Expr& x, const Expr& y) { return x & y; });
  binary(type, "__or__", "__ror__", [](const Expr& x, const Expr& y) { return x | y; });
  binary(type, "__xor__", "__rxor__", [](const Expr& x, const Expr& y) { return x ^ y; });
  binary(type, "__lshift__", "__rlshift__", [](const Expr& x, const Expr& y) { return x << y; });
  binary(type, "__rshift__", "__rrshift__", [](const Expr& x, const Expr& y) { return x >> y; });
  binary(type, "__lt__", nullptr, [](const Expr& x, const Expr& y) { return x < y; });
  binary(type, "__le__", nullptr, [](const Expr& x, const Expr& y) { return x <= y; });
  binary(type, "__gt__", nullptr, [](const Expr& x, const Expr& y) { return x > y; });
  binary(type, "__ge__", nullptr, [](const Expr& x, const Expr& y) { return x >= y; });
  binary(type, "__eq__", nullptr, [](const Expr& x, const Expr& y) { return x == y; });
  binary(type, "__ne__", nullptr, [](const Expr& x, const Expr& y) { return x != y; });
  type.def("__neg__", [](const Expr& x) { return -x; });
  type.def("__pos__", [](const Expr& x) { return x; });
  type.def("__invert__", [](const Expr& x) { return ~x; });
  type.def("__abs__", [](const Expr& x) { return abs(x); });
  type.def("__round__", [](const Expr& x) { return round(x); });
  type.def("__floor__", [](const Expr& x) { return floor(x); });
  type.def("__ceil__", [](const Expr& x) { return ceil(x); });
  type.def("__trunc__", [](const Expr& x) { return trunc(x); });
  type.def("__hash__", [](const Expr& x) { return reinterpret_cast<std::intptr_t>(x.node()); });
}

void add_functions(nb::module_& module) {
  const auto unary = [&](const char* name, Expr (*function)(const Expr&)) {
    module.def(
        name, [function](nb::handle x) { return function(expr_of(x)); }, "x"_a.none(), function_doc(name));
  };
  nb::list operations;
#define HEDDLE_OP(name, form, text, arity, kind, ulp)
#define HEDDLE_FUNCTION(name, kind, ulp, what)         \
  unary(#name, [](const Expr& x) { return name(x); }); \
  operations.append(#name);
#include "../../src/expr/ops.def"
  module.attr("OPERATIONS") = nb::tuple(operations);
  unary("relu", [](const Expr& x) { return relu(x); });
  unary("softplus", [](const Expr& x) { return softplus(x); });
  unary("gelu", [](const Expr& x) { return gelu(x); });
  unary("gelu_tanh", [](const Expr& x) { return gelu_tanh(x); });
  unary("silu", [](const Expr& x) { return silu(x); });
  unary("to_f32", [](const Expr& x) { return to_f32(x); });
  unary("to_i32", [](const Expr& x) { return to_i32(x); });
  module.def(
      "minimum", [](nb::handle x, nb::handle y) { return min(expr_of(x), expr_of(y)); }, "x"_a.none(), "y"_a.none(),
      function_doc("minimum"));
  module.def(
      "maximum", [](nb::handle x, nb::handle y) { return max(expr_of(x), expr_of(y)); }, "x"_a.none(), "y"_a.none(),
      function_doc("maximum"));
  module.def(
      "power", [](nb::handle x, nb::handle y) { return pow(expr_of(x), expr_of(y)); }, "x"_a.none(), "y"_a.none(),
      function_doc("power"));
  module.def(
      "clip",
      [](nb::handle x, nb::handle low, nb::handle high) { return clip(expr_of(x), expr_of(low), expr_of(high)); },
      "x"_a.none(), "low"_a.none(), "high"_a.none(), function_doc("clip"));
  module.def(
      "where", [](nb::handle c, nb::handle x, nb::handle y) { return where(expr_of(c), expr_of(x), expr_of(y)); },
      "condition"_a.none(), "x"_a.none(), "y"_a.none(), function_doc("where"));
  module.def(
      "random_uniform",
      [](nb::handle seed, nb::handle b, nb::handle h, nb::handle q_idx, nb::handle kv_idx) {
        return random_uniform(expr_of(seed), expr_of(b), expr_of(h), expr_of(q_idx), expr_of(kv_idx));
      },
      "seed"_a, "b"_a, "h"_a, "q_idx"_a, "kv_idx"_a, function_doc("random_uniform"));
}

Expr leaf_named(const std::string& name) {
  static const std::map<std::string, Expr (*)()> leaves = {{"score", leaf::score},
                                                           {"b", leaf::b},
                                                           {"h", leaf::h},
                                                           {"q_idx", leaf::q_idx},
                                                           {"kv_idx", leaf::kv_idx},
                                                           {"q_token", leaf::q_token},
                                                           {"kv_token", leaf::kv_token},
                                                           {"q_len", leaf::q_len},
                                                           {"kv_len", leaf::kv_len},
                                                           {"q_start", leaf::q_start},
                                                           {"kv_start", leaf::kv_start}};
  const auto found = leaves.find(name);
  if (found == leaves.end()) throw nb::value_error(("'" + name + "' is no leaf").c_str());
  return found->second();
}

std::string text_of(nb::handle value, const char* argument) {
  std::string text;
  if (nb::isinstance<nb::str>(value) && nb::try_cast(value, text)) return text;
  throw nb::type_error(nb::str("{} is {}; a str is accepted").format(argument, nb::repr(value)).c_str());
}

ExprType type_named(const std::string& name) {
  if (name == "f32") return ExprType::f32;
  if (name == "i32") return ExprType::i32;
  if (name == "bool") return ExprType::boolean;
  throw nb::value_error(("type is '" + name + "'; 'f32', 'i32' and 'bool' are accepted").c_str());
}

using Declared = std::map<std::string, std::pair<std::string, int>>;

Expr parsed(const std::string& text, const Declared& captures, const std::map<std::string, std::string>& params) {
  Symbols symbols;
  for (const auto& [name, declared] : captures) symbols.captures[name] = {parse_dtype(declared.first), declared.second};
  for (const auto& [name, type] : params) symbols.params[name] = type_named(type);
  return parse(text, symbols);
}

void add_expr(nb::module_& module) {
  nb::class_<Expr> type(module, "Expr", "A mod, or a part of one: built by operators and functions, immutable.");
  add_operators(type);
  type.def_prop_ro(
      "type", [](const Expr& x) { return std::string(x.empty() ? "none" : name(x.type())); },
      "'f32', 'i32' or 'bool'.");
  type.def_prop_ro(
      "captures",
      [](const Expr& x) {
        std::vector<std::string> names;
        if (!x.empty()) std::ranges::copy(symbols_of(x).captures | std::views::keys, std::back_inserter(names));
        return names;
      },
      "The names of the arrays that it reads.");
  type.def("__str__", [](const Expr& x) { return x.empty() ? std::string() : print(x); });
  type.def("__repr__", [](const Expr& x) { return x.empty() ? std::string("Expr()") : "Expr(" + print(x) + ")"; });
  type.def("__bool__", [](const Expr& x) -> bool {
    throw nb::type_error(
        ("a mod cannot branch on '" + print(x) +
         "', which differs from element to element: write heddle.where(condition, x, y), or & | ~ between "
         "conditions instead of and, or, not and chained comparisons")
            .c_str());
  });
  type.def("__copy__", [](const Expr& x) { return x; });
  type.def(
      "__deepcopy__", [](const Expr& x, nb::handle) { return x; }, "memo"_a);
  const auto reduce = [](const Expr& x) {  // as text, with what its names mean
    const Symbols symbols = symbols_of(x);
    Declared captures;
    for (const auto& [name, of] : symbols.captures) captures[name] = {std::string(heddle::name(of.dtype)), of.rank};
    std::map<std::string, std::string> params;
    for (const auto& [name, of] : symbols.params) params[name] = std::string(heddle::name(of));
    const nb::object read = nb::module_::import_("heddle._mod").attr("expr_of_text");
    return nb::make_tuple(read, nb::make_tuple(print(x), captures, params));
  };
  type.def("__reduce__", reduce, nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"));
  for (const char* name : {"__index__", "__int__", "__float__"}) {
    type.def(name, [](const Expr& x) -> int {
      throw nb::type_error(
          ("a mod has no number for '" + print(x) +
           "', which differs from element to element: a table is an array (numpy.array(table)[kv_idx]), functions are "
           "heddle's or NumPy's (heddle.exp, not math.exp)")
              .c_str());
    });
  }
}

void add_capture(nb::module_& module) {
  nb::class_<Capture>(module, "Capture", "A tensor that a mod reads, by name.")
      .def(
          "__init__",
          [](Capture* self, const std::string& name, const std::string& dtype, int rank) {
            new (self) Capture(name, parse_dtype(dtype), rank);
          },
          "name"_a, "dtype"_a, "rank"_a)
      .def("__getitem__", [](const Capture& self, nb::handle index) { return self.read(indices_of(index)); })
      .def(
          "at",
          [](const Capture& self, nb::handle index, nb::handle fill) {
            return self.at(indices_of(index), expr_of(fill));
          },
          "index"_a, "fill"_a)
      .def_prop_ro("name", [](const Capture& self) { return self.name(); })
      .def_prop_ro("dtype", [](const Capture& self) { return std::string(name(self.dtype())); })
      .def_prop_ro("rank", [](const Capture& self) { return self.rank(); });
}

}  // namespace

void add_expressions(nb::module_& module) {
  add_expr(module);
  add_functions(module);
  add_capture(module);
  module.def("leaf", &leaf_named, "name"_a);
  module.def(
      "param",
      [](nb::handle name, nb::handle of_type) {
        return param(text_of(name, "name"), type_named(text_of(of_type, "type")));
      },
      "name"_a.none(), "type"_a.none(), function_doc("param"), nb::sig("def param(name: str, type: str) -> Expr"));
  module.def("integer_range", &integer_range, "index"_a);
  module.def("as_expr", &expr_of, "value"_a.none());
  module.def("parse", &parsed, "text"_a, "captures"_a, "params"_a);
  module.def(
      "require_name", [](const std::string& what, const std::string& name) { require_name(what, name); }, "what"_a,
      "name"_a);
}

}  // namespace heddle::python
