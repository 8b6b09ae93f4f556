#include "exact_mods.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../../src/expr/exact_integers.h"

namespace heddle::python {
namespace {

using namespace nb::literals;
using expr::IntegerSizes;

constexpr std::size_t kMostExpressions = 1024, kMostSizes = 16;

struct KeptMod {
  Expr expr;  // keeps the node's address
  std::int64_t up_to = 0;
  std::vector<std::pair<IntegerSizes, Expr>> made;  // the last ones first
};

bool is_same(const IntegerSizes& x, const IntegerSizes& y) {
  return std::tie(x.batch, x.heads, x.queries, x.keys, x.params) ==
         std::tie(y.batch, y.heads, y.queries, y.keys, y.params);
}

/// Guarded by the GIL.
KeptMod& kept(const Expr& e) {
  static auto& all = *new std::unordered_map<const expr::Node*, KeptMod>();  // outlives the interpreter
  const auto found = all.find(e.node());
  if (found != all.end()) return found->second;
  if (all.size() >= kMostExpressions) all.clear();
  KeptMod made{e, expr::exact_up_to(e), {}};
  return all.emplace(e.node(), std::move(made)).first->second;
}

/// The integers among a call's params.
std::map<std::string, std::int64_t> integers_of(const nb::typed<nb::dict, nb::str, nb::any>& params) {
  std::map<std::string, std::int64_t> made;
  for (const auto& [name, value] : params) {
    if (!PyLong_Check(value.ptr()) || PyBool_Check(value.ptr())) continue;
    int overflow = 0;
    const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
    if (overflow != 0) {
      throw nb::value_error(
          nb::str("the number '{}' of a mod is {}; integers of 64 bits are accepted").format(name, value).c_str());
    }
    made[nb::cast<std::string>(name)] = number;
  }
  return made;
}

bool are_up_to(const IntegerSizes& sizes, std::int64_t n) {
  if (sizes.batch > n || sizes.heads > n || sizes.queries > n || sizes.keys > n) return false;
  for (const auto& [name, value] : sizes.params) {
    if (value < -n || value > n) return false;
  }
  return true;
}

std::optional<Expr> changed(const Expr& e, const Expr& made) {
  return same(e, made) ? std::nullopt : std::optional(made);
}

/// None where the expression stays as it is.
std::optional<Expr> exact(const Expr& e, std::int64_t batch, std::int64_t heads, std::int64_t queries,
                          std::int64_t keys, const nb::typed<nb::dict, nb::str, nb::any>& params) {
  KeptMod& known = kept(e);
  IntegerSizes sizes{batch, heads, queries, keys, integers_of(params)};
  if (are_up_to(sizes, known.up_to)) return {};
  for (const auto& [made_for, made] : known.made) {
    if (is_same(made_for, sizes)) return changed(e, made);
  }
  Expr made = expr::exact_integers(e, sizes);
  known.made.insert(known.made.begin(), {std::move(sizes), made});
  if (known.made.size() > kMostSizes) known.made.pop_back();
  return changed(e, made);
}

}  // namespace

std::int64_t exact_up_to(const Expr& e) { return kept(e).up_to; }

void add_exact_mods(nb::module_& module) {
  module.def("exact_integers", &exact, "e"_a, "batch"_a, "heads"_a, "queries"_a, "keys"_a, "params"_a,
             "The mod with the values that arithmetic of 64 bits gives for these sizes; None: it has them in i32.");
  module.def("exact_up_to", &exact_up_to, "e"_a);
}

}  // namespace heddle::python
