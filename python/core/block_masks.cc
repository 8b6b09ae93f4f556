#include "block_masks.h"

#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "arguments.h"
#include "heddle/dtype.h"
#include "shared_block_mask.h"
#include "tensors.h"

namespace heddle::python {
namespace {

using namespace nb::literals;

/// q_begin, q_len, kv_begin, kv_len, q_start, kv_start: the members of Sequence.
using SequenceNumbers = std::array<std::int64_t, 6>;
using Sequences = std::vector<SequenceNumbers>;
using Block = std::pair<std::int64_t, std::int64_t>;

MaskShape shape_of(const Sequences& sequences, std::int64_t heads) {
  MaskShape shape{.heads = heads, .sequences = {}};
  for (const auto& [q_begin, q_len, kv_begin, kv_len, q_start, kv_start] : sequences) {
    shape.sequences.push_back({.q_begin = q_begin,
                               .q_len = q_len,
                               .kv_begin = kv_begin,
                               .kv_len = kv_len,
                               .q_start = q_start,
                               .kv_start = kv_start});
  }
  return shape;
}

Sequences numbers_of(const MaskShape& shape) {
  Sequences sequences;
  for (const Sequence& s : shape.sequences) {
    sequences.push_back({s.q_begin, s.q_len, s.kv_begin, s.kv_len, s.q_start, s.kv_start});
  }
  return sequences;
}

SharedBlockMask shared(BlockMask mask) { return {std::make_shared<const BlockMask>(std::move(mask))}; }

SharedBlockMask build(const std::optional<Expr>& mask, const NamedValues& values, const Sequences& sequences,
                      std::int64_t heads, Block block, int threads, const std::string& reals, bool clamp_reads) {
  const Bindings bindings = bindings_of(values);
  const MaskShape shape = shape_of(sequences, heads);
  const DType type = parse_dtype(reals);
  const WithoutGil released;
  return shared(BlockMask::build(mask.value_or(Expr()), shape, {block.first, block.second}, bindings, threads, type,
                                 clamp_reads));
}

/// One of the lists, whose memory is read while the call lasts.
Tensor list_of(const Given& list, const char* name) {
  if (!list) return {};
  const ConstTensorView view = const_view_of(*list, name);
  return Tensor::adopt({const_cast<void*>(view.data), view.dtype, view.shape, view.strides, view.device}, nullptr);
}

SharedBlockMask from_lists(const Given& kv_num_blocks, const Given& kv_indices, const Given& full_kv_num_blocks,
                           const Given& full_kv_indices, const std::optional<Expr>& mask, const Sequences& sequences,
                           std::int64_t heads, Block block) {
  const BlockLists lists = {.kv_num_blocks = list_of(kv_num_blocks, "kv_num_blocks"),
                            .kv_indices = list_of(kv_indices, "kv_indices"),
                            .full_kv_num_blocks = list_of(full_kv_num_blocks, "full_kv_num_blocks"),
                            .full_kv_indices = list_of(full_kv_indices, "full_kv_indices")};
  const MaskShape shape = shape_of(sequences, heads);
  const WithoutGil released;
  return shared(BlockMask::from_lists(lists, shape, {block.first, block.second}, mask.value_or(Expr())));
}

nb::typed<nb::tuple, nb::any, nb::any, nb::any, nb::any> to_lists(const SharedBlockMask& self) {
  const BlockLists lists = [&] {
    const WithoutGil released;
    return self.mask->to_lists();
  }();
  return nb::borrow<nb::typed<nb::tuple, nb::any, nb::any, nb::any, nb::any>>(
      nb::make_tuple(to_python(lists.kv_num_blocks), to_python(lists.kv_indices), to_python(lists.full_kv_num_blocks),
                     to_python(lists.full_kv_indices)));
}

std::vector<std::tuple<int, int, bool>> row(const SharedBlockMask& self, std::int64_t sequence, std::int64_t head,
                                            std::int64_t q_block) {
  std::vector<std::tuple<int, int, bool>> runs;
  for (const Run& run : self.mask->row(sequence, head, q_block)) {
    runs.emplace_back(run.begin, run.end, run.kind == RunKind::full);
  }
  return runs;
}

/// How many blocks of each cell of a score matrix attend: a cell has `height` rows and `width` columns of blocks.
std::vector<std::vector<std::int64_t>> counts_in_cells(const SharedBlockMask& self, std::int64_t sequence,
                                                       std::int64_t head, std::int64_t height, std::int64_t width) {
  const WithoutGil released;
  const std::int64_t rows = self.mask->q_blocks(sequence), columns = self.mask->kv_blocks(sequence);
  const auto cells = [](std::int64_t extent, std::int64_t step) {
    return static_cast<std::size_t>((extent + step - 1) / step);
  };
  std::vector<std::vector<std::int64_t>> counts(cells(rows, height), std::vector<std::int64_t>(cells(columns, width)));
  for (std::int64_t row = 0; row < rows; ++row) {
    std::vector<std::int64_t>& in_columns = counts[static_cast<std::size_t>(row / height)];
    for (const Run& run : self.mask->row(sequence, head, row)) {
      for (std::int64_t begin = run.begin; begin < run.end;) {
        const std::int64_t end = std::min<std::int64_t>(run.end, (begin / width + 1) * width);
        in_columns[static_cast<std::size_t>(begin / width)] += end - begin;
        begin = end;
      }
    }
  }
  return counts;
}

SharedBlockMask updated(const SharedBlockMask& self, const NamedValues& values, int threads) {
  const Bindings bindings = bindings_of(values);
  const WithoutGil released;
  BlockMask mask = *self.mask;
  mask.update(bindings, threads);
  return shared(std::move(mask));
}

std::map<std::string, std::int64_t> statistics(const SharedBlockMask& self) {
  const BlockMask::Statistics counts = self.mask->statistics();
  return {{"blocks", counts.blocks},
          {"full", counts.full},
          {"partial", counts.partial},
          {"empty", counts.empty},
          {"different_rows", counts.different_rows},
          {"runs", counts.runs},
          {"bytes", counts.bytes},
          {"classified_rows", counts.classified_rows},
          {"evaluated_tiles", counts.evaluated_tiles},
          {"range_queries", counts.range_queries}};
}

/// The names that a mask reads: captures, params.
std::pair<std::vector<std::string>, std::vector<std::string>> names_of(const SharedBlockMask& self) {
  std::pair<std::vector<std::string>, std::vector<std::string>> names;
  if (self.mask->mask().empty()) return names;
  const Symbols symbols = symbols_of(self.mask->mask());
  for (const auto& [name, declared] : symbols.captures) names.first.push_back(name);
  for (const auto& [name, type] : symbols.params) names.second.push_back(name);
  return names;
}

}  // namespace

void add_block_masks(nb::module_& module) {
  nb::class_<SharedBlockMask> type(module, "BlockMask", "Which blocks of the score matrices attend.");
  type.def_static("build", &build, "mask"_a.none(), "values"_a, "sequences"_a, "heads"_a, "block"_a, "threads"_a,
                  "reals"_a, "clamp_reads"_a);
  type.def_static("from_lists", &from_lists, "kv_num_blocks"_a.none(), "kv_indices"_a.none(),
                  "full_kv_num_blocks"_a.none(), "full_kv_indices"_a.none(), "mask"_a.none(), "sequences"_a, "heads"_a,
                  "block"_a);
  type.def("to_lists", &to_lists);
  type.def("transposed", [](const SharedBlockMask& self) {
    const WithoutGil released;
    return shared(self.mask->transposed());
  });
  type.def("updated", &updated, "values"_a, "threads"_a);
  type.def(
      "check_current",
      [](const SharedBlockMask& self, const NamedValues& values) { self.mask->check_current(bindings_of(values)); },
      "values"_a);
  type.def("statistics", &statistics);
  type.def("counts_in_cells", &counts_in_cells, "sequence"_a, "head"_a, "height"_a, "width"_a);
  type.def("row", &row, "sequence"_a, "head"_a, "q_block"_a);
  type.def("q_blocks",
           [](const SharedBlockMask& self, std::int64_t sequence) { return self.mask->q_blocks(sequence); });
  type.def("kv_blocks",
           [](const SharedBlockMask& self, std::int64_t sequence) { return self.mask->kv_blocks(sequence); });
  type.def("text", [](const SharedBlockMask& self, std::int64_t sequence, std::int64_t head) {
    return self.mask->text(sequence, head);
  });
  type.def("svg", [](const SharedBlockMask& self, std::int64_t sequence, std::int64_t head) {
    return self.mask->svg(sequence, head);
  });
  type.def(
      "equals", [](const SharedBlockMask& self, const SharedBlockMask& other) { return *self.mask == *other.mask; },
      "other"_a);
  type.def_prop_ro("sequences", [](const SharedBlockMask& self) { return numbers_of(self.mask->shape()); });
  type.def_prop_ro("heads", [](const SharedBlockMask& self) { return self.mask->shape().heads; });
  type.def_prop_ro("block",
                   [](const SharedBlockMask& self) { return std::pair(self.mask->block().q, self.mask->block().kv); });
  type.def_prop_ro("mask", [](const SharedBlockMask& self) { return self.mask->mask(); });
  type.def_prop_ro("names", &names_of);
  type.def_prop_ro("reals", [](const SharedBlockMask& self) { return std::string(name(self.mask->reals())); });
  type.def_prop_ro("clamps_reads", [](const SharedBlockMask& self) { return self.mask->clamps_reads(); });
  type.def_prop_ro("is_transposed", [](const SharedBlockMask& self) { return self.mask->is_transposed(); });
  type.def_prop_ro("is_from_lists", [](const SharedBlockMask& self) { return self.mask->is_from_lists(); });
  type.def_prop_ro("shared_by_batch", [](const SharedBlockMask& self) { return self.mask->shared_by_batch(); });
  type.def_prop_ro("shared_by_heads", [](const SharedBlockMask& self) { return self.mask->shared_by_heads(); });
  type.def_prop_ro("revision", [](const SharedBlockMask& self) { return self.mask->revision(); });
  module.attr("MOST_SEQUENCES") = MaskShape::kMostSequences;
  module.def(
      "packed_sequences",
      [](const ReadOnly& q, const ReadOnly& kv) {
        return numbers_of(MaskShape::packed(1, const_view_of(q, "cu_seqlens_q"), const_view_of(kv, "cu_seqlens_kv")));
      },
      "cu_seqlens_q"_a, "cu_seqlens_kv"_a);
}

}  // namespace heddle::python
