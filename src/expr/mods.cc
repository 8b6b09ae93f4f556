#include "heddle/mods.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "expr/mod_arguments.h"
#include "heddle/error.h"

namespace heddle::mods {
namespace {

using leaf::b;
using leaf::h;
using leaf::kv_idx;
using leaf::q_idx;
using leaf::score;

// Arguments that size a tensor have a bound, so that a wrong number does not fill the memory.
constexpr std::int64_t kMostSlopes = 1 << 16;
constexpr std::int64_t kMostStarts = 1 << 28;

/// The elements of a list of i32 or i64.
std::vector<std::int64_t> integers_of(std::string_view argument, const ConstTensorView& view) {
  const bool integers = view.dtype == DType::i32 || view.dtype == DType::i64;
  if (!integers || view.rank() != 1 || view.device.kind != DeviceKind::cpu) {
    refuse(fmt::format("{} must be a list of i32 or i64 on the CPU, but is {} {}{}", argument, name(view.dtype),
                       to_string(view.shape), view.device.kind == DeviceKind::cpu ? "" : " on another device"));
  }
  std::vector<std::int64_t> values(static_cast<std::size_t>(view.shape[0]));
  for (std::size_t i = 0; i < values.size(); ++i) {
    // Larger ones are refused by what follows, rounded or not.
    values[i] = static_cast<std::int64_t>(get_element(view, {static_cast<std::int64_t>(i)}));
  }
  return values;
}

Expr both_documents_agree(std::string_view argument, const Capture& capture) {
  require_integers(argument, capture, 1, 2);
  return capture.rank() == 1 ? capture(q_idx()) == capture(kv_idx()) : capture(b(), q_idx()) == capture(b(), kv_idx());
}

/// The least distance that T5's formula puts n buckets past the exact ones, of which the logarithm has `buckets`.
std::int64_t t5_border(std::int64_t n, std::int64_t buckets, std::int64_t exact, std::int64_t max_distance) {
  const auto bucket_of = [&](std::int64_t distance) {
    const double position = std::log(static_cast<double>(distance) / static_cast<double>(exact)) /
                            std::log(static_cast<double>(max_distance) / static_cast<double>(exact));
    return static_cast<std::int64_t>(position * static_cast<double>(buckets));
  };
  std::int64_t border = exact;
  std::int64_t beyond = max_distance;
  while (border < beyond) {
    const std::int64_t middle = border + (beyond - border) / 2;
    if (bucket_of(middle) < n) {
      border = middle + 1;
    } else {
      beyond = middle;
    }
  }
  return border;
}

}  // namespace

Expr causal() { return kv_idx() <= q_idx(); }

Expr causal_lower_right() {
  return kv_idx() - leaf::kv_start() - leaf::kv_len() <= q_idx() - leaf::q_start() - leaf::q_len();
}

Expr sliding_window(std::int64_t before, std::int64_t after) {
  const Expr back = literal("before of sliding_window", before, 0);
  const Expr ahead = literal("after of sliding_window", after, 0);
  return q_idx() - kv_idx() <= back && kv_idx() - q_idx() <= ahead;
}

Expr dilated_window(std::int64_t before, std::int64_t step) {
  const Expr every = literal("step of dilated_window", step, 1);
  literal("before of dilated_window", before, 0);
  return sliding_window(before) && (q_idx() - kv_idx()) % every == 0;
}

Expr prefix_lm(std::int64_t prefix) { return prefix_lm(literal("prefix of prefix_lm", prefix, 0)); }

Expr prefix_lm(const Expr& prefix) {
  require_i32("prefix of prefix_lm", prefix);
  return causal() || kv_idx() < prefix;
}

Expr global_and_window(std::int64_t global, std::int64_t window) {
  const Expr first = literal("global of global_and_window", global, 0);
  literal("window of global_and_window", window, 0);
  return q_idx() < first || kv_idx() < first || sliding_window(window, window);
}

Expr sinks_and_window(std::int64_t sinks, std::int64_t before) {
  const Expr first = literal("sinks of sinks_and_window", sinks, 0);
  const Expr back = literal("before of sinks_and_window", before, 0);
  return causal() && (q_idx() - kv_idx() <= back || kv_idx() < first);
}

Expr windows_by_head(const Capture& before) {
  require_integers("before of windows_by_head", before, 1, 1);
  return causal() && q_idx() - kv_idx() <= before(h());
}

Expr causal_chunks(std::int64_t chunk) {
  const Expr size = literal("chunk of causal_chunks", chunk, 1);
  return causal() && floor_div(q_idx(), size) == floor_div(kv_idx(), size);
}

Expr documents(const Capture& ids) { return both_documents_agree("ids of documents", ids); }

Expr documents_from_starts(const Capture& start_of) {
  return both_documents_agree("start_of of documents_from_starts", start_of);
}

Tensor document_starts(const ConstTensorView& offsets) {
  const std::vector<std::int64_t> ends = integers_of("offsets of document_starts", offsets);
  if (ends.empty() || ends.front() != 0) refuse("offsets of document_starts must begin with 0");
  if (ends.back() > kMostStarts) {
    refuse(fmt::format("offsets of document_starts must end at {} or before, but end at {}", kMostStarts, ends.back()));
  }
  for (std::size_t i = 1; i < ends.size(); ++i) {
    if (ends[i] >= ends[i - 1]) continue;
    refuse(fmt::format("offsets of document_starts must not decrease, but element {} is {} after {}", i, ends[i],
                       ends[i - 1]));
  }
  Tensor starts = Tensor::empty(DType::i32, {ends.back()});
  auto* start_of = static_cast<std::int32_t*>(starts.data());
  for (std::size_t i = 1; i < ends.size(); ++i) {
    std::fill(start_of + ends[i - 1], start_of + ends[i], static_cast<std::int32_t>(ends[i - 1]));
  }
  return starts;
}

Expr tree(const Capture& enter, const Capture& last, const Expr& first) {
  require_integers("enter of tree", enter, 1, 1);
  require_integers("last of tree", last, 1, 1);
  require_i32("first of tree", first);
  // Outside the draft a query was entered before everything, and a key has left before even that.
  const Expr query_enter = enter.at({q_idx() - first}, -1);
  const Expr key_enter = enter.at({kv_idx() - first}, -1);
  const Expr key_last = last.at({kv_idx() - first}, -2);
  return kv_idx() < first || (key_enter <= query_enter && query_enter <= key_last);
}

TreeIntervals tree_intervals(const ConstTensorView& parents) {
  const std::vector<std::int64_t> parent = integers_of("parents of tree_intervals", parents);
  const auto count = static_cast<std::int64_t>(parent.size());
  std::vector<std::vector<std::int64_t>> children(parent.size() + 1);  // the last: roots
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t above = parent[static_cast<std::size_t>(i)];
    if (above < -1 || above >= count) {
      refuse(fmt::format("parents of tree_intervals must be -1 to {}, but element {} is {}", count - 1, i, above));
    }
    children[static_cast<std::size_t>(above < 0 ? count : above)].push_back(i);
  }
  TreeIntervals intervals{Tensor::empty(DType::i32, {count}), Tensor::empty(DType::i32, {count})};
  auto* enter = static_cast<std::int32_t*>(intervals.enter.data());
  auto* last = static_cast<std::int32_t*>(intervals.last.data());
  std::fill(enter, enter + count, -1);
  std::int32_t time = 0;
  std::vector<std::int64_t> path = {count};
  while (!path.empty()) {
    const std::int64_t token = path.back();
    std::vector<std::int64_t>& below = children[static_cast<std::size_t>(token)];
    if (token < count && enter[token] < 0) enter[token] = time++;
    if (below.empty()) {
      if (token < count) last[token] = time - 1;
      path.pop_back();
    } else {
      path.push_back(below.back());
      below.pop_back();
    }
  }
  const auto* unreached = std::find(enter, enter + count, -1);
  if (unreached != enter + count) {
    refuse(
        fmt::format("parents of tree_intervals must not form a cycle, but element {} is its own ancestor, or below one",
                    unreached - enter));
  }
  return intervals;
}

