// Plans behind an opaque pointer.
#include <utility>

#include "errors.h"
#include "from_c.h"
#include "structs.h"

struct heddle_plan {
  heddle::AttentionPlan plan;
  heddle::AttentionOptions options;  // as planned, or updated: for runs that change some of them
};

namespace heddle::capi {
namespace {

// Makes a plan of either pass, by the type of `tensors`.
heddle_status create(const auto* tensors, const heddle_attention_options* options, heddle_plan** plan) {
  return call([&] {
    require(plan, "plan", "place for a heddle_plan*");
    *plan = nullptr;
    const AttentionOptions planned = to_options(options);
    *plan = new heddle_plan{{to_tensors(tensors), planned}, planned};
  });
}

heddle_status run(const heddle_plan* plan, const auto* tensors, const heddle_run_options* options) {
  return call([&] {
    require(plan, "plan", "heddle_plan");
    const auto views = to_tensors(tensors);
    heddle_run_options given = {};
    if (options != nullptr) given = known_fields("options", options);
    RunOptions run = {.workspace = given.workspace, .bindings = nullptr, .stream = given.stream};
    Bindings bindings;
    if (given.bindings != nullptr) {
      bindings = to_bindings(given.bindings);
      run.bindings = &bindings;
    }
    AttentionOptions changed;
    if (given.q_rest != nullptr || given.k_rest != nullptr) {
      changed = plan->options;
      if (given.q_rest != nullptr) changed.q_rest = to_optional_view("q_rest", given.q_rest);
      if (given.k_rest != nullptr) changed.k_rest = to_optional_view("k_rest", given.k_rest);
      run.options = &changed;
    }
    plan->plan.run(views, run);
  });
}

}  // namespace
}  // namespace heddle::capi

using namespace heddle::capi;

heddle_status heddle_plan_create(const heddle_attention_tensors* tensors, const heddle_attention_options* options,
                                 heddle_plan** plan) {
  return create(tensors, options, plan);
}

heddle_status heddle_plan_create_backward(const heddle_backward_tensors* tensors,
                                          const heddle_attention_options* options, heddle_plan** plan) {
  return create(tensors, options, plan);
}

void heddle_plan_destroy(heddle_plan* plan) { delete plan; }

heddle_status heddle_plan_run(const heddle_plan* plan, const heddle_attention_tensors* tensors,
                              const heddle_run_options* options) {
  return run(plan, tensors, options);
}

heddle_status heddle_plan_run_backward(const heddle_plan* plan, const heddle_backward_tensors* tensors,
                                       const heddle_run_options* options) {
  return run(plan, tensors, options);
}

heddle_status heddle_plan_update(heddle_plan* plan, const heddle_bindings* bindings) {
  return call([&] {
    require(plan, "plan", "heddle_plan");
    require(bindings, "bindings", "heddle_bindings");
    const heddle::Bindings given = to_bindings(bindings);
    heddle::Bindings known = plan->options.bindings;  // a copy: whatever fails leaves the plan as it was
    for (const auto& [name, value] : given.params) known.params.insert_or_assign(name, value);
    for (const auto& [name, view] : given.captures) known.captures.insert_or_assign(name, view);
    plan->plan.update(given);
    std::swap(plan->options.bindings, known);
  });
}

heddle_status heddle_plan_workspace_bytes(const heddle_plan* plan, int64_t* bytes) {
  return call([&] {
    require(plan, "plan", "heddle_plan");
    require(bytes, "bytes", "place for an int64_t");
    *bytes = plan->plan.workspace_bytes();
  });
}

heddle_status heddle_plan_backend(const heddle_plan* plan, int32_t* backend) {
  return call([&] {
    require(plan, "plan", "heddle_plan");
    require(backend, "backend", "place for an int32_t");
    *backend = static_cast<int32_t>(plan->plan.backend());
  });
}

heddle_status heddle_plan_explain(const heddle_plan* plan, const char** text) {
  return call([&] {
    require(plan, "plan", "heddle_plan");
    require(text, "text", "place for a text");
    *text = keep_text(plan->plan.explain());
  });
}

heddle_status heddle_plan_explain_json(const heddle_plan* plan, const char** json) {
  return call([&] {
    require(plan, "plan", "heddle_plan");
    require(json, "json", "place for a text");
    *json = keep_text(plan->plan.explain_json());
  });
}
