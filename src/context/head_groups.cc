#include "context/head_groups.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <type_traits>

#include "expr/mod_arguments.h"
#include "expr/node.h"
#include "heddle/context_parallel.h"

namespace heddle {

std::int64_t default_head_groups(std::int64_t kv_heads, std::int64_t exchanged_bytes, std::int64_t tiles, double flop,
                                 double own_share) {
  if (kv_heads < 1 || exchanged_bytes < 0 || tiles < 0 || !(flop >= 0)) {
    mods::refuse(
        fmt::format("kv_heads is {}, exchanged_bytes {}, tiles {} and flop {}; 1 and more, and for the others 0 and "
                    "more, are accepted",
                    kv_heads, exchanged_bytes, tiles, flop));
  }
  if (!(own_share >= 0 && own_share <= 1)) mods::refuse(fmt::format("own_share is {}; 0 to 1 is accepted", own_share));
  constexpr double kRate = 800e12, kLink = 258e9, kStart = 55e-6;
  // The end of a call loses the time of kTail tiles: 0.55 of a wave, from the times that the planner predicts for 1 to
  // 8 groups of causal masks.
  constexpr double kTail = 0.55 * 132;
  if (exchanged_bytes == 0 || tiles == 0) return 1;
  const double tail = kTail / static_cast<double>(tiles), own = own_share * flop / kRate,
               received = (1 - own_share) * flop / kRate;
  // Own keys beside the first exchange, then each attention beside the next one.
  const auto time_of = [&](std::int64_t groups) {
    const auto parts = static_cast<double>(groups);
    const double attention = received * (1 / parts + tail),
                 exchange = kStart + static_cast<double>(exchanged_bytes) / (kLink * parts);
    double begin = std::max(own * (1 + tail), exchange), arrived = exchange;
    for (std::int64_t group = 1; group < groups; ++group) {
      arrived += exchange;
      begin = std::max(begin + attention, arrived);
    }
    return begin + attention;
  };
  std::int64_t best = 1;
  for (std::int64_t groups = 2; groups <= kv_heads; ++groups) {
    if (kv_heads % groups == 0 && time_of(groups) < time_of(best)) best = groups;
  }
  return best;
}

namespace context {
namespace {

using mods::refuse;

/// Entries [first, first + count) of an axis.
template <class View>
View entries_of(View view, int axis, std::int64_t first, std::int64_t count) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, std::byte, const std::byte>;
  view.data = static_cast<Byte*>(view.data) + first * view.strides[axis] * size_of(view.dtype);
  view.shape[axis] = count;
  return view;
}

/// Cuts axis 1 of tensors to a group's heads.
struct Cut {
  const HeadGroup& group;
  std::int64_t heads, kv_heads;  // of the call

