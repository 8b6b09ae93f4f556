#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "context/context_checks.h"
#include "context/context_state.h"
#include "context/head_groups.h"
#include "context/query_gradients.h"
#include "expr/mod_arguments.h"
#include "heddle/error.h"

namespace heddle {
namespace {

using context::hash_of;
using context::shape_text;
using mods::refuse;

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

}  // namespace

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

const ExchangePlan& ContextAttention::exchange_plan() const { return state_->latest->exchange; }

void ContextAttention::set_head_groups(std::int64_t groups) {
  if (groups < 0) refuse(fmt::format("groups is {}; 0 and more are accepted", groups));
  state_->head_groups = groups;
}

namespace {

using context::CallMemory;
using context::HeadGroup;
using context::RowsOfKeys;

constexpr std::int64_t kAhead = 2;  // groups whose keys are on their way beside an attention
constexpr std::int64_t kKeyTurns = std::tuple_size_v<decltype(CallMemory::rows)>,
                       kGradientTurns = std::tuple_size_v<decltype(CallMemory::gradients)>;
static_assert(kKeyTurns == kAhead + 1 && kKeyTurns + kGradientTurns == context::Lane::kMarks);

/// Memory of the groups that are in it at a time. `tensors`: of one group.
template <class Tensors>
std::vector<RowsOfKeys> rows_in_turns(const Tensors& tensors, std::int64_t groups, const context::Route& route,
                                      std::span<context::KeptMemory> turns, CallMemory& memory, DType dtype) {
  std::vector<RowsOfKeys> rows;
  for (std::int64_t turn = 0; turn < std::min(groups, std::ssize(turns)); ++turn) {
    rows.emplace_back(tensors.k, tensors.v, route, turns[static_cast<std::size_t>(turn)], memory, dtype);
  }
  return rows;
}

/// The tensors of each group, as the caller has them.
template <class Tensors>
std::vector<Tensors> in_groups(const Tensors& own, std::int64_t groups) {
  if (groups == 1) return {own};
  std::vector<Tensors> parts;
  for (std::int64_t i = 0; i < groups; ++i) {
    parts.push_back(context::heads_of(own, context::head_group(i, groups, own.q.shape[1], own.k.shape[1])));
  }
  return parts;
}

template <class T>
T& turn_of(std::vector<T>& turns, std::size_t group) {
  return turns[group % turns.size()];
}

/// Keys of groups on their way: each is started kAhead groups before its attention.
template <class Tensors>
class KeysAhead {
 public:
  /// `stream`: attention's, which copies own rows.
  KeysAhead(context::Lane& lane, const std::vector<Tensors>& parts, std::vector<RowsOfKeys>& rows,
            Communicator& communicator, void* stream)
      : lane_(lane), parts_(parts), rows_(rows), communicator_(communicator), stream_(stream) {
    for (std::int64_t i = 0; i < kAhead; ++i) start();
  }
  /// The rows of the next group are there, for what follows.
  void next() {
    start();
    lane_.wait_for(mark(arrived_++));
  }

 private:
  static int mark(std::size_t group) { return static_cast<int>(group % kKeyTurns); }
  void start() {
    if (started_ == parts_.size()) return;
    const std::size_t group = started_++;
    const Tensors& part = parts_[group];
    RowsOfKeys& rows = turn_of(rows_, group);
    if (rows.leaves_from_memory()) rows.copy_own(part.k, part.v, stream_);
    // It may outlive this object, by an error, but not the call's parts.
    lane_.start(mark(group), [&rows, &part, &communicator = communicator_](void* stream) {
      rows.bring(part.k, part.v, communicator, stream);
    });
    if (!rows.leaves_from_memory()) rows.copy_own(part.k, part.v, stream_);
  }

