#include "checks.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>

#include "arguments.h"
#include "heddle/check.h"
#include "heddle/devices.h"
#include "tensors.h"

namespace heddle::python {
namespace {

using namespace nb::literals;

CheckReport check(const ReadOnly& q, const ReadOnly& k, const ReadOnly& v, const ReadOnly& o, const Given& lse,
                  const Arguments& arguments, const Given& max_scores, const Given& lse_rest) {
  const AttentionOptions options = options_of(arguments);
  const ConstTensorView q_view = const_view_of(q, "q"), k_view = const_view_of(k, "k"), v_view = const_view_of(v, "v");
  const ConstTensorView o_view = const_view_of(o, "o");
  const std::optional<ConstTensorView> lse_view = given_view(lse, "lse"),
                                       max_scores_view = given_view(max_scores, "max_scores"),
                                       lse_rest_view = given_view(lse_rest, "lse_rest");
  const WithoutGil released;
  return check_attention(q_view, k_view, v_view, options, o_view, lse_view, max_scores_view, lse_rest_view);
}

std::string missing_kind(const std::string& kind) { return missing(device_named(kind, 0).kind); }

}  // namespace

void add_checks(nb::module_& module) {
  nb::class_<TensorCheck>(module, "TensorCheck",
                          "Of o, lse, lse_rest or max_scores: its errors, and those that are allowed.")
      .def_ro("max_error", &TensorCheck::max_error, "The largest error of an element.")
      .def_ro("mean_error", &TensorCheck::mean_error, "The mean error of the elements.")
      .def_ro("plain_max_error", &TensorCheck::plain_max_error, "The largest error of plain, unfused attention.")
      .def_ro("plain_mean_error", &TensorCheck::plain_mean_error, "The mean error of plain, unfused attention.")
      .def_ro("max_allowed", &TensorCheck::max_allowed, "What max_error may be.")
      .def_ro("mean_allowed", &TensorCheck::mean_allowed, "What mean_error may be.")
      .def_ro("worst_row", &TensorCheck::worst_row,
              "Of o: the largest ratio of an element's error to what its row allows; up to 1 is accepted.")
      .def_ro("mismatched_specials", &TensorCheck::mismatched_specials, "NaN or infinity on one side only.")
      .def_ro("passed", &TensorCheck::passed, "Whether the tensor is right.");
  nb::class_<CheckReport>(module, "CheckReport", "Whether a result of attention is right, and by how much.")
      .def_ro("o", &CheckReport::o, "The check of o.")
      .def_ro("lse", &CheckReport::lse, "The check of lse; None if it was not given.")
      .def_ro("max_scores", &CheckReport::max_scores, "The check of max_scores; None if they were not given.")
      .def_ro("lse_rest", &CheckReport::lse_rest, "The check of lse_rest; None if it was not given.")
      .def_ro("passed", &CheckReport::passed, "Whether what was given is right.")
      .def("__str__", &CheckReport::text)
      .def("__repr__", &CheckReport::text)
      .def("__bool__", [](const CheckReport& self) { return self.passed; });
  module.def("check", &check, "q"_a, "k"_a, "v"_a, "o"_a, "lse"_a.none(), "arguments"_a,
             "max_scores"_a.none() = nb::none(), "lse_rest"_a.none() = nb::none());

  nb::class_<DeviceInfo>(module, "DeviceInfo", "A device that this build can compute on.")
      .def_ro("kind", &DeviceInfo::kind, "'cpu', 'cuda' or 'rocm'.")
      .def_ro("name", &DeviceInfo::name, "What its maker calls it.")
      .def_ro("detail", &DeviceInfo::detail, "Its figures.")
      .def_ro("memory_bytes", &DeviceInfo::memory_bytes, "The size of its memory.")
      .def("__repr__", [](const DeviceInfo& self) {
        return "<heddle.DeviceInfo " + self.kind + ": " + self.name + "; " + self.detail + ">";
      });
  module.def("devices", &devices);
  module.def("missing", &missing_kind, "kind"_a);
}

}  // namespace heddle::python
