#include "engine/prepare.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "families/table.h"
#include "heddle/error.h"

namespace heddle::engine {
namespace {

// The sentence without the compiler's log, which may stand below it.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Prepared prepare_first(std::vector<plan::Choice> choices, const Prepare& prepare) {
  std::vector<std::string> reasons;
  std::string logs;
  for (const bool well : {true, false}) {
    for (plan::Choice& choice : choices) {
      choice.plan.has_alternative = well;
      try {
        std::unique_ptr<backend::Kernel> kernel = prepare(choice);
        choice.plan.rejected.insert(choice.plan.rejected.begin(), reasons.begin(), reasons.end());
        return {std::move(choice.plan), std::move(choice.block_mask), std::move(kernel)};
      } catch (const backend::Rejected& rejected) {
        if (!well) continue;
        const std::string candidate =
            fmt::format("{} with tile {} x {}", choice.plan.family->name, choice.plan.tile.q, choice.plan.tile.kv);
        reasons.push_back(fmt::format("{}: {}", candidate, first_line(rejected.what())));
        logs += fmt::format("\n{}: {}", candidate, rejected.what());
      }
    }
  }
  throw Error(ErrorCode::compile, fmt::format("the compiler makes none of the planned kernels well:{}", logs));
}

}  // namespace heddle::engine
