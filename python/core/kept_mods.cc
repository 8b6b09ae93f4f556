#include "kept_mods.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "trace_always.h"

namespace heddle::python {
namespace {

using namespace nb::literals;

constexpr std::size_t kMostCodes = 512, kMostVariants = 16;
constexpr std::int64_t kLargestParam = (std::int64_t{1} << 30) - 1;  // as kinds.py's

constexpr std::pair<const char*, StepKind> kStepNames[] = {
    {"get", StepKind::get},       {"cell", StepKind::cell},         {"no_cell", StepKind::no_cell},
    {"item", StepKind::item},     {"no_item", StepKind::no_item},   {"at", StepKind::at},
    {"call", StepKind::call},     {"constant", StepKind::constant}, {"is", StepKind::is},
    {"type", StepKind::type},     {"size", StepKind::size},         {"keys", StepKind::keys},
    {"equal", StepKind::equal},   {"bits", StepKind::bits},         {"i32", StepKind::i32},
    {"same", StepKind::same},     {"fresh", StepKind::fresh},       {"array", StepKind::array},
    {"shape", StepKind::shape},   {"of_class", StepKind::of_class}, {"of_this_class", StepKind::of_this_class},
    {"extent", StepKind::extent},
};

StepKind kind_named(const std::string& name) {
  for (const auto& [known, kind] : kStepNames) {
    if (name == known) return kind;
  }
  throw std::logic_error("no step of a walk is called " + name);
}

/// Whether a step raised. Its error says that this is not the mod, and is forgotten; what asks the program to stop is
/// not.
bool raised() {
  if (PyErr_Occurred() == nullptr) return false;
  if (!PyErr_ExceptionMatches(PyExc_Exception)) throw nb::python_error();
  PyErr_Clear();
  return true;
}

nb::handle type_of(nb::handle object) { return reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())); }

/// A reference of one's own, or what is null.
nb::object owned(PyObject* borrowed) { return borrowed == nullptr ? nb::object() : nb::borrow(borrowed); }

ArrayKind kind_of(const ForeignArray& array) {
  return {array.dtype(), array.ndim(), array.device_type(), array.device_id()};
}

/// A class's attribute as it stands there, not bound to anything; None if it has none.
nb::object of_class(nb::handle type, PyObject* name) {
  static PyObject *const order = PyUnicode_InternFromString("__mro__"), *const attributes =
                                                                            PyUnicode_InternFromString("__dict__");
  const nb::object classes = nb::steal(PyObject_GetAttr(type.ptr(), order));
  if (!classes.is_valid() || !PyTuple_Check(classes.ptr())) return {};
  for (Py_ssize_t i = 0; i < PyTuple_Size(classes.ptr()); ++i) {
    const nb::object own = nb::steal(PyObject_GetAttr(PyTuple_GetItem(classes.ptr(), i), attributes));
    if (!own.is_valid()) return {};
    const int has = PySequence_Contains(own.ptr(), name);  // an error of GetItem costs more
    if (has < 0) return {};
    if (has == 1) return nb::steal(PyObject_GetItem(own.ptr(), name));
  }
  return nb::none();
}

/// The steps of one kept mod, taken from one root.
class Walk {
 public:
  Walk(const KeptMod& mod, nb::handle root) : mod_(mod), slots_(static_cast<std::size_t>(mod.slots)) {
    slots_[0] = nb::borrow(root);
    if (mod.first > 0) slots_[static_cast<std::size_t>(mod.steps[1].to)] = mod.owner;
    arrays_.reserve(mod.arrays.size());
  }

  bool holds() {
    const auto begin = mod_.steps.begin() + static_cast<std::ptrdiff_t>(mod_.first);
    return std::all_of(begin, mod_.steps.end(), [&](const Step& step) { return take(step); });
  }

