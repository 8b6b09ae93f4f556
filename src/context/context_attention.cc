#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "base/hash.h"
#include "context/rows_of_keys.h"
#include "expr/mod_arguments.h"
#include "expr/node.h"
#include "heddle/context_parallel.h"
#include "heddle/error.h"

namespace heddle {
namespace {

using mods::refuse;

constexpr const char *kQueries = "context_queries", *kKeys = "context_keys";

void refuse_options(const AttentionOptions& options) {
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
  if (options.backend != BackendChoice::automatic && options.backend != BackendChoice::cpu) {
    refuse(fmt::format("backend is {}; cpu and automatic are accepted by ContextAttention", name(options.backend)));
  }
  for (const char* name : {kQueries, kKeys}) {
    if (options.bindings.captures.contains(name)) {
      refuse(fmt::format("a capture is called '{}', which ContextAttention adds; other names are accepted", name));
    }
  }
}

/// Positions as a capture.
Tensor capture_of(std::span<const std::int64_t> positions) {
  Tensor capture = Tensor::empty(DType::i32, {std::ssize(positions)});
  std::ranges::transform(positions, static_cast<std::int32_t*>(capture.data()),
                         [](std::int64_t position) { return static_cast<std::int32_t>(position); });
  return capture;
}

/// A mod of positions in the whole sequence over this rank's rows. The clips say how far positions go.
Expr over_rows(const Expr& mod, std::int64_t q_len, std::int64_t kv_len) {
  if (mod.empty()) return mod;
  const Expr q_idx = clip(Capture(kQueries, DType::i32, 1)(leaf::q_idx()), 0, q_len - 1),
             kv_idx = clip(Capture(kKeys, DType::i32, 1)(leaf::kv_idx()), 0, kv_len - 1);
  return expr::rewrite(mod, [&](const expr::Node& node, std::span<const Expr> operands) {
    if (node.op == expr::Op::leaf && node.leaf() == expr::Leaf::q_idx) return q_idx;
    if (node.op == expr::Op::leaf && node.leaf() == expr::Leaf::kv_idx) return kv_idx;
    return expr::with_operands(node, operands);
  });
}

/// Which positions a mod reads.
expr::LeafSet leaves_of(const AttentionOptions& options) {
  expr::LeafSet leaves;
  for (const Expr* mod : {&options.score_mod, &options.mask_mod, &options.weight_mod}) {
    if (!mod->empty()) leaves = leaves | mod->node()->uses;
  }
  return leaves;
}

std::uint64_t hash_of(std::string_view text) { return base::hash_bytes(text.data(), text.size()); }

std::string text_of(const Expr& mod) { return mod.empty() ? std::string() : print(mod); }

/// All but the rows of a tensor, [B, H, rows, D], that ranks have in common.
std::string shape_text(const ConstTensorView& view) {
  if (view.rank() != 4) return "?";
  return fmt::format("{}[{}, {}, {}]", name(view.dtype), view.shape[0], view.shape[1], view.shape[3]);
}

void check_rows(std::string_view name, const ConstTensorView& view, std::int64_t rows) {
  if (view.device.kind != DeviceKind::cpu) refuse(fmt::format("{} is on a GPU; the CPU is accepted", name));
  if (view.rank() != 4 || view.shape[2] != rows) {
    refuse(fmt::format("{} has shape {}; {} rows, which this rank holds, are accepted", name, to_string(view.shape),
                       rows));
  }
}

void check_gradient(std::string_view name, const ConstTensorView& gradient, const ConstTensorView& of) {
  check_rows(name, gradient, of.shape[2]);
  if (gradient.shape == of.shape && is_floating(gradient.dtype) && gradient.strides[3] == 1) return;
  refuse(fmt::format("{} is {} {} with a last stride of {}; a floating dtype, {} and 1 are accepted", name,
                     heddle::name(gradient.dtype), to_string(gradient.shape), gradient.strides[3],
                     to_string(of.shape)));
}

/// Prepares a call on this rank and compares it with the others': `prepare` returns the number that all must have in
/// common.
template <class Prepare>
void agree_on(Communicator& communicator, Prepare&& prepare) {
  constexpr std::uint64_t kError = 0;
  std::uint64_t number = kError;
  std::exception_ptr error;
  try {
    number = prepare() | 1;
  } catch (...) {
    error = std::current_exception();
  }
  const bool all = communicator.agree(number);
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
                                   const AttentionOptions& options, Communicator& communicator)
    : communicator_(communicator), options_(options) {
  agree_on(communicator, [&] {
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
    refuse_options(options);
    if (mask.is_from_lists()) refuse("the mask is of lists; one that is built from a mask_mod is accepted");
    exchange_ = ExchangePlan::build(partition.queries, partition.keys, mask);
    queries_ = partition.queries.positions(rank);
    keys_ = partition.keys.positions(rank);
    own_keys_ = std::ssize(keys_);
    const std::vector<std::int64_t> received = exchange_.received_positions(rank);
    keys_.insert(keys_.end(), received.begin(), received.end());
    sent_ = exchange_.sent_rows(rank, partition.keys);
    query_positions_ = capture_of(queries_);
    key_positions_ = capture_of(keys_);
    // Ranks have the mods in common as they were given, not over their rows.
    word_ = base::hash_combine(partition.queries.hash(), partition.keys.hash());
    word_ = base::hash_combine(word_, exchange_.hash());
    word_ = base::hash_combine(
        word_, hash_of(fmt::format("{}; {}; {}; {}; {}; {}", text_of(mask.mask()), text_of(options.score_mod),
                                   text_of(options.weight_mod), options.scale.value_or(0),
                                   static_cast<int>(options.normalizer), options.sinks.has_value())));
    options_.mask_mod = mask.mask();
    const expr::LeafSet read = leaves_of(options_);
    const std::int64_t q_len = partition.queries.length, kv_len = partition.keys.length;
    for (Expr* mod : {&options_.score_mod, &options_.mask_mod, &options_.weight_mod}) {
      *mod = over_rows(*mod, q_len, kv_len);
    }
    if (read.has(expr::Leaf::q_idx)) options_.bindings.captures[kQueries] = query_positions_;
    if (read.has(expr::Leaf::kv_idx)) options_.bindings.captures[kKeys] = key_positions_;
    options_.backend = BackendChoice::cpu;
    return word_;
  });
}

void ContextAttention::forward(const AttentionTensors& own) const {
  context::RowsOfKeys rows;
  AttentionTensors local = own;
  agree_on(communicator_, [&] {
    check(own.q, own.k, own.v);
    rows = context::RowsOfKeys(own.k, own.v, std::ssize(keys_));
    local.k = rows.keys();
    local.v = rows.values();
    cached_plan(local, options_);  // refuses what attention does
    return base::hash_combine(
        word_, hash_of(fmt::format("forward {} {} {}", shape_text(own.q), shape_text(own.k), shape_text(own.v))));
  });
  rows.bring(own.k, own.v, exchange_, sent_, communicator_);
  attention_into(local, options_);
}

void ContextAttention::backward(const BackwardTensors& own) const {
  context::RowsOfKeys rows, gradients;
  BackwardTensors local = own;
  const DType sums = own.k.dtype == DType::f64 ? DType::f64 : DType::f32;
  const bool of_keys = own.dk || own.dv;
  agree_on(communicator_, [&] {
    check(own.q, own.k, own.v);
    if (own.dk) check_gradient("dk", *own.dk, own.k);
    if (own.dv) check_gradient("dv", *own.dv, own.v);
    rows = context::RowsOfKeys(own.k, own.v, std::ssize(keys_));
    local.k = rows.keys();
    local.v = rows.values();
    if (of_keys) {
      gradients = context::RowsOfKeys(own.k, own.v, std::ssize(keys_), sums);
      local.dk = gradients.keys();
      local.dv = gradients.values();
    }
    cached_plan(local, options_);
    return base::hash_combine(word_, hash_of(fmt::format("backward {} {} {} {}", shape_text(own.q), shape_text(own.k),
                                                         shape_text(own.v), of_keys)));
  });
  rows.bring(own.k, own.v, exchange_, sent_, communicator_);
  attention_backward_into(local, options_);
  if (of_keys) gradients.give_back(own.dk, own.dv, exchange_, sent_, communicator_);
}

void ContextAttention::check(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v) const {
  check_rows("q", q, std::ssize(queries_));
  check_rows("k", k, own_keys_);
  check_rows("v", v, own_keys_);
  if (k.dtype != v.dtype || k.shape[0] != v.shape[0] || k.shape[1] != v.shape[1]) {
    refuse(fmt::format("k is {} {} and v {} {}; one dtype, batch and number of heads are accepted", name(k.dtype),
                       to_string(k.shape), name(v.dtype), to_string(v.shape)));
  }
}

}  // namespace heddle