  context::Lane& lane_;
  const std::vector<Tensors>& parts_;
  std::vector<RowsOfKeys>& rows_;
  Communicator& communicator_;
  void* stream_;
  std::size_t started_ = 0, arrived_ = 0;
};

}  // namespace

void ContextAttention::forward(const AttentionTensors& own) const {
  State& state = *state_;
  std::vector<AttentionTensors> parts, local;
  std::vector<RowsOfKeys> rows;
  std::vector<AttentionOptions> options;
  std::vector<Tensor> starts;
  agree_on(state.communicator, state.compares(state.has_compared_forward), [&] {
    state.check(own.q, own.k, own.v);
    const context::Way& way = state.way_of(own.k, own.v);
    const std::int64_t groups = state.groups_of(way, own.q, own.k, own.v, false);
    parts = in_groups(own, groups);
    rows = rows_in_turns(parts[0], groups, way.route, state.memory.rows, state.memory, own.k.dtype);
    options = state.options_of(way, own.q, own.k, groups, starts);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      local.push_back(parts[i]);
      local[i].k = turn_of(rows, i).keys();
      local[i].v = turn_of(rows, i).values();
      cached_plan(local[i], options[i]);  // refuses what attention does
    }
    state.make_side(groups);
    return base::hash_combine(state.word, hash_of(fmt::format("forward {} {} {} {}", shape_text(own.q),
                                                              shape_text(own.k), shape_text(own.v), groups)));
  });
  const std::unique_ptr<context::Lane> lane = state.lane(std::ssize(parts));
  KeysAhead keys(*lane, parts, rows, state.communicator, state.given.stream);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    keys.next();
    attention_into(local[i], options[i]);
  }
}

void ContextAttention::backward(const BackwardTensors& own, const AddedGradients& added) const {
  State& state = *state_;
  std::vector<BackwardTensors> parts, local;
  std::vector<RowsOfKeys> rows, gradients;
  std::optional<context::QueryGradients> d_q;  // of each group in turn
  std::vector<AttentionOptions> options;
  std::vector<Tensor> starts;
  const DType sums = own.k.dtype == DType::f64 ? DType::f64 : DType::f32;
  const bool of_keys = own.dk || own.dv;
  agree_on(state.communicator, state.compares(state.has_compared_backward), [&] {
    state.check(own.q, own.k, own.v);
    if (own.dk) context::check_gradient("dk", *own.dk, own.k);
    if (own.dv) context::check_gradient("dv", *own.dv, own.v);
    if (added.q) context::check_added("dq", own.dq);
    if (added.k) context::check_added("dk", own.dk);
    if (added.v) context::check_added("dv", own.dv);
    if (added.q) context::check_gradient("dq", *own.dq, own.q);
    // Their sums go over all heads.
    const bool at_once = !own.d_captures.empty() || !own.d_params.empty();
    const context::Way& way = state.way_of(own.k, own.v);
    const std::int64_t groups = state.groups_of(way, own.q, own.k, own.v, at_once);
    parts = in_groups(own, groups);
    rows = rows_in_turns(parts[0], groups, way.route, state.memory.rows, state.memory, own.k.dtype);
    if (of_keys) {
      gradients = rows_in_turns(parts[0], groups, way.route, state.memory.gradients, state.memory, sums);
    }
    if (added.q) d_q.emplace(parts[0].q, state.memory.queries);
    options = state.options_of(way, own.q, own.k, groups, starts);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      local.push_back(parts[i]);
      local[i].k = turn_of(rows, i).keys();
      local[i].v = turn_of(rows, i).values();
      if (d_q) local[i].dq = d_q->view();
      if (of_keys) {
        local[i].dk = turn_of(gradients, i).keys();
        local[i].dv = turn_of(gradients, i).values();
      }
      cached_plan(local[i], options[i]);
    }
    state.make_side(groups);
    return base::hash_combine(state.word, hash_of(fmt::format("backward {} {} {} {} {}", shape_text(own.q),
                                                              shape_text(own.k), shape_text(own.v), of_keys, groups)));
  });
  const std::unique_ptr<context::Lane> lane = state.lane(std::ssize(parts));
  KeysAhead keys(*lane, parts, rows, state.communicator, state.given.stream);
  const auto mark = [](std::size_t group) { return static_cast<int>(kKeyTurns + group % kGradientTurns); };
  for (std::size_t i = 0; i < parts.size(); ++i) {
    keys.next();
    // The memory of this turn has left.
    if (of_keys && i >= gradients.size()) lane->wait_for(mark(i));
    attention_backward_into(local[i], options[i]);
    if (d_q) d_q->add_to(*parts[i].dq, state.given.stream);
    if (!of_keys) continue;
    lane->start(mark(i), [&, i](void* stream) {
      turn_of(gradients, i).give_back(parts[i].dk, parts[i].dv, added, state.communicator, stream);
    });
  }
  for (std::size_t turn = 0; turn < gradients.size(); ++turn) lane->wait_for(mark(turn));
}

}  // namespace heddle
