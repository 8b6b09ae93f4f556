// One rank's part of an exchange plan: how many rows leave and come in each step, and which.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "heddle/partition.h"
#include "heddle/tensor.h"

namespace heddle::context {

/// One step of an exchange. Its pieces stand rank by rank.
struct Step {
  std::vector<std::int64_t> received, sent;  // rows, of each rank
  /// Numbers of the rows that leave, in the memory of a RowsOfKeys: i32, on the ranks' device.
  Tensor leaving;
  /// Numbers of the same rows among the rank's own ones; empty if rows that crossed to it may leave, too.
  Tensor leaving_own;

  std::int64_t received_rows() const;
  std::int64_t sent_rows() const;
  bool is_empty() const { return received.empty(); }
};

/// Memory of a rank's rows: `before` own ones, those that it receives for its queries, its other own ones, and those
/// that cross to it from other hosts for all ranks of its own.
struct Route {
  Route() = default;
  Route(const ExchangePlan& plan, const Partition& keys, std::int64_t rank, const Device& device);

  Step crossing;                                    // between hosts; empty with one host
  Step near;                                        // to the queries' ranks
  std::int64_t own = 0, received = 0, crossed = 0;  // rows
  std::int64_t before = 0;
  std::vector<std::int64_t> positions;  // in the sequence, of the rows that attention reads

  std::int64_t attended() const { return own + received; }
  std::int64_t all() const { return attended() + crossed; }
};

}  // namespace heddle::context
