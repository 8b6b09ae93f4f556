#include "engine/tuning.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include "base/environment.h"
#include "heddle/error.h"
#include "tune/kernel_name.h"
#include "tune/measure.h"
#include "tune/problem_class.h"
#include "tune/tuning_record.h"

namespace heddle {

namespace {
constexpr std::array<std::string_view, 5> kTuningNames = {"automatic", "off", "recorded", "measure", "again"};
}

std::string_view name(Tuning tuning) { return kTuningNames[static_cast<std::size_t>(tuning)]; }

namespace engine {
namespace {

/// Times that differ by less say nothing: the planner's first stays.
constexpr double kNoise = 0.01;

/// Drops plans that are called the same: one of them is measured for all.
void keep_first_of_each_name(std::vector<plan::Choice>& choices) {
  std::set<std::string> names;
  std::erase_if(choices,
                [&](const plan::Choice& choice) { return !names.insert(tune::kernel_name(choice.plan)).second; });
}

/// The record has a time of `kernel`.
plan::Tuned tuned_by(const tune::Record& record, const std::string& kernel, bool now) {
  plan::Tuned tuned = {.now = now, .chosen = {}, .times = {}, .planned = record.planned};
  for (const tune::Time& time : record.times) {
    tuned.times.push_back({time.kernel, time.seconds});
    if (time.kernel == kernel) tuned.chosen = tuned.times.back();
  }
  return tuned;
}

/// Puts the choices that the record has first, in its order.
std::vector<plan::Choice> ordered_by(const tune::Record& record, std::vector<plan::Choice> choices) {
  const auto rank = [&](const plan::Choice& choice) {
    return std::ranges::find(record.times, tune::kernel_name(choice.plan), &tune::Time::kernel) - record.times.begin();
  };
  std::ranges::stable_sort(choices, {}, rank);
  for (plan::Choice& choice : choices) {
    if (rank(choice) == std::ssize(record.times)) continue;
    choice.plan.tuned = tuned_by(record, tune::kernel_name(choice.plan), false);
  }
  return choices;
}

struct Contest {
  std::vector<Prepared> kernels;      // that the compiler makes well, in the planner's order
  std::vector<std::string> rejected;  // sentences about the others
};

Contest prepare_all(std::vector<plan::Choice> choices, const Prepare& prepare) {
  Contest contest;
  for (plan::Choice& choice : choices) {
    try {
      std::unique_ptr<backend::Kernel> kernel = prepare(choice);
      contest.kernels.push_back({std::move(choice.plan), std::move(choice.block_mask), std::move(kernel)});
    } catch (const backend::Rejected& rejected) {
      const std::string text = rejected.what();
      contest.rejected.push_back(
          fmt::format("{}: {}", tune::kernel_name(choice.plan), text.substr(0, text.find('\n'))));
    }
  }
  if (contest.kernels.empty()) contest.kernels.push_back(prepare_first(std::move(choices), prepare));
  return contest;
}

std::vector<double> measure(const plan::Request& request, const std::vector<Prepared>& kernels) {
  std::vector<tune::Contender> contenders;
  for (const Prepared& one : kernels) contenders.push_back({&one.plan, one.block_mask.get(), one.kernel.get()});
  return tune::measure(request, contenders);
}

tune::Record record_of(const std::vector<Prepared>& kernels, const std::vector<double>& seconds) {
  tune::Record record;
  record.planned = tune::kernel_name(kernels.front().plan);
  for (std::size_t i = 0; i < kernels.size(); ++i) {
    record.times.push_back({tune::kernel_name(kernels[i].plan), seconds[i]});
  }
  std::ranges::stable_sort(record.times, {}, &tune::Time::seconds);
  const auto planned = std::ranges::find(record.times, record.planned, &tune::Time::kernel);
  if (planned->seconds <= record.times.front().seconds * (1 + kNoise)) {
    planned->seconds = record.times.front().seconds;
    std::rotate(record.times.begin(), planned, planned + 1);
  }
  return record;
}

Prepared fastest_in(Contest contest, const plan::Request& request, const std::string& problem_class) {
  if (contest.kernels.size() < 2) return std::move(contest.kernels.front());
  tune::Record record;
  try {
    record = record_of(contest.kernels, measure(request, contest.kernels));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::out_of_memory) throw;
    Prepared first = std::move(contest.kernels.front());
    first.plan.tuning_trouble = fmt::format("nothing was measured: {}", error.what());
    return first;
  }
  std::string trouble;
  tune::store(problem_class, record, trouble);
  const auto best = std::ranges::find_if(
      contest.kernels, [&](const Prepared& one) { return tune::kernel_name(one.plan) == record.times.front().kernel; });
  Prepared chosen = std::move(*best);
  chosen.plan.tuned = tuned_by(record, record.times.front().kernel, true);
  chosen.plan.rejected.insert(chosen.plan.rejected.end(), contest.rejected.begin(), contest.rejected.end());
  chosen.plan.tuning_trouble = std::move(trouble);
  return chosen;
}

}  // namespace

Tuning tuning_of(const AttentionOptions& options) {
  if (options.tuning != Tuning::automatic) return options.tuning;
  const std::string given = base::value_of(base::Option::tuning);
  if (given.empty()) return Tuning::recorded;
  const auto* const found = std::ranges::find(kTuningNames, given);
  if (found != kTuningNames.end() && given != name(Tuning::automatic)) {
    return static_cast<Tuning>(found - kTuningNames.begin());
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("{} is '{}'; off, recorded, measure and again are accepted",
                                                       base::name_of(base::Option::tuning), given));
}

Tuner::Tuner(const plan::Request& request) : request_(request) {
  const Tuning tuning = tuning_of(request.options);
  if (tuning != Tuning::off) problem_class_ = tune::problem_class(request);
  if (tuning == Tuning::recorded || tuning == Tuning::measure) record_ = tune::load(problem_class_, trouble_);
  asks_ = tuning == Tuning::again || (tuning == Tuning::measure && !record_);
}

std::vector<plan::Choice> Tuner::ordered(std::vector<plan::Choice> choices) const {
  keep_first_of_each_name(choices);
  return record_ ? ordered_by(*record_, std::move(choices)) : choices;
}

bool Tuner::measures(const std::vector<plan::Choice>& choices) const {
  return asks_ && choices.size() > 1 && problem::has_elements(request_.problem);
}

Prepared Tuner::fastest_of(std::vector<plan::Choice> choices, const Prepare& prepare) const {
  return fastest_in(prepare_all(std::move(choices), prepare), request_, problem_class_);
}

}  // namespace engine
}  // namespace heddle