  /// Once: hands the arrays on.
  void bind(NamedValues& values) {
    for (std::size_t i = 0; i < mod_.captures.size(); ++i) {
      const auto& [name, array] = mod_.captures[i];
      ReadOnly& found = arrays_[static_cast<std::size_t>(array)];
      const bool is_last = std::none_of(mod_.captures.begin() + static_cast<std::ptrdiff_t>(i) + 1, mod_.captures.end(),
                                        [&](const auto& other) { return other.second == array; });
      values.captures.insert_or_assign(name, is_last ? std::move(found) : found);
    }
    for (const auto& [name, array] : mod_.constants) values.captures[name] = array;
    for (const auto& [name, slot] : mod_.params) values.params[name] = number_of(at(slot));
  }

 private:
  nb::handle at(std::int64_t slot) const { return slots_[static_cast<std::size_t>(slot)]; }

  bool put(const Step& step, nb::object value) {
    if (!value.is_valid()) {
      raised();
      return false;
    }
    slots_[static_cast<std::size_t>(step.to)] = std::move(value);
    return true;
  }

  bool take(const Step& step) {
    PyObject* const from = at(step.from).ptr();
    PyObject* const object = step.object.ptr();
    switch (step.kind) {
      case StepKind::get:
        return put(step, nb::steal(PyObject_GetAttr(from, object)));
      case StepKind::cell:
        return put(step, content(step));
      case StepKind::no_cell:
        return !content(step).is_valid() && raised();
      case StepKind::item:
        return PyDict_CheckExact(from) && put(step, owned(PyDict_GetItemWithError(from, object)));
      case StepKind::no_item:
        return PyDict_CheckExact(from) && PyDict_GetItemWithError(from, object) == nullptr && !raised();
      case StepKind::at:
        return put(step,
                   owned(PyTuple_Check(from) ? PyTuple_GetItem(from, step.number) : PyList_GetItem(from, step.number)));
      case StepKind::call:
        return put(step, called(step));
      case StepKind::of_class:
        return put(step, of_class(type_of(from), object));
      case StepKind::of_this_class:
        return put(step, of_class(from, object));
      case StepKind::constant:
        return put(step, step.object);
      case StepKind::is:
        return from == object;
      case StepKind::type:
        return type_of(from).ptr() == object;
      case StepKind::size:
        return has_size(from, step.number);
      case StepKind::keys:
        return has_keys(from, object);
      case StepKind::equal:
        return is_equal(from, object);
      case StepKind::bits:
        return std::bit_cast<std::uint64_t>(PyFloat_AsDouble(from)) ==
               std::bit_cast<std::uint64_t>(PyFloat_AsDouble(object));
      case StepKind::i32:
        return is_i32(from);
      case StepKind::same:
        return from == at(step.number).ptr();
      case StepKind::fresh:
        return std::none_of(step.slots.begin(), step.slots.end(),
                            [&](std::int64_t slot) { return at(slot).ptr() == from; });
      case StepKind::array:
        return take_array(from, mod_.arrays[static_cast<std::size_t>(step.number)]);
      case StepKind::shape:
        return has_shape(arrays_[static_cast<std::size_t>(step.number)], step.slots);
      case StepKind::extent:
        return put(step, extent(arrays_[static_cast<std::size_t>(step.number)], step.slots.front()));
    }
    return false;
  }

  nb::object content(const Step& step) const {
    static PyObject* const name = PyUnicode_InternFromString("cell_contents");
    PyObject* const closure = at(step.from).ptr();
    if (!PyTuple_Check(closure) || PyTuple_Size(closure) <= step.number) return {};
    return nb::steal(PyObject_GetAttr(PyTuple_GetItem(closure, step.number), name));
  }

