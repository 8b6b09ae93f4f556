#include "context/context_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <string_view>

#include "backend/backends.h"
#include "base/hash.h"
#include "context/context_checks.h"
#include "context/head_groups.h"
#include "expr/mod_arguments.h"

namespace heddle {
namespace {

using mods::refuse;

std::string text_of(const Expr& mod) { return mod.empty() ? std::string() : print(mod); }

/// A number that no other way of this process has.
std::uint64_t next_version() {
  static std::atomic<std::uint64_t> versions{0};
  return ++versions;
}

/// Bytes of a row of keys and values of all heads and sequences.
std::int64_t row_bytes(const ConstTensorView& k, const ConstTensorView& v) {
  return k.shape[0] * k.shape[1] * (k.shape[3] + v.shape[3]) * size_of(k.dtype);
}

}  // namespace

namespace context {

std::uint64_t hash_of(std::string_view text) { return base::hash_bytes(text.data(), text.size()); }

Way::Way(ExchangePlan plan, const Partition& keys_of_all, std::int64_t rank, const Device& device,
         const Positions& queries, const AttentionOptions& whole)
    : exchange(std::move(plan)),
      route(exchange, keys_of_all, rank, device),
      keys(kKeys, route.positions, keys_of_all.length, device),
      options(whole) {
  for (std::int64_t one = 0; one < exchange.ranks(); ++one) {
    most_received = std::max(most_received, exchange.rows(one));
  }
  over_rows(options, queries, keys);
  grouped = options;
  over_heads(grouped);
}

}  // namespace context

void ContextAttention::State::make(const MadePartition& partition, const BlockMask& mask) {
  const std::int64_t rank = communicator.rank(), size = communicator.size();
  if (rank < 0 || rank >= size) {
    refuse(fmt::format("the communicator says that this is rank {} of {}, so it misses this one; 0 to {} are accepted",
                       rank, size, size - 1));
  }
  if (partition.queries.ranks() != size) {
    refuse(fmt::format("the partition is of {} ranks, and the communicator of {}; equal numbers are accepted",
                       partition.queries.ranks(), size));
  }
  for (const auto& [what, part] : {std::pair("queries", &partition.queries), {"keys", &partition.keys}}) {
    if (part->length >= size) continue;
    refuse(fmt::format("the sequence has {} {}, and there are {} ranks; at least as many are accepted", part->length,
                       what, size));
  }
  context::refuse_options(given, device);
  if (mask.is_from_lists()) refuse("the mask is of lists; one that is built from a mask_mod is accepted");
  host_steps = partition.host_steps;
  for (std::int64_t one = 0; one < size; ++one) most_queries = std::max(most_queries, partition.queries.rows(one));
  const std::vector<std::int64_t> own_queries = partition.queries.positions(rank);
  queries = std::ssize(own_queries);
  query_positions = context::Positions(context::kQueries, own_queries, partition.queries.length, device);
  // Ranks have the mods in common as they were given, not over their rows.
  word = base::hash_combine(partition.queries.hash(), partition.keys.hash());
  word =
      base::hash_combine(word, context::hash_of(fmt::format("{}; {}; {}; {}; {}; {}; {}", text_of(mask.mask()),
                                                            text_of(given.score_mod), text_of(given.weight_mod),
                                                            given.scale.value_or(0), static_cast<int>(given.normalizer),
                                                            given.sinks.has_value(), static_cast<int>(host_steps))));
  AttentionOptions whole = given;
  whole.mask_mod = mask.mask();
  whole.backend = backend::backend_of(device.kind);
  const auto way_by = [&](std::int64_t ranks_per_host) {
    const ExchangePlan plan = ExchangePlan::build(partition.queries, partition.keys, mask, ranks_per_host);
    word = base::hash_combine(word, plan.hash());
    // Plans know positions on a GPU by their address.
    whole.mask_version = base::hash_combine(given.mask_version, next_version());
    return context::Way(plan, partition.keys, rank, device, query_positions, whole);
  };
  if (partition.ranks_per_host != 0 && host_steps != HostSteps::one) two_steps = way_by(partition.ranks_per_host);
  if (two_steps && two_steps->exchange.ranks_per_host == 0) two_steps.reset();  // a rank on each host
  if (!two_steps || host_steps == HostSteps::automatic) direct = way_by(0);
  latest = two_steps ? &*two_steps : &*direct;
  most_elements = heddle::most_elements(partition.queries, mask);
}

void ContextAttention::State::check(const ConstTensorView& q, const ConstTensorView& k,
                                    const ConstTensorView& v) const {
  const std::int64_t keys = latest->route.own;
  context::check_rows("q", q, queries, device);
  context::check_rows("k", k, keys, device);
  context::check_rows("v", v, keys, device);
  if (k.dtype != v.dtype || k.shape[0] != v.shape[0] || k.shape[1] != v.shape[1]) {
    refuse(fmt::format("k is {} {} and v {} {}; one dtype, batch and number of heads are accepted", name(k.dtype),
                       to_string(k.shape), name(v.dtype), to_string(v.shape)));
  }
}

const context::Way& ContextAttention::State::way_of(const ConstTensorView& k, const ConstTensorView& v) {
  if (two_steps && direct) {
    const bool takes_two = takes_two_steps(host_steps, direct->exchange, two_steps->exchange, row_bytes(k, v));
    latest = takes_two ? &*two_steps : &*direct;
  }
  return *latest;
}

std::int64_t ContextAttention::State::groups_of(const context::Way& way, const ConstTensorView& q,
                                                const ConstTensorView& k, const ConstTensorView& v,
                                                bool at_once) const {
  const std::int64_t kv_heads = k.shape[1];
  if (head_groups > 0 && kv_heads % head_groups != 0) {
    refuse(fmt::format("head_groups is {}; 0 and divisors of the {} heads of k are accepted", head_groups, kv_heads));
  }
  std::int64_t groups = head_groups;
  if (groups == 0 && device.kind != DeviceKind::cpu) {
    constexpr std::int64_t kTile = 128;
    groups = default_head_groups(
        kv_heads, way.most_received * row_bytes(k, v), q.shape[0] * q.shape[1] * ((most_queries + kTile - 1) / kTile),
        2.0 * static_cast<double>(q.shape[0] * q.shape[1] * (k.shape[3] + v.shape[3])) * most_elements);
  }
  if (at_once || groups == 0) return 1;
  if (groups > 1 && q.shape[1] % kv_heads != 0) {
    refuse(fmt::format("q has {} heads; multiples of the {} heads of k are accepted", q.shape[1], kv_heads));
  }
  return groups;
}

std::vector<AttentionOptions> ContextAttention::State::options_of(const context::Way& way, const ConstTensorView& q,
                                                                  const ConstTensorView& k, std::int64_t groups,
                                                                  std::vector<Tensor>& starts) const {
  AttentionOptions made = groups > 1 ? way.grouped : way.options;
  for (const auto& [positions, start] : {std::pair(&query_positions, &made.q_start), {&way.keys, &made.kv_start}}) {
    if (positions->start().value_or(0) == 0) continue;
    const Tensor& numbers = starts.emplace_back(Tensor::empty(DType::i64, {q.shape[0]}));
    std::fill_n(static_cast<std::int64_t*>(numbers.data()), q.shape[0], *positions->start());
    *start = numbers;
  }
  if (groups == 1) return {made};
  std::vector<AttentionOptions> all;
  for (std::int64_t i = 0; i < groups; ++i) {
    all.push_back(context::options_of(made, context::head_group(i, groups, q.shape[1], k.shape[1]), i, groups));
  }
  return all;
}

void ContextAttention::State::make_side(std::int64_t groups) {
  if (groups == 1 || side != nullptr) return;
  side = backend::find_device_kind(device.kind)->make_side_stream(device.index, context::Lane::kMarks);
}

std::unique_ptr<context::Lane> ContextAttention::State::lane(std::int64_t groups) const {
  if (groups == 1) return std::make_unique<context::Lane>(given.stream);
  return std::make_unique<context::Lane>(given.stream, side.get());
}

}  // namespace heddle
