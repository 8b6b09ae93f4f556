// Mods that were met before: heddle._core.KeptMods.
//
// Most users make their mod anew for each call, so a mod is known by what it reaches: `_tracing/reached.py` walks over
// it. That walk takes longer than the rest of a small call, so it writes down its steps and what each found. Here the
// steps are taken again, from another function of the same code. If all find the same, the walk in Python would end in
// the same key, and the kept expression serves. If one does not, nothing is known: Python walks again.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arguments.h"
#include "heddle/expr.h"
#include "tensors.h"

namespace heddle::python {

/// A walk puts each value that it meets into a slot; slot 0 is the mod.
enum class StepKind : std::uint8_t {
  get,            // to = from.object
  cell,           // to = the content of cell `number` of the closure `from`
  no_cell,        // cell `number` of the closure `from` has no content
  item,           // to = from[object], of a dict
  no_item,        // the dict `from` lacks the key `object`
  at,             // to = from[number], of a tuple or a list
  call,           // to = object(slots...)
  of_class,       // to = the attribute `object` of the class of `from`, as it stands there; None if it has none
  of_this_class,  // the same of the class `from` itself
  constant,       // to = object
  is,             // from is object
  type,           // type(from) is object
  size,           // len(from) == number
  keys,           // the keys of the dict `from` are those of the tuple `object`, in this order
  equal,          // from == object; `type` was a step before
  bits,           // from is the float `object`, bit by bit
  i32,            // the int `from` lies within ±(2^31 - 1)
  same,           // from is the object of slot `number`
  fresh,          // from is none of the objects of `slots`
  array,          // from is array `number`: elements, rank and device are those that the mod was traced with
  shape,          // array `number` has the shape `slots`
  extent,         // to = the extent of array `number` on axis slots[0]
};

struct Step {
  StepKind kind{};
  int to = -1, from = 0;
  std::int64_t number = 0;
  nb::object object;
  std::vector<std::int64_t> slots;
};

/// An array as the walk found it, without its address and its extents.
struct ArrayKind {
  nb::dlpack::dtype dtype{};
  std::size_t rank = 0;
  int device_type = 0, device_id = 0;

  bool operator==(const ArrayKind&) const = default;
};

/// The expression of a mod, the steps that recognise it, and where captures and params come from.
struct KeptMod {
  nb::object owner;  // of the address by which it is found
  Expr expr;
  std::vector<Step> steps;
  std::size_t first = 0;  // the step to begin with: by_code_ has looked at those before it
  int slots = 1;
  std::vector<ArrayKind> arrays;
  std::vector<std::pair<std::string, int>> captures;  // names, and numbers of arrays
  std::vector<std::pair<std::string, int>> params;    // names, and slots
  std::vector<std::pair<std::string, ReadOnly>> constants;
};

/// The kept mods of one kind of call, which nanobind gives to Python.
class KeptMods {
 public:
  /// If the mod is known: gives its expression, and adds what it reads to `values`. Runs no code of the user's, but for
  /// comparisons of what the mod holds.
  bool find(nb::handle mod, Expr& expr, NamedValues& values) const;
  void keep(nb::handle mod, KeptMod made);

 private:
  using Variants = std::vector<std::shared_ptr<const KeptMod>>;
  // Never changed once made: a comparison of Python's may let another thread keep a mod.
  std::unordered_map<PyObject*, std::shared_ptr<const Variants>> by_code_;
};

void add_kept_mods(nb::module_& module);

}  // namespace heddle::python
