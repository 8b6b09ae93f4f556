#include "plan/mods/refuses_values.h"

#include <fmt/format.h>

#include <iterator>
#include <limits>
#include <string_view>

#include "plan/mods/kv_start.h"
#include "shared/mod_values.h"

namespace heddle::plan {
namespace {

std::string refuse_capture(const std::string& name, int rank, const ConstTensorView* bound, const Device& device) {
  if (rank > 4) return fmt::format("capture '{}' has {} axes; up to 4 are accepted", name, rank);
  if (bound == nullptr) return {};  // another's to refuse
  const ConstTensorView& view = *bound;
  if (!(view.device == device)) {
    return fmt::format("capture '{}' is on {}; {}, where q is, is accepted", name, problem::name(view.device),
                       problem::name(device));
  }
  for (const std::int64_t extent : view.shape) {
    if (extent > std::numeric_limits<std::int32_t>::max()) {
      return fmt::format("capture '{}' has shape {}; extents up to 2147483647 are accepted", name,
                         to_string(view.shape));
    }
  }
  return {};
}

}  // namespace

std::string refuses_values(const problem::AttentionProblem& problem, const Bindings& bindings) {
  Symbols all;
  for (const Expr* mod : {&problem.score_mod, &problem.mask_mod, &problem.weight_mod}) {
    if (mod->empty()) continue;
    all.params.merge(symbols_of(*mod).params);
    all.captures.merge(symbols_of(*mod).captures);
  }
  const KvStart start = kv_start_of(problem);
  const auto refuse_count = [&](std::string_view what, std::int64_t count, KvStart::Form form, int most) {
    const std::int64_t all_count = count + (start.form == form ? 1 : 0);
    if (all_count <= most) return std::string();
    return fmt::format("the mods read {} {}{}; up to {} are accepted", count, what, takes_one_more(start, form), most);
  };
  for (std::string reason :
       {refuse_count("params", std::ssize(all.params), KvStart::Form::param, shared::kModParams),
        refuse_count("captures", std::ssize(all.captures), KvStart::Form::capture, shared::kModCaptures)}) {
    if (!reason.empty()) return reason;
  }
  for (const auto& [name, declaration] : all.captures) {
    const auto bound = bindings.captures.find(name);
    const ConstTensorView* view = bound == bindings.captures.end() ? nullptr : &bound->second;
    std::string reason = refuse_capture(name, declaration.rank, view, problem.device);
    if (!reason.empty()) return reason;
  }
  return {};
}

}  // namespace heddle::plan