  nb::object called(const Step& step) const {
    const nb::object arguments = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(step.slots.size())));
    for (std::size_t i = 0; i < step.slots.size(); ++i) {
      PyTuple_SetItem(arguments.ptr(), static_cast<Py_ssize_t>(i), at(step.slots[i]).inc_ref().ptr());
    }
    return nb::steal(PyObject_CallObject(step.object.ptr(), arguments.ptr()));
  }

  static bool has_size(PyObject* object, std::int64_t size) {
    const Py_ssize_t found = PyObject_Size(object);
    return !raised() && found == size;
  }

  static bool is_equal(PyObject* x, PyObject* y) {
    const int equal = PyObject_RichCompareBool(x, y, Py_EQ);
    return !raised() && equal == 1;
  }

  static bool has_keys(PyObject* dict, PyObject* keys) {
    if (!PyDict_CheckExact(dict) || PyDict_Size(dict) != PyTuple_Size(keys)) return false;
    if (PyTuple_Size(keys) == 0) return true;  // a function without attributes, mostly
    const nb::object given = nb::steal(PyDict_Keys(dict));
    if (raised()) return false;
    for (Py_ssize_t i = 0; i < PyTuple_Size(keys); ++i) {
      PyObject *const x = PyList_GetItem(given.ptr(), i), *const y = PyTuple_GetItem(keys, i);
      if (Py_TYPE(x) != Py_TYPE(y) || !is_equal(x, y)) return false;
    }
    return true;
  }

  static bool is_i32(PyObject* number) {
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(number, &overflow);
    return overflow == 0 && value >= -kLargestParam && value <= kLargestParam && !raised();
  }

  bool take_array(nb::handle object, const ArrayKind& traced) {
    const bool known =
        std::any_of(arrays_.begin(), arrays_.end(), [&](const ReadOnly& array) { return array.owner().is(object); });
    ReadOnly& array = arrays_.emplace_back();
    if (known || !array.take(object, true)) {
      raised();
      return false;
    }
    return kind_of(array) == traced;
  }

  static bool has_shape(const ReadOnly& array, const std::vector<std::int64_t>& shape) {
    if (array.ndim() != shape.size()) return false;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (static_cast<std::int64_t>(array.shape(axis)) != shape[axis]) return false;
    }
    return true;
  }

  static nb::object extent(const ReadOnly& array, std::int64_t axis) {
    return nb::steal(PyLong_FromSize_t(array.shape(static_cast<std::size_t>(axis))));
  }

  static ParamValue number_of(nb::handle value) {
    if (PyBool_Check(value.ptr())) return value.is(nb::handle(Py_True));
    if (PyFloat_Check(value.ptr())) return PyFloat_AsDouble(value.ptr());
    return static_cast<std::int32_t>(PyLong_AsLong(value.ptr()));
  }

  const KeptMod& mod_;
  std::vector<nb::object> slots_;
  std::vector<ReadOnly> arrays_;
};

nb::object imported(const char* module, const char* name) { return nb::module_::import_(module).attr(name); }

bool is_function(nb::handle mod) {
  static const nb::handle function = imported("types", "FunctionType").release();
  return type_of(mod).is(function);
}

/// The object that a mod is found by, the same each time the mod is made anew: the code of a function, also of one
/// inside a partial or a method; the type of any other object.
nb::object code_of(nb::handle mod) {
  static const nb::handle partial = imported("functools", "partial").release(),
                          method = imported("types", "MethodType").release();
  static PyObject* const code = PyUnicode_InternFromString("__code__");
  const nb::handle type = type_of(mod);
  if (is_function(mod)) return nb::steal(PyObject_GetAttr(mod.ptr(), code));
  if (type.is(partial)) return code_of(mod.attr("func"));
  if (type.is(method)) return code_of(mod.attr("__func__"));
  return nb::borrow(type);
}

/// A step as _tracing/reached.py writes it: (name, to, from, what).
Step step_of(const nb::object& given) {
  Step step;
  step.kind = kind_named(nb::cast<std::string>(given[0]));
  step.to = nb::cast<int>(given[1]);
  step.from = nb::cast<int>(given[2]);
  const nb::object what = given[3];
  switch (step.kind) {
    case StepKind::cell:
    case StepKind::no_cell:
    case StepKind::at:
    case StepKind::size:
    case StepKind::same:
    case StepKind::array:
      step.number = nb::cast<std::int64_t>(what);
      break;
    case StepKind::fresh:
      step.slots = nb::cast<std::vector<std::int64_t>>(what);
      break;
    case StepKind::call:
      step.object = what[0];
      step.slots = nb::cast<std::vector<std::int64_t>>(what[1]);
      break;
    case StepKind::shape:
    case StepKind::extent:
      step.number = nb::cast<std::int64_t>(what[0]);
      step.slots = nb::cast<std::vector<std::int64_t>>(what[1]);
      break;
    default:
      step.object = what;
  }
  return step;
}