  template <class View>
  void operator()(std::string_view name, View& view, bool of_keys = false) const {
    const std::int64_t all = of_keys ? kv_heads : heads;
    if (view.rank() < 2 || view.shape[1] != all) {
      refuse(fmt::format("{} has shape {}; {} heads on axis 1, as {} has, are accepted", name, to_string(view.shape),
                         all, of_keys ? "k" : "q"));
    }
    view =
        of_keys ? entries_of(view, 1, group.kv_first, group.kv_count) : entries_of(view, 1, group.first, group.count);
  }
  template <class View>
  void operator()(std::string_view name, std::optional<View>& view, bool of_keys = false) const {
    if (view) (*this)(name, *view, of_keys);
  }
};

/// Cuts a tensor [heads].
template <class View>
void cut_entries(const char* name, std::optional<View>& view, const HeadGroup& group, std::int64_t heads) {
  if (!view) return;
  if (view->rank() != 1 || view->shape[0] != heads) {
    refuse(fmt::format("{} has shape {}; [{}] is accepted", name, to_string(view->shape), heads));
  }
  view = entries_of(*view, 0, group.first, group.count);
}

/// Cuts a tensor [B, heads], or [B, 1] for all of them.
void cut_descale(const char* name, std::optional<ConstTensorView>& view, std::int64_t first, std::int64_t count,
                 std::int64_t heads) {
  if (!view || (view->rank() == 2 && view->shape[1] == 1)) return;
  if (view->rank() != 2 || view->shape[1] != heads) {
    refuse(fmt::format("{} has shape {}; [B, {}] and [B, 1] are accepted", name, to_string(view->shape), heads));
  }
  view = entries_of(*view, 1, first, count);
}

/// Cuts what a forward and a backward both have.
template <class Tensors>
Tensors cut_of_forward(Tensors part, const Cut& cut) {
  cut("q", part.q);
  cut("k", part.k, true);
  cut("v", part.v, true);
  cut("o", part.o);
  cut("lse", part.lse);
  cut("lse_rest", part.lse_rest);
  return part;
}

}  // namespace

HeadGroup head_group(std::int64_t i, std::int64_t groups, std::int64_t heads, std::int64_t kv_heads) {
  const std::int64_t count = heads / groups, kv_count = kv_heads / groups;
  return {i * count, count, i * kv_count, kv_count};
}

AttentionTensors heads_of(const AttentionTensors& tensors, const HeadGroup& group) {
  const Cut cut{group, tensors.q.shape[1], tensors.k.shape[1]};
  AttentionTensors part = cut_of_forward(tensors, cut);
  cut("max_scores", part.max_scores);
  return part;
}

BackwardTensors heads_of(const BackwardTensors& tensors, const HeadGroup& group) {
  const Cut cut{group, tensors.q.shape[1], tensors.k.shape[1]};
  BackwardTensors part = cut_of_forward(tensors, cut);
  cut("d_o", part.d_o);
  cut("d_lse", part.d_lse);
  cut("dq", part.dq);
  cut("dk", part.dk, true);
  cut("dv", part.dv, true);
  cut_entries("d_sinks", part.d_sinks, group, tensors.q.shape[1]);
  return part;
}

ConstTensorView kv_heads_of(ConstTensorView view, const HeadGroup& group) {
  return entries_of(view, 1, group.kv_first, group.kv_count);
}
TensorView kv_heads_of(TensorView view, const HeadGroup& group) {
  return entries_of(view, 1, group.kv_first, group.kv_count);
}

void over_heads(AttentionOptions& options) {
  bool reads_heads = false;
  for (Expr* mod : {&options.score_mod, &options.mask_mod, &options.weight_mod}) {
    if (mod->empty() || !mod->node()->uses.has(expr::Leaf::h)) continue;
    reads_heads = true;
    *mod = expr::rewrite(*mod, [](const expr::Node& node, std::span<const Expr> operands) {
      if (node.op == expr::Op::leaf && node.leaf() == expr::Leaf::h)
        return leaf::h() + param(kFirstHead, ExprType::i32);
      return expr::with_operands(node, operands);
    });
  }
  if (reads_heads) options.bindings.params[kFirstHead] = std::int32_t{0};
}

AttentionOptions options_of(const AttentionOptions& options, const HeadGroup& group, std::int64_t i,
                            std::int64_t groups) {
  AttentionOptions part = options;
  const std::int64_t heads = groups * group.count, kv_heads = groups * group.kv_count;
  cut_entries("sinks", part.sinks, group, heads);
  cut_descale("q_descale", part.q_descale, group.first, group.count, heads);
  cut_descale("k_descale", part.k_descale, group.kv_first, group.kv_count, kv_heads);
  cut_descale("v_descale", part.v_descale, group.kv_first, group.kv_count, kv_heads);
  const auto first = part.bindings.params.find(kFirstHead);
  if (first != part.bindings.params.end()) first->second = static_cast<std::int32_t>(group.first);
  if (part.progress) {
    part.progress = [all = options.progress, i, groups](double done) {
      all((static_cast<double>(i) + done) / static_cast<double>(groups));
    };
  }
  return part;
}

}  // namespace context
}  // namespace heddle