Expr block_diffusion(std::int64_t block) {
  const Expr size = literal("block of block_diffusion", block, 1);
  return floor_div(kv_idx(), size) <= floor_div(q_idx(), size);
}

Expr block_diffusion_training(std::int64_t length, std::int64_t block) {
  const Expr half = literal("length of block_diffusion_training", length, 1, kIntMax / 2);
  const Expr size = literal("block of block_diffusion_training", block, 1);
  const Expr query = floor_div(q_idx() % half, size), key = floor_div(kv_idx() % half, size);
  return where(kv_idx() < half, q_idx() < half && query == key, where(q_idx() < half, query > key, query >= key));
}

Expr alibi(const Capture& slopes) {
  require_reals("slopes of alibi", slopes, 1);
  return score() + slopes(h()) * (kv_idx() - q_idx());
}

Tensor alibi_slopes(std::int64_t heads) {
  literal("heads of alibi_slopes", heads, 1, kMostSlopes);
  std::int64_t power = 1;
  while (power * 2 <= heads) power *= 2;
  Tensor slopes = Tensor::empty(DType::f32, {heads});
  auto* slope = static_cast<float*>(slopes.data());
  for (std::int64_t i = 0; i < heads; ++i) {
    // Heads past the power of two take every other slope of the next one.
    const double exponent =
        i < power ? -8.0 * static_cast<double>(i + 1) : -4.0 * static_cast<double>(2 * (i - power) + 1);
    slope[i] = static_cast<float>(std::exp2(exponent / static_cast<double>(power)));
  }
  return slopes;
}

