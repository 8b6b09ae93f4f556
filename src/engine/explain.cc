#include "engine/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/state.h"
#include "expr/simplify.h"
#include "families/table.h"

namespace heddle {
namespace engine {
namespace {

using base::JsonTree;

/// Null where the host knows them.
JsonTree lengths_json(const problem::AttentionProblem& problem) {
  if (!problem.device_lengths) return nullptr;
  const Sequence most = problem.sequences.empty() ? Sequence{} : problem.sequences.front();
  return JsonTree::object()
      .add("on", problem::name(problem.device))
      .add("max_q_len", most.q_len)
      .add("max_kv_len", most.kv_len)
      .add("q_start", problem.device_starts)
      .add("kv_start", problem.device_kv_starts);
}

JsonTree problem_json(const problem::AttentionProblem& problem) {
  return JsonTree::object()
      .add("summary", to_string(problem))
      .add("device", problem::name(problem.device))
      .add("pass", problem::name(problem.pass))
      .add("normalizer", problem::name(problem.normalizer))
      .add("sinks", problem.with_sinks)
      .add("scale", problem.scale)
      .add("batch", problem.batch)
      .add("packed", problem.packed)
      .add("lengths", lengths_json(problem))
      .add("page_rows", problem.page_rows)
      .add("listed_pages", problem.listed_pages)
      .add("q_heads", problem.q_heads)
      .add("kv_heads", problem.kv_heads)
      .add("q_rows", problem.q_rows)
      .add("kv_rows", problem.kv_rows)
      .add("qk_dim", problem.qk_dim)
      .add("q_rest_dim", problem.q_rest_dim)
      .add("k_rest_dim", problem.k_rest_dim)
      .add("v_dim", problem.v_dim)
      .add("q_dtype", name(problem.q_dtype))
      .add("k_dtype", name(problem.k_dtype))
      .add("v_dtype", name(problem.v_dtype))
      .add("o_dtype", name(problem.o_dtype))
      .add("lse", problem.with_lse)
      .add("max_scores", problem.with_max_scores)
      .add("lse_rest", problem.with_lse_rest);
}

/// `form`: the form that the plan gives the mod, and why; empty if the mod is taken as it is.
JsonTree mod_json(const Expr& mod, const std::string& form, expr::Precision precision) {
  if (mod.empty()) return nullptr;
  return JsonTree::object()
      .add("given", print(mod))
      .add("simplified", print(expr::simplify(mod, precision)))
      .add("form", form.empty() ? JsonTree() : JsonTree(form));
}

JsonTree mask_json(const BlockMask& mask, const std::string& found) {
  const BlockMask::Statistics statistics = mask.statistics();
  return JsonTree::object()
      .add("from_lists", mask.is_from_lists())
      .add("found", found.empty() ? JsonTree() : JsonTree(found))
      .add("block", JsonTree::array_of(mask.block().q, mask.block().kv))
      .add("full", statistics.full)
      .add("partial", statistics.partial)
      .add("empty", statistics.empty)
      .add("density", statistics.density())
      .add("runs", statistics.runs)
      .add("bytes", statistics.bytes)
      .add("evaluated_tiles", statistics.evaluated_tiles);
}

JsonTree config_json(const std::vector<plan::Setting>& settings) {
  JsonTree json = JsonTree::object();
  for (const plan::Setting& setting : settings) {
    std::visit([&](const auto& value) { json[setting.name] = value; }, setting.value);
  }
  return json;
}

JsonTree plan_json(const plan::Plan& plan) {
  JsonTree json = JsonTree::object()
                      .add("family", plan.family->name)
                      .add("backend", name(plan.family->backend))
                      .add("tile", JsonTree::array_of(plan.tile.q, plan.tile.kv));
  if (plan.multiprocessors > 0) {
    json["device"] = plan.device;
    json["grid"] = plan.grid;
  } else {
    json["threads"] = plan.threads;
  }
  json["workspace_bytes"] = plan.workspace_bytes;
  if (plan.family->settings != nullptr) json["config"] = config_json(plan.family->settings(plan));
  if (plan.packed_heads > 0) {
    json["packed_heads"] = plan.packed_heads;
    json["packed_queries"] = plan.packed_queries;
  }
  if (!plan.access.empty()) json["access"] = plan.access;
  if (!plan.gradients.empty()) json["gradients"] = plan.gradients;
  if (!plan.has_alternative)
    json["made_badly"] = "the compiler makes no planned kernel well; this one is right, but slow";
  if (!plan.untried.empty()) json["untried"] = plan.untried;
  return json;
}

JsonTree predicted_json(const std::optional<plan::Prediction>& predicted) {
  if (!predicted) return nullptr;
  JsonTree rates;  // the roof over what this plan may reach
  if (predicted->flops_per_second > 0 && predicted->bytes_per_second > 0) {
    rates = JsonTree::object()
                .add("flops_per_second", predicted->flops_per_second)
                .add("bytes_per_second", predicted->bytes_per_second);
  }
  return JsonTree::object()
      .add("seconds", predicted->seconds)
      .add("flops", predicted->flops)
      .add("bytes", predicted->bytes)
      .add("rates", rates);
}

JsonTree tuned_json(const plan::Plan& plan) {
  const JsonTree trouble = plan.tuning_trouble.empty() ? JsonTree() : JsonTree(plan.tuning_trouble);
  if (!plan.tuned)
    return trouble.is_null() ? trouble : JsonTree::object().add("measured", "no").add("trouble", trouble);
  const plan::Tuned& tuned = *plan.tuned;
  JsonTree kernels = JsonTree::array();
  for (const plan::Tuned::Time& time : tuned.times) {
    kernels.push_back(JsonTree::object().add("kernel", time.kernel).add("seconds", time.seconds));
  }
  return JsonTree::object()
      .add("measured", tuned.now ? "now" : "before")
      .add("kernel", tuned.chosen.kernel)
      .add("seconds", tuned.chosen.seconds)
      .add("planned", tuned.planned)
      .add("kernels", kernels)
      .add("trouble", trouble);
}

// Text. Stages begin in the first column, what belongs to them stands below their text. Keys are read by at(): a
// missing one is an exception, where operator[] would be an assertion.

constexpr int kColumn = 11;

std::string plain(const JsonTree& value) { return value.is_string() ? value.text() : value.dump(); }

class Text {
 public:
  void line(std::string_view stage, std::string_view text) { text_ += fmt::format("{:<{}}{}\n", stage, kColumn, text); }
  void below(std::string_view text) { line("", text); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// 1.23 and the largest unit that leaves at least 1.
std::string with_unit(double x, double step, const std::array<std::string_view, 5>& units) {
  std::size_t unit = 0;
  for (; x >= step && unit + 1 < units.size(); ++unit) x /= step;
  return fmt::format("{:.3g} {}", x, units[unit]);
}

constexpr std::array<std::string_view, 5> kFlopUnits = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"};

std::string time_text(double seconds) {
  if (seconds < 1e-3) return fmt::format("{:.3g} us", seconds * 1e6);
  return seconds < 1 ? fmt::format("{:.3g} ms", seconds * 1e3) : fmt::format("{:.3g} s", seconds);
}

void add_mod(Text& text, std::string_view stage, const JsonTree& mod, std::string_view absent) {
  if (mod.is_null()) return text.line(stage, absent);
  text.line(stage, plain(mod.at("given")));
  if (mod.at("simplified") != mod.at("given")) text.below("simplified: " + plain(mod.at("simplified")));
  if (!mod.at("form").is_null()) text.below(plain(mod.at("form")));
}

void add_mask(Text& text, const JsonTree& mask) {
  if (mask.is_null()) return;
  text.below(fmt::format(
      "{}blocks of {} x {}: {} full, {} partial, {} empty (density {:.4g}); {} runs in {} bytes; {} tiles evaluated",
      mask.at("from_lists").is_true() ? "given lists, " : "", plain(mask.at("block").at(0)),
      plain(mask.at("block").at(1)), plain(mask.at("full")), plain(mask.at("partial")), plain(mask.at("empty")),
      mask.at("density").number(), plain(mask.at("runs")), plain(mask.at("bytes")), plain(mask.at("evaluated_tiles"))));
  if (!mask.at("found").is_null()) text.below(fmt::format("rows found {}", plain(mask.at("found"))));
}

// "qk_dim 128, v_dim 128, warpgroups 2"
std::string listed(const JsonTree& object) {
  std::string text;
  for (const auto& [key, value] : object.members()) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", key, plain(value));
  }
  return text;
}

void add_plan(Text& text, const JsonTree& plan) {
  const bool gpu = plan.contains("grid");
  const std::string where =
      gpu ? fmt::format("{}:{}", plain(plan.at("backend")), plain(plan.at("device"))) : plain(plan.at("backend"));
  const std::string parallel = gpu ? plain(plan.at("grid")) + " CTAs" : plain(plan.at("threads")) + " threads";
  text.line("plan", fmt::format("{} on {}, tile {} queries x {} keys, {}, workspace {} bytes", plain(plan.at("family")),
                                where, plain(plan.at("tile").at(0)), plain(plan.at("tile").at(1)), parallel,
                                plain(plan.at("workspace_bytes"))));
  if (plan.contains("config")) text.below(listed(plan.at("config")));
  if (plan.contains("packed_heads")) {
    text.below(fmt::format("packs {} heads a tile, {} queries of each", plain(plan.at("packed_heads")),
                           plain(plan.at("packed_queries"))));
  }
  for (const char* list : {"access", "gradients"}) {
    if (!plan.contains(list)) continue;
    for (const JsonTree& sentence : plan.at(list).elements()) text.below(plain(sentence));
  }
  if (plan.contains("made_badly")) text.below(plain(plan.at("made_badly")));
  if (plan.contains("untried")) text.below(plain(plan.at("untried")));
}

void add_predicted(Text& text, const JsonTree& predicted) {
  if (predicted.is_null()) return;
  const double seconds = predicted.at("seconds").number(), flops = predicted.at("flops").number(),
               bytes = predicted.at("bytes").number();
  std::string rate;
  if (seconds > 0) {
    rate = fmt::format(": {}/s, {:.3g} GB/s", with_unit(flops / seconds, 1000, kFlopUnits), bytes / seconds * 1e-9);
  }
  text.line("predicted", fmt::format("{} for {} and {}{}", time_text(seconds), with_unit(flops, 1000, kFlopUnits),
                                     with_unit(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"}), rate));
}

void add_tuned(Text& text, const JsonTree& tuned) {
  if (tuned.is_null()) return;
  if (!tuned.at("trouble").is_null()) text.line("tuning", plain(tuned.at("trouble")));
  if (!tuned.contains("kernels")) return;
  const bool as_planned = tuned.at("kernel") == tuned.at("planned");
  text.line("tuned", fmt::format("{}, measured {}{}", time_text(tuned.at("seconds").number()),
                                 plain(tuned.at("measured")), as_planned ? "; the planner's first too" : ""));
  for (const JsonTree& other : tuned.at("kernels").elements()) {
    if (other.at("kernel") == tuned.at("kernel")) continue;
    text.below(fmt::format("{}{}: {}", plain(other.at("kernel")),
                           other.at("kernel") == tuned.at("planned") ? " (the planner's first)" : "",
                           time_text(other.at("seconds").number())));
  }
}

// A list's elements, or the lines of a text; blank ones go.
std::vector<std::string> lines_of(const JsonTree& value) {
  std::vector<std::string> lines;
  if (value.is_array()) {
    for (const JsonTree& line : value.elements()) lines.push_back(plain(line));
    return lines;
  }
  // No stream: one leaves out lines where memory is out.
  const std::string text = plain(value);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

void add_kernel(Text& text, const JsonTree& kernel) {
  if (kernel.is_null()) return text.line("kernel", "none prepared");
  text.line("kernel", plain(kernel.at("summary")));
  for (const auto& [key, value] : kernel.members()) {
    if (key == "summary" || key == "products") continue;  // the summary says both
    const std::vector<std::string> lines = lines_of(value);
    if (lines.size() == 1) {
      text.below(fmt::format("{}: {}", key, lines.front()));
    } else if (!lines.empty()) {
      text.below(key + ":");
      for (const std::string& line : lines) text.below(line);
    }
  }
}

}  // namespace

JsonTree explanation(const problem::AttentionProblem& problem, const BlockMask* block_mask,
                     const std::string& mask_found, const plan::Plan& plan, const JsonTree& kernel) {
  const expr::Precision precision = problem.precision;
  JsonTree mods = JsonTree::object()
                      .add("score", mod_json(problem.score_mod, plan.forms.score, precision))
                      .add("mask", mod_json(problem.mask_mod, plan.forms.mask, precision))
                      .add("weight", mod_json(problem.weight_mod, plan.forms.weight, precision));
  if (!plan.forms.places.empty()) mods["places"] = plan.forms.places;
  return JsonTree::object()
      .add("problem", problem_json(problem))
      .add("mods", std::move(mods))
      .add("mask", block_mask != nullptr ? mask_json(*block_mask, mask_found) : JsonTree())
      .add("plan", plan_json(plan))
      .add("predicted", predicted_json(plan.predicted))
      .add("tuned", tuned_json(plan))
      .add("rejected", plan.rejected)
      .add("kernel", kernel);
}

JsonTree to_json(const PlanCacheCounts& counts) {
  return JsonTree::object()
      .add("hits", counts.hits)
      .add("misses", counts.misses)
      .add("evictions", counts.evictions)
      .add("plans", counts.plans)
      .add("bytes", counts.bytes);
}

std::string to_text(const JsonTree& explanation) {
  Text text;
  const JsonTree& mods = explanation.at("mods");
  text.line("problem", fmt::format("{}; on {}", plain(explanation.at("problem").at("summary")),
                                   plain(explanation.at("problem").at("device"))));
  add_mod(text, "score", mods.at("score"), "score");
  add_mod(text, "mask", mods.at("mask"), "everything attends");
  add_mask(text, explanation.at("mask"));
  add_mod(text, "weight", mods.at("weight"), "1");
  if (mods.contains("places")) text.line("positions", plain(mods.at("places")));
  add_plan(text, explanation.at("plan"));
  add_predicted(text, explanation.at("predicted"));
  add_tuned(text, explanation.at("tuned"));
  std::string_view stage = "rejected";
  for (const JsonTree& reason : explanation.at("rejected").elements())
    text.line(std::exchange(stage, ""), plain(reason));
  add_kernel(text, explanation.at("kernel"));
  if (explanation.contains("plan_cache")) text.line("plan cache", listed(explanation.at("plan_cache")));
  return text.take();
}

}  // namespace engine

base::JsonTree AttentionPlan::State::explanation() const {
  base::JsonTree all = engine::explanation(problem, block_mask.get(), mask_rows.found(), plan, kernel->facts());
  if (cached) all["plan_cache"] = engine::to_json(plan_cache_counts());
  return all;
}

std::string AttentionPlan::explain() const { return engine::to_text(engine::state_in(state_).explanation()); }

std::string AttentionPlan::explain_json() const { return engine::state_in(state_).explanation().dump(2); }

}  // namespace heddle