using Names = std::vector<std::pair<std::string, int>>;

void keep(KeptMods& self, nb::handle mod, const Expr& expr, const std::vector<nb::object>& steps,
          const std::vector<ReadOnly>& arrays, Names captures, Names params,
          const std::map<std::string, ReadOnly>& constants) {
  KeptMod made;
  made.expr = expr;
  for (const nb::object& step : steps) {
    made.steps.push_back(step_of(step));
    made.slots = std::max(made.slots, made.steps.back().to + 1);
  }
  for (const ReadOnly& array : arrays) made.arrays.push_back(kind_of(array));
  made.captures = std::move(captures);
  made.params = std::move(params);
  made.constants.assign(constants.begin(), constants.end());
  self.keep(mod, std::move(made));
}

using Found = std::tuple<Expr, std::map<std::string, ReadOnly>, std::map<std::string, ParamValue>>;

std::optional<Found> find(const KeptMods& self, nb::handle mod) {
  Expr expr;
  NamedValues values;
  if (!self.find(mod, expr, values)) return {};
  return Found{std::move(expr), std::move(values.captures), std::move(values.params)};
}

template <Expr Arguments::*kMod>
bool set(const KeptMods& self, Arguments& arguments, nb::handle mod) {
  return self.find(mod, arguments.*kMod, arguments.values);
}

}  // namespace

bool KeptMods::find(nb::handle mod, Expr& expr, NamedValues& values) const {
  if (traces_always()) return false;
  const auto found = by_code_.find(code_of(mod).ptr());
  if (found == by_code_.end()) return false;
  const std::shared_ptr<const Variants> variants = found->second;
  const bool finds_function = is_function(mod);
  for (const std::shared_ptr<const KeptMod>& kept : *variants) {
    if (kept->first > 0 && !finds_function) continue;
    Walk walk(*kept, mod);
    if (!walk.holds()) continue;
    walk.bind(values);
    expr = kept->expr;
    return true;
  }
  return false;
}

/// How many steps say what finding a mod by its code has said: that it is a function, and of this code.
std::size_t steps_to_code(nb::handle mod, const KeptMod& made) {
  if (!is_function(mod) || made.steps.size() < 3) return 0;
  const Step &type = made.steps[0], &get = made.steps[1], &is = made.steps[2];
  const bool stands_first = type.kind == StepKind::type && type.from == 0 && type.object.is(type_of(mod)) &&
                            get.kind == StepKind::get && get.from == 0 &&
                            nb::cast<std::string>(get.object) == "__code__" && is.kind == StepKind::is &&
                            is.from == get.to && is.object.is(made.owner);
  return stands_first ? 3 : 0;
}

void KeptMods::keep(nb::handle mod, KeptMod made) {
  made.owner = code_of(mod);
  made.first = steps_to_code(mod, made);
  PyObject* const code = made.owner.ptr();
  if (by_code_.size() >= kMostCodes && !by_code_.contains(code)) by_code_.clear();
  Variants variants = {std::make_shared<const KeptMod>(std::move(made))};
  if (const auto known = by_code_.find(code); known != by_code_.end()) {
    variants.insert(variants.end(), known->second->begin(), known->second->end());
    variants.resize(std::min(variants.size(), kMostVariants));
  }
  by_code_[code] = std::make_shared<const Variants>(std::move(variants));
}

void add_kept_mods(nb::module_& module) {
  nb::class_<KeptMods>(module, "KeptMods", "Expressions of mods that were met before.")
      .def(nb::init<>())
      .def("find", &find, "mod"_a, "The expression, captures and params of a mod, or None if it is not known.")
      .def("set_score", &set<&Arguments::score_mod>, "arguments"_a, "mod"_a, "Whether the mod is known, and set.")
      .def("set_mask", &set<&Arguments::mask_mod>, "arguments"_a, "mod"_a)
      .def("set_weight", &set<&Arguments::weight_mod>, "arguments"_a, "mod"_a)
      .def("keep", &keep, "mod"_a, "expr"_a, "steps"_a, "arrays"_a, "captures"_a, "params"_a, "constants"_a);
}

}  // namespace heddle::python
