#include "engine/reports.h"

#include <nlohmann/json.hpp>

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

void report_plan(const problem::AttentionProblem& problem, const plan::Plan& plan, Clock::duration took) {
  if (!base::hears_events()) return;
  base::report("plan", {{"ms", std::chrono::duration<double, std::milli>(took).count()},
                        {"pass", problem::name(problem.pass)},
                        {"device", problem::name(problem.device)},
                        {"problem", to_string(problem)},
                        {"family", plan.family->name},
                        {"tile", {plan.tile.q, plan.tile.kv}},
                        {"workspace_bytes", plan.workspace_bytes},
                        {"rejected", plan.rejected}});
}

void report_refusal(const char* of, const Error& error) {
  if (base::hears_events())
    base::report("refusal", {{"of", of}, {"code", name(error.code())}, {"reason", error.what()}});
}

}  // namespace heddle::engine