Expr relative_bias(const Capture& table, std::int64_t max_distance) {
  require_reals("table of relative_bias", table, 2);
  const Expr largest = literal("max_distance of relative_bias", max_distance, 0, kIntMax / 2);
  return score() + table(h(), clip(kv_idx() - q_idx(), -largest, largest) + largest);
}

Expr t5_bias(const Capture& table, std::int64_t buckets, std::int64_t max_distance, bool bidirectional) {
  require_reals("table of t5_bias", table, 2);
  literal("buckets of t5_bias", buckets, bidirectional ? 4 : 2);
  const std::int64_t each_way = bidirectional ? buckets / 2 : buckets;
  const std::int64_t exact = each_way / 2;
  literal("max_distance of t5_bias", max_distance, exact + 1);
  const Expr distance = bidirectional ? abs(kv_idx() - q_idx()) : max(q_idx() - kv_idx(), 0);
  // The logarithm is taken here, once a border, and not on the backends: their errors would move distances that lie on
  // a border to either side.
  Expr bucket = min(distance, exact);
  for (std::int64_t n = 1; n < each_way - exact; ++n) {
    bucket = bucket + to_i32(distance >= t5_border(n, each_way - exact, exact, max_distance));
  }
  if (bidirectional) bucket = bucket + where(kv_idx() > q_idx(), each_way, 0);
  return score() + table(bucket, h());
}

Expr graph_bias(const Capture& distances, const Capture& table, std::int64_t largest) {
  require_integers("distances of graph_bias", distances, 2, 3);
  require_reals("table of graph_bias", table, 2);
  const Expr last = literal("largest of graph_bias", largest, 0);
  const Expr distance = distances.rank() == 2 ? distances(q_idx(), kv_idx()) : distances(b(), q_idx(), kv_idx());
  return score() + table(clip(distance, 0, last), h());
}

Expr softcap(double cap) {
  if (!(cap > 0) || std::isinf(cap)) refuse(fmt::format("cap of softcap must be positive and finite, but is {}", cap));
  return tanh(score() / cap) * cap;
}

Expr dropout(double p, const Expr& seed) {
  if (!(p >= 0 && p < 1)) refuse(fmt::format("p of dropout must be at least 0 and below 1, but is {}", p));
  require_i32("seed of dropout", seed);
  return where(random_uniform(seed, b(), h(), q_idx(), kv_idx()) < p, 0.0, 1.0 / (1.0 - p));
}

}  // namespace heddle::mods
