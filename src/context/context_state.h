// Everything that a ContextAttention keeps between its calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "backend/device.h"
#include "context/lane.h"
#include "context/positions.h"
#include "context/route.h"
#include "context/rows_of_keys.h"
#include "heddle/context_parallel.h"

namespace heddle {

namespace context {

std::uint64_t hash_of(std::string_view text);

/// One way of rows to this rank, and the mods over the rows in its order.
struct Way {
  /// Rewrites the mods of `whole`, in the indices of the whole sequence, for rows of `keys` that take this way.
  Way(ExchangePlan plan, const Partition& keys, std::int64_t rank, const Device& device, const Positions& queries,
      const AttentionOptions& whole);

  ExchangePlan exchange;
  Route route;
  Positions keys;
  std::int64_t most_received = 0;  // rows, of any rank
  AttentionOptions options;        // over this rank's rows
  AttentionOptions grouped;        // the same in groups of heads
};

}  // namespace context

struct ContextAttention::State {
  State(Communicator& communicator_, const AttentionOptions& options_, ContextChecks checks_)
      : communicator(communicator_), device(communicator_.device()), given(options_), checks(checks_) {}

  Communicator& communicator;
  Device device;
  AttentionOptions given;
  ContextChecks checks;
  HostSteps host_steps = HostSteps::automatic;
  std::int64_t queries = 0;       // of this rank
  std::int64_t most_queries = 0;  // of any rank
  double most_elements = 0;       // of a head and sequence, likewise
  std::int64_t head_groups = 0;   // as set_head_groups() has it
  context::Positions query_positions;
  std::optional<context::Way> direct, two_steps;  // with one host, or one step, there is only `direct`
  const context::Way* latest = nullptr;
  std::uint64_t word = 0;  // of the partition, the exchanges and the options
  context::CallMemory memory;
  bool has_compared_forward = false, has_compared_backward = false;
  std::unique_ptr<backend::SideStream> side;  // made by the first call in several groups

  void make(const MadePartition& partition, const BlockMask& mask);
  /// Whether this call compares; all ranks find the same.
  bool compares(bool& has_compared) const {
    const bool first_alone =
        checks == ContextChecks::first || (checks == ContextChecks::automatic && device.kind != DeviceKind::cpu);
    return !std::exchange(has_compared, true) || !first_alone;
  }
  /// Refuses rows that this rank does not hold.
  void check(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v) const;
  /// The way of the rows of a call; all ranks find the same.
  const context::Way& way_of(const ConstTensorView& k, const ConstTensorView& v);
  /// In how many groups of heads a call is exchanged and computed; all ranks find the same. `at_once`: none is beside
  /// another.
  std::int64_t groups_of(const context::Way& way, const ConstTensorView& q, const ConstTensorView& k,
                         const ConstTensorView& v, bool at_once) const;
  /// The options of each group of a call: with the starts of each sequence of the batch, which `starts` holds.
  std::vector<AttentionOptions> options_of(const context::Way& way, const ConstTensorView& q, const ConstTensorView& k,
                                           std::int64_t groups, std::vector<Tensor>& starts) const;
  /// Makes the stream beside attention's if a call has several groups.
  void make_side(std::int64_t groups);
  /// The exchanges of such a call.
  std::unique_ptr<context::Lane> lane(std::int64_t groups) const;
};

}  // namespace heddle
