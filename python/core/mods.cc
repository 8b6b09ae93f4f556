#include "mods.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "expressions.h"
#include "heddle/mods.h"
#include "tensors.h"

namespace heddle::python {

using namespace nb::literals;

namespace {

/// `expr` of what the mod was called with: (b, h, q_idx, kv_idx), before them the score of a score_mod.
Expr of_arguments(const Expr& expr, const std::vector<nb::object>& given) {
  mods::Arguments arguments;
  std::optional<Expr>* const places[] = {&arguments.kv_idx, &arguments.q_idx, &arguments.h, &arguments.b,
                                         &arguments.score};
  for (std::size_t i = 0; i < std::size(places) && i < given.size(); ++i) {
    *places[i] = expr_of(given[given.size() - 1 - i]);
  }
  return mods::with_arguments(expr, arguments);
}

}  // namespace

void add_mods(nb::module_& module) {
  module.def("of_arguments", &of_arguments, "expr"_a, "arguments"_a);
  module.def("mod_causal", &mods::causal);
  module.def("mod_causal_lower_right", &mods::causal_lower_right);
  module.def("mod_sliding_window", &mods::sliding_window, "before"_a, "after"_a);
  module.def("mod_dilated_window", &mods::dilated_window, "before"_a, "step"_a);
  module.def("mod_prefix_lm", nb::overload_cast<std::int64_t>(&mods::prefix_lm), "prefix"_a);
  module.def("mod_prefix_lm", nb::overload_cast<const Expr&>(&mods::prefix_lm), "prefix"_a);
  module.def("mod_global_and_window", &mods::global_and_window, "global_tokens"_a, "window"_a);
  module.def("mod_sinks_and_window", &mods::sinks_and_window, "sinks"_a, "before"_a);
  module.def("mod_windows_by_head", &mods::windows_by_head, "before"_a);
  module.def("mod_causal_chunks", &mods::causal_chunks, "chunk"_a);
  module.def("mod_documents", &mods::documents, "ids"_a);
  module.def("mod_documents_from_starts", &mods::documents_from_starts, "start_of"_a);
  module.def("mod_neighbourhood_2d", &mods::neighbourhood_2d, "width"_a, "radius_y"_a, "radius_x"_a);
  module.def("mod_natten_2d", &mods::natten_2d, "height"_a, "width"_a, "kernel_y"_a, "kernel_x"_a);
  module.def("mod_natten_3d", &mods::natten_3d, "depth"_a, "height"_a, "width"_a, "kernel_z"_a, "kernel_y"_a,
             "kernel_x"_a);
  module.def("mod_sliding_tiles_2d", &mods::sliding_tiles_2d, "tiles_y"_a, "tiles_x"_a, "tile"_a, "kernel_y"_a,
             "kernel_x"_a);
  module.def("mod_sliding_tiles_3d", &mods::sliding_tiles_3d, "tiles_z"_a, "tiles_y"_a, "tiles_x"_a, "tile"_a,
             "kernel_z"_a, "kernel_y"_a, "kernel_x"_a);
  module.def("mod_swin_windows", &mods::swin_windows, "width"_a, "window"_a, "shift"_a);
  module.def("mod_tree", &mods::tree, "enter"_a, "last"_a, "first"_a);
  module.def("mod_block_diffusion", &mods::block_diffusion, "block"_a);
  module.def("mod_block_diffusion_training", &mods::block_diffusion_training, "length"_a, "block"_a);
  module.def("mod_alibi", &mods::alibi, "slopes"_a);
  module.def("mod_relative_bias", &mods::relative_bias, "table"_a, "max_distance"_a);
  module.def("mod_t5_bias", &mods::t5_bias, "table"_a, "buckets"_a, "max_distance"_a, "bidirectional"_a);
  module.def("mod_swin_bias", &mods::swin_bias, "table"_a, "width"_a, "window"_a);
  module.def("mod_graph_bias", &mods::graph_bias, "distances"_a, "table"_a, "largest"_a);
  module.def("mod_softcap", &mods::softcap, "cap"_a);
  module.def("mod_dropout", &mods::dropout, "p"_a, "seed"_a);
  module.def(
      "document_starts",
      [](const ReadOnly& offsets) { return to_python(mods::document_starts(const_view_of(offsets, "offsets"))); },
      "offsets"_a);
  module.def(
      "tree_intervals",
      [](const ReadOnly& parents) {
        const mods::TreeIntervals intervals = mods::tree_intervals(const_view_of(parents, "parents"));
        return std::pair(to_python(intervals.enter), to_python(intervals.last));
      },
      "parents"_a);
  module.def(
      "alibi_slopes", [](std::int64_t heads) { return to_python(mods::alibi_slopes(heads)); }, "heads"_a);
}

}  // namespace heddle::python
