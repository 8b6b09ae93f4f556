#include "partitions.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "heddle/context_parallel.h"
#include "heddle/error.h"
#include "heddle/move_rows.h"
#include "heddle/partition.h"
#include "shared_block_mask.h"
#include "tensors.h"

namespace heddle::python {
namespace {

using namespace nb::literals;

nb::any array_of(const std::vector<std::int64_t>& rows) {
  Tensor made = Tensor::empty(DType::i64, Dims{std::ssize(rows)});
  std::ranges::copy(rows, static_cast<std::int64_t*>(made.data()));
  return to_python(made);
}

std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> placement_of(const Partition& self) {
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> ranks;
  for (const std::vector<RowRange>& ranges : self.placement) {
    ranks.emplace_back();
    for (const RowRange& range : ranges) ranks.back().emplace_back(range.begin, range.end);
  }
  return ranks;
}

std::optional<Placing> placing_of(const std::optional<std::string>& wanted) {
  if (!wanted) return {};
  for (const Placing one : {Placing::contiguous, Placing::zigzag, Placing::documents, Placing::heap}) {
    if (*wanted == name(one)) return one;
  }
  throw Error(ErrorCode::invalid_argument,
              "placing is '" + *wanted + "'; contiguous, zigzag, documents, heap and None are accepted");
}

HostSteps steps_of(std::int64_t steps) {
  if (steps >= 0 && steps <= 2) return static_cast<HostSteps>(steps);
  throw Error(ErrorCode::invalid_argument, "host_steps is " + std::to_string(steps) + "; 1, 2 and None are accepted");
}

void move_arrays(const ReadOnly& source, const Array& target, const Given& source_rows, const Given& target_rows,
                 bool adds, std::uintptr_t stream) {
  const RowMoves how{.from_rows = given_view(source_rows, "source_rows"),
                     .to_rows = given_view(target_rows, "target_rows"),
                     .adds = adds,
                     .stream = reinterpret_cast<void*>(stream)};
  const ConstTensorView from = const_view_of(source, "source");
  const TensorView to = view_of(target, "target");
  const WithoutGil released;
  move_rows(from, to, how);
}

MadePartition make(const std::vector<SharedBlockMask>& masks, const std::vector<double>& weights, std::int64_t ranks,
                   std::int64_t chunk, double exchange_weight, std::uint64_t seed,
                   const std::optional<std::string>& placing, std::int64_t ranks_per_host, double host_exchange_weight,
                   std::int64_t host_steps) {
  PartitionOptions options{.chunk = chunk,
                           .exchange_weight = exchange_weight,
                           .seed = seed,
                           .only = placing_of(placing),
                           .ranks_per_host = ranks_per_host,
                           .host_exchange_weight = host_exchange_weight,
                           .host_steps = steps_of(host_steps)};
  std::vector<WeightedMask> weighted;
  for (std::size_t i = 0; i < masks.size(); ++i) weighted.push_back({masks[i].mask.get(), weights.at(i)});
  const WithoutGil released;
  return make_partition(weighted, ranks, options);
}

void add_partition(nb::module_& module) {
  nb::class_<Partition> partition(module, "Partition", "Which rank holds which rows of a sequence.");
  partition.def_static("contiguous", &Partition::contiguous, "length"_a, "ranks"_a, "chunk"_a);
  partition.def_ro("length", &Partition::length);
  partition.def_ro("chunk", &Partition::chunk);
  partition.def_prop_ro("ranks", &Partition::ranks);
  partition.def_prop_ro("placement", &placement_of);
  partition.def("rows", &Partition::rows, "rank"_a);
  partition.def(
      "positions", [](const Partition& self, std::int64_t rank) { return array_of(self.positions(rank)); }, "rank"_a);
  partition.def_prop_ro("hash", &Partition::hash);
  partition.def("text", &Partition::text);
  partition.def(
      "equals", [](const Partition& self, const Partition& other) { return self == other; }, "other"_a);
}

void add_made_partition(nb::module_& module) {
  nb::class_<MadePartition> made(module, "MadePartition", "A placement of one sequence, and why it was taken.");
  made.def_ro("queries", &MadePartition::queries);
  made.def_ro("keys", &MadePartition::keys);
  made.def_ro("ranks_per_host", &MadePartition::ranks_per_host);
  made.def_prop_ro("balance", [](const MadePartition& self) { return self.candidates.front().balance; });
  made.def("text", &MadePartition::text);
}

void add_exchange_plan(nb::module_& module) {
  nb::class_<ExchangePlan> plan(module, "ExchangePlan", "The rows of keys and values that travel for one mask.");
  plan.def_static(
      "build",
      [](const Partition& queries, const Partition& keys, const SharedBlockMask& mask, std::int64_t ranks_per_host) {
        const WithoutGil released;
        return ExchangePlan::build(queries, keys, *mask.mask, ranks_per_host);
      },
      "queries"_a, "keys"_a, "mask"_a, "ranks_per_host"_a);
  plan.def("rows", nb::overload_cast<std::int64_t, std::int64_t>(&ExchangePlan::rows, nb::const_), "receiver"_a,
           "sender"_a);
  plan.def("crossing_rows", nb::overload_cast<std::int64_t, std::int64_t>(&ExchangePlan::crossing_rows, nb::const_),
           "receiver"_a, "sender"_a);
  plan.def(
      "crossing_sent_rows",
      [](const ExchangePlan& self, std::int64_t rank, const Partition& keys) {
        return array_of(self.crossing_sent_rows(rank, keys));
      },
      "rank"_a, "keys"_a);
  plan.def(
      "received_positions",
      [](const ExchangePlan& self, std::int64_t rank) { return array_of(self.received_positions(rank)); }, "rank"_a);
  plan.def(
      "sent_rows",
      [](const ExchangePlan& self, std::int64_t rank, const Partition& keys) {
        return array_of(self.sent_rows(rank, keys));
      },
      "rank"_a, "keys"_a);
  plan.def("predicted_seconds", &ExchangePlan::predicted_seconds, "row_bytes"_a, "ranks_per_host"_a);
  plan.def_prop_ro("hash", &ExchangePlan::hash);
  plan.def("text", &ExchangePlan::text, "row_bytes"_a);
}

}  // namespace

void add_partitions(nb::module_& module) {
  add_partition(module);
  add_made_partition(module);
  add_exchange_plan(module);
  module.def("default_chunk", &default_chunk, "rows"_a, "ranks"_a);
  module.def("default_head_groups", &default_head_groups, "kv_heads"_a, "exchanged_bytes"_a, "tiles"_a, "flop"_a,
             "own_share"_a);
  module.def("move_rows", &move_arrays, "source"_a, "target"_a, "source_rows"_a.none(), "target_rows"_a.none(),
             "adds"_a, "stream"_a);
  module.def(
      "most_elements",
      [](const Partition& queries, const SharedBlockMask& mask) {
        const WithoutGil released;
        return most_elements(queries, *mask.mask);
      },
      "queries"_a, "mask"_a);
  module.def("make_partition", &make, "masks"_a, "weights"_a, "ranks"_a, "chunk"_a, "exchange_weight"_a, "seed"_a,
             "placing"_a.none(), "ranks_per_host"_a, "host_exchange_weight"_a, "host_steps"_a);
  module.def(
      "takes_two_steps",
      [](const MadePartition& partition_made, const ExchangePlan& direct, const ExchangePlan& two,
         std::int64_t row_bytes) { return takes_two_steps(partition_made.host_steps, direct, two, row_bytes); },
      "made"_a, "direct"_a, "two"_a, "row_bytes"_a);
}

}  // namespace heddle::python
