// The engine's events: heddle/events.h.
#pragma once

#include <chrono>
#include <utility>

#include "base/json_text.h"
#include "heddle/error.h"
#include "plan/plan.h"
#include "problem/problem.h"

namespace heddle::engine {

using Clock = std::chrono::steady_clock;

/// `call`: as write_call() has it.
void report_plan(const problem::AttentionProblem& problem, const plan::Plan& plan, Clock::duration took,
                 const base::JsonObject& call);
void report_refusal(const char* of, const Error& error);

/// A call within which a refusal is reported once, by the innermost of its parts.
class ReportedCall {
 public:
  ReportedCall() { ++depth_; }
  ~ReportedCall() {
    if (--depth_ == 0) is_reported_ = false;
  }
  ReportedCall(const ReportedCall&) = delete;
  ReportedCall& operator=(const ReportedCall&) = delete;

  void refused(const char* of, const Error& error) {
    if (!std::exchange(is_reported_, true)) report_refusal(of, error);
  }

 private:
  static inline thread_local int depth_ = 0;
  static inline thread_local bool is_reported_ = false;
};

/// Returns the part's result, and reports its refusal. `of`: "call", "plan" or "run".
template <class Part>
decltype(auto) reported(const char* of, Part&& part) {
  ReportedCall call;
  try {
    return part();
  } catch (const Error& error) {
    call.refused(of, error);
    throw;
  }
}

}  // namespace heddle::engine
