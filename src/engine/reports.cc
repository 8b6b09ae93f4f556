#include "engine/reports.h"

#include <array>
#include <cstdint>

#include "base/report.h"
#include "families/table.h"

namespace heddle::engine {
namespace {

const char* name(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return "invalid_argument";
    case ErrorCode::unsupported:
      return "unsupported";
    case ErrorCode::out_of_memory:
      return "out_of_memory";
    case ErrorCode::io:
      return "io";
    case ErrorCode::device:
      return "device";
    case ErrorCode::compile:
      return "compile";
    case ErrorCode::internal:
      break;
  }
  return "internal";
}

}  // namespace

void report_plan(const problem::AttentionProblem& problem, const plan::Plan& plan, Clock::duration took,
                 const base::JsonObject& call) {
  base::report("plan", base::JsonObject()
                           .add("ms", std::chrono::duration<double, std::milli>(took).count())
                           .add("pass", problem::name(problem.pass))
                           .add("device", problem::name(problem.device))
                           .add("problem", to_string(problem))
                           .add("family", plan.family->name)
                           .add("tile", std::array<std::int64_t, 2>{plan.tile.q, plan.tile.kv})
                           .add("workspace_bytes", plan.workspace_bytes)
                           .add("rejected", plan.rejected)
                           .add("call", call));
}

void report_refusal(const char* of, const Error& error) {
  if (base::hears_events())
    base::report("refusal",
                 base::JsonObject().add("of", of).add("code", name(error.code())).add("reason", error.what()));
}

}  // namespace heddle::engine
