// Partitions behind an opaque pointer, and the rows that travel.
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "errors.h"
#include "from_c.h"
#include "heddle/error.h"
#include "heddle/partition.h"
#include "structs.h"

namespace heddle::capi {
namespace {

std::optional<Placing> to_placing(std::int32_t placing) {
  switch (placing) {
    case HEDDLE_PLACING_AUTOMATIC:
      return {};
    case HEDDLE_PLACING_CONTIGUOUS:
      return Placing::contiguous;
    case HEDDLE_PLACING_ZIGZAG:
      return Placing::zigzag;
    case HEDDLE_PLACING_DOCUMENTS:
      return Placing::documents;
    case HEDDLE_PLACING_HEAP:
      return Placing::heap;
    default:
      refuse(
          fmt::format("options.placing is {}; HEDDLE_PLACING_AUTOMATIC to HEDDLE_PLACING_HEAP are accepted", placing));
  }
}

PartitionOptions to_options(const heddle_partition_options* options) {
  PartitionOptions made;
  if (options == nullptr) return made;
  const heddle_partition_options given = known_fields("options", options);
  if (given.reserved != 0) refuse(fmt::format("options.reserved is {}; 0 is accepted", given.reserved));
  const auto set = [](double& time, double number) {
    if (number != 0) time = number;
  };
  made.chunk = given.chunk;
  made.ranks_per_host = given.ranks_per_host;
  set(made.exchange_weight, given.exchange_weight);
  set(made.host_exchange_weight, given.host_exchange_weight);
  set(made.partial_factor, given.partial_factor);
  set(made.row_weight, given.row_weight);
  set(made.exposed, given.exposed);
  made.seed = given.seed;
  if (given.host_steps < 0 || given.host_steps > 2) {
    refuse(fmt::format("options.host_steps is {}; 0, 1 and 2 are accepted", given.host_steps));
  }
  made.host_steps = static_cast<HostSteps>(given.host_steps);
  made.only = to_placing(given.placing);
  return made;
}

/// The partition of the queries or of the keys.
const Partition& side(const heddle_partition* partition, std::int32_t of_keys) {
  require(partition, "partition", "heddle_partition");
  return to_flag("of_keys", of_keys) ? partition->made.keys : partition->made.queries;
}

ExchangePlan exchange_plan(const heddle_partition* partition, const heddle_block_mask* mask) {
  require(partition, "partition", "heddle_partition");
  require(mask, "mask", "heddle_block_mask");
  const MadePartition& made = partition->made;
  const bool by_hosts = made.host_steps != HostSteps::one;
  return ExchangePlan::build(made.queries, made.keys, *mask->mask, by_hosts ? made.ranks_per_host : 0);
}

}  // namespace
}  // namespace heddle::capi

using namespace heddle::capi;

heddle_status heddle_partition_create(const heddle_weighted_mask* masks, int64_t mask_count, int64_t ranks,
                                      const heddle_partition_options* options, heddle_partition** partition) {
  return call([&] {
    require(partition, "partition", "place for a heddle_partition*");
    *partition = nullptr;
    if (mask_count < 0 || mask_count > 1 << 16) {
      refuse(fmt::format("mask_count is {}; 1 to {} are accepted", mask_count, 1 << 16));
    }
    if (mask_count > 0) require(masks, "masks", "array of heddle_weighted_mask");
    std::vector<heddle::WeightedMask> weighted;
    for (std::int64_t i = 0; i < mask_count; ++i) {
      require(masks[i].mask, fmt::format("masks[{}].mask", i), "heddle_block_mask");
      weighted.push_back({masks[i].mask->mask.get(), masks[i].weight});
    }
    *partition = new heddle_partition{heddle::make_partition(weighted, ranks, to_options(options))};
  });
}

void heddle_partition_destroy(heddle_partition* partition) { delete partition; }

heddle_status heddle_partition_rows(const heddle_partition* partition, int32_t of_keys, int64_t rank, int64_t* rows) {
  return call([&] {
    require(rows, "rows", "place for an int64_t");
    *rows = side(partition, of_keys).rows(rank);
  });
}

heddle_status heddle_partition_positions(const heddle_partition* partition, int32_t of_keys, int64_t rank,
                                         int64_t* positions) {
  return call([&] {
    const std::vector<std::int64_t> found = side(partition, of_keys).positions(rank);
    if (!found.empty()) require(positions, "positions", "place for the rows of the rank");
    std::ranges::copy(found, positions);
  });
}

heddle_status heddle_partition_hash(const heddle_partition* partition, uint64_t* hash) {
  return call([&] {
    require(hash, "hash", "place for a uint64_t");
    *hash = side(partition, 0).hash() ^ (side(partition, 1).hash() << 1);
  });
}

heddle_status heddle_partition_text(const heddle_partition* partition, const char** text) {
  return call([&] {
    require(partition, "partition", "heddle_partition");
    require(text, "text", "place for a text");
    *text = keep_text(partition->made.text());
  });
}

heddle_status heddle_exchange_rows(const heddle_partition* partition, const heddle_block_mask* mask, int64_t* received,
                                   int64_t* crossing) {
  return call([&] {
    require(received, "received", "place for ranks * ranks numbers");
    const heddle::ExchangePlan plan = exchange_plan(partition, mask);
    for (std::int64_t receiver = 0; receiver < plan.ranks(); ++receiver) {
      for (std::int64_t sender = 0; sender < plan.ranks(); ++sender) {
        const std::int64_t entry = receiver * plan.ranks() + sender;
        received[entry] = plan.rows(receiver, sender);
        if (crossing != nullptr) crossing[entry] = plan.crossing_rows(receiver, sender);
      }
    }
  });
}

heddle_status heddle_exchange_text(const heddle_partition* partition, const heddle_block_mask* mask, int64_t row_bytes,
                                   const char** text) {
  return call([&] {
    require(text, "text", "place for a text");
    *text = keep_text(exchange_plan(partition, mask).text(row_bytes));
  });
}
