#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "context/positions.h"
#include "context/route.h"
#include "context/rows_of_keys.h"
#include "expr/mod_arguments.h"
#include "heddle/context_parallel.h"
#include "heddle/error.h"

namespace heddle {
namespace {

using mods::refuse;

/// The backend that computes where the tensors are.
BackendChoice backend_on(const Device& device) {
  switch (device.kind) {
    case DeviceKind::cpu:
      return BackendChoice::cpu;
    case DeviceKind::cuda:
      return BackendChoice::cuda;
    case DeviceKind::rocm:
      return BackendChoice::amd;
  }
  return BackendChoice::automatic;
}

std::string text_of(const Device& device) {
  if (device.kind == DeviceKind::cpu) return "the CPU";
  return fmt::format("{}:{}", device.kind == DeviceKind::cuda ? "cuda" : "rocm", device.index);
}

void refuse_options(const AttentionOptions& options, const Device& device) {
  const auto given = [](std::string_view name) {
    refuse(fmt::format("{} is given; ContextAttention takes whole sequences of one partition, without it", name));
  };
#define HEDDLE_LENGTHS_OPTION(name, group, help) \
  if (options.name) given(#name);
#define HEDDLE_COUNT_OPTION(name) \
  if (options.name) given(#name);
#include "heddle/options.def"
  if (options.page_table) given("page_table");
  if (options.q_rest) given("q_rest");
  if (options.k_rest) given("k_rest");
  if (options.block_mask) given("block_mask");
  if (!options.mask_mod.empty()) given("mask_mod");
  if (options.backend != BackendChoice::automatic && options.backend != backend_on(device)) {
    refuse(fmt::format("backend is {}, and the communicator carries rows of {}; {} and automatic are accepted",
                       name(options.backend), text_of(device), name(backend_on(device))));
  }
  for (const char* name : {context::kQueries, context::kKeys}) {
    if (options.bindings.captures.contains(name)) {
      refuse(fmt::format("a capture is called '{}', which ContextAttention adds; other names are accepted", name));
    }
  }
}

std::uint64_t hash_of(std::string_view text) { return base::hash_bytes(text.data(), text.size()); }

std::string text_of(const Expr& mod) { return mod.empty() ? std::string() : print(mod); }

/// All but the rows of a tensor, [B, H, rows, D], that ranks have in common.
std::string shape_text(const ConstTensorView& view) {
  if (view.rank() != 4) return "?";
  return fmt::format("{}[{}, {}, {}]", name(view.dtype), view.shape[0], view.shape[1], view.shape[3]);
}

void check_rows(std::string_view name, const ConstTensorView& view, std::int64_t rows, const Device& device) {
  if (view.device != device) {
    refuse(fmt::format("{} is on {}, and the communicator carries rows of {}; tensors there are accepted", name,
                       text_of(view.device), text_of(device)));
  }
  if (view.rank() != 4 || view.shape[2] != rows) {
    refuse(fmt::format("{} has shape {}; {} rows, which this rank holds, are accepted", name, to_string(view.shape),
                       rows));
  }
}

void check_gradient(std::string_view name, const ConstTensorView& gradient, const ConstTensorView& of) {
  check_rows(name, gradient, of.shape[2], of.device);
  if (gradient.shape == of.shape && is_floating(gradient.dtype) && gradient.strides[3] == 1) return;
  refuse(fmt::format("{} is {} {} with a last stride of {}; a floating dtype, {} and 1 are accepted", name,
                     heddle::name(gradient.dtype), to_string(gradient.shape), gradient.strides[3],
                     to_string(of.shape)));
}

/// Prepares a call on this rank and, if `compares`, compares it with the others': `prepare` returns the number that all
/// must have in common.
template <class Prepare>
void agree_on(Communicator& communicator, bool compares, Prepare&& prepare) {
  constexpr std::uint64_t kError = 0;
  std::uint64_t number = kError;
  std::exception_ptr error;
  try {
    number = prepare() | 1;
  } catch (...) {
    error = std::current_exception();
  }
  const bool all = !compares || communicator.agree(number);
  if (error) std::rethrow_exception(error);
  if (!all) {
    refuse(
        fmt::format("rank {} of {} stops: another rank raised an error, which says why, or differs in its partition, "
                    "shapes, dtypes, mods, options or gradients",
                    communicator.rank(), communicator.size()));
  }
}

/// A number that no other ContextAttention of this process has: plans know positions on a GPU by their address.
std::uint64_t next_version() {
  static std::atomic<std::uint64_t> versions{0};
  return ++versions;
}

}  // namespace

struct ContextAttention::State {
  State(Communicator& communicator_, const AttentionOptions& options_, ContextChecks checks_)
      : communicator(communicator_), device(communicator_.device()), options(options_), checks(checks_) {}

  Communicator& communicator;
  Device device;
  AttentionOptions options;  // over this rank's rows
  ContextChecks checks;
  ExchangePlan exchange;
  std::int64_t queries = 0;  // of this rank
  context::Route route;
  context::Positions query_positions, key_positions;
  std::uint64_t word = 0;  // of the partition, the exchange and the options
  context::CallMemory memory;
  bool has_compared_forward = false, has_compared_backward = false;

  void make(const MadePartition& partition, const BlockMask& mask);
  /// Whether this call compares; all ranks find the same.
  bool compares(bool& has_compared) {
    const bool first_alone =
        checks == ContextChecks::first || (checks == ContextChecks::automatic && device.kind != DeviceKind::cpu);
    return !std::exchange(has_compared, true) || !first_alone;
  }
  void check(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v) const;
  /// The options of a call: with the starts of each sequence of the batch, which `starts` holds.
  AttentionOptions options_of(std::int64_t batch, std::vector<Tensor>& starts) const;
};

void ContextAttention::State::make(const MadePartition& partition, const BlockMask& mask) {
  const std::int64_t rank = communicator.rank(), size = communicator.size();
  if (partition.queries.ranks() != size) {
    refuse(fmt::format("the partition is of {} ranks, and the communicator of {}; equal numbers are accepted",
                       partition.queries.ranks(), size));
  }
  for (const auto& [what, part] : {std::pair("queries", &partition.queries), {"keys", &partition.keys}}) {
    if (part->length >= size) continue;
    refuse(fmt::format("the sequence has {} {}, and there are {} ranks; at least as many are accepted", part->length,
                       what, size));
  }
  refuse_options(options, device);
  if (mask.is_from_lists()) refuse("the mask is of lists; one that is built from a mask_mod is accepted");
  exchange = ExchangePlan::build(partition.queries, partition.keys, mask, partition.ranks_per_host);
  route = context::Route(exchange, partition.keys, rank, device);
  const std::vector<std::int64_t> own_queries = partition.queries.positions(rank);
  queries = std::ssize(own_queries);
  query_positions = context::Positions(context::kQueries, own_queries, partition.queries.length, device);
  key_positions = context::Positions(context::kKeys, route.positions, partition.keys.length, device);
  // Ranks have the mods in common as they were given, not over their rows.
  word = base::hash_combine(partition.queries.hash(), partition.keys.hash());
  word = base::hash_combine(word, exchange.hash());
  word = base::hash_combine(
      word, hash_of(fmt::format("{}; {}; {}; {}; {}; {}", text_of(mask.mask()), text_of(options.score_mod),
                                text_of(options.weight_mod), options.scale.value_or(0),
                                static_cast<int>(options.normalizer), options.sinks.has_value())));
  options.mask_mod = mask.mask();
  options.mask_version = base::hash_combine(options.mask_version, next_version());
  options.backend = backend_on(device);
  context::over_rows(options, query_positions, key_positions);
}

void ContextAttention::State::check(const ConstTensorView& q, const ConstTensorView& k,
                                    const ConstTensorView& v) const {
  check_rows("q", q, queries, device);
  check_rows("k", k, route.own, device);
  check_rows("v", v, route.own, device);
  if (k.dtype != v.dtype || k.shape[0] != v.shape[0] || k.shape[1] != v.shape[1]) {
    refuse(fmt::format("k is {} {} and v {} {}; one dtype, batch and number of heads are accepted", name(k.dtype),
                       to_string(k.shape), name(v.dtype), to_string(v.shape)));
  }
}

AttentionOptions ContextAttention::State::options_of(std::int64_t batch, std::vector<Tensor>& starts) const {
  AttentionOptions made = options;
  for (const auto& [positions, start] :
       {std::pair(&query_positions, &made.q_start), {&key_positions, &made.kv_start}}) {
    if (positions->start().value_or(0) == 0) continue;
    const Tensor& numbers = starts.emplace_back(Tensor::empty(DType::i64, {batch}));
    std::fill_n(static_cast<std::int64_t*>(numbers.data()), batch, *positions->start());
    *start = numbers;
  }
  return made;
}

ContextAttention::ContextAttention(const MadePartition& partition, const BlockMask& mask,
                                   const AttentionOptions& options, Communicator& communicator, ContextChecks checks)
    : state_(std::make_unique<State>(communicator, options, checks)) {
  agree_on(communicator, true, [&] {
    state_->make(partition, mask);
    return state_->word;
  });
}

ContextAttention::~ContextAttention() = default;
ContextAttention::ContextAttention(ContextAttention&&) noexcept = default;

const ExchangePlan& ContextAttention::exchange_plan() const { return state_->exchange; }

void ContextAttention::forward(const AttentionTensors& own) const {
  State& state = *state_;
  context::RowsOfKeys rows;
  AttentionTensors local = own;
  AttentionOptions options;
  std::vector<Tensor> starts;
  agree_on(state.communicator, state.compares(state.has_compared_forward), [&] {
    state.check(own.q, own.k, own.v);
    rows = context::RowsOfKeys(own.k, own.v, state.route, state.memory.rows, state.memory);
    local.k = rows.keys();
    local.v = rows.values();
    options = state.options_of(own.q.shape[0], starts);
    cached_plan(local, options);  // refuses what attention does
    return base::hash_combine(
        state.word, hash_of(fmt::format("forward {} {} {}", shape_text(own.q), shape_text(own.k), shape_text(own.v))));
  });
  rows.bring(own.k, own.v, state.communicator, options.stream);
  attention_into(local, options);
}

void ContextAttention::backward(const BackwardTensors& own) const {
  State& state = *state_;
  context::RowsOfKeys rows, gradients;
  BackwardTensors local = own;
  AttentionOptions options;
  std::vector<Tensor> starts;
  const DType sums = own.k.dtype == DType::f64 ? DType::f64 : DType::f32;
  const bool of_keys = own.dk || own.dv;
  agree_on(state.communicator, state.compares(state.has_compared_backward), [&] {
    state.check(own.q, own.k, own.v);
    if (own.dk) check_gradient("dk", *own.dk, own.k);
    if (own.dv) check_gradient("dv", *own.dv, own.v);
    rows = context::RowsOfKeys(own.k, own.v, state.route, state.memory.rows, state.memory);
    local.k = rows.keys();
    local.v = rows.values();
    if (of_keys) {
      gradients = context::RowsOfKeys(own.k, own.v, state.route, state.memory.gradients, state.memory, sums);
      local.dk = gradients.keys();
      local.dv = gradients.values();
    }
    options = state.options_of(own.q.shape[0], starts);
    cached_plan(local, options);
    return base::hash_combine(state.word, hash_of(fmt::format("backward {} {} {} {}", shape_text(own.q),
                                                              shape_text(own.k), shape_text(own.v), of_keys)));
  });
  rows.bring(own.k, own.v, state.communicator, options.stream);
  attention_backward_into(local, options);
  if (of_keys) gradients.give_back(own.dk, own.dv, state.communicator, options.stream);
}

}  // namespace heddle
