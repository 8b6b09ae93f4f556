#include "engine/prepare.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "families/choose.h"
#include "families/table.h"
#include "heddle/error.h"

namespace heddle::engine {
namespace {

// The sentence without the compiler's log, which may stand below it.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::unique_ptr<backend::Kernel> prepare(const plan::Plan& plan, const BlockMask* block_mask,
                                         const plan::Request& request, const Bindings& bindings) {
  const plan::Plan listed = plan::with_schedule(plan, request, block_mask);
  const plan::Family* family = plan::family_of(plan.family, plan.backend);
  if (family == nullptr) {
    throw Error(ErrorCode::internal, fmt::format("backend {} has no family '{}'", name(plan.backend), plan.family));
  }
  return family->prepare(
      {request.problem, listed, request.tensors, request.options, bindings, block_mask, request.backward});
}

Prepared prepare_first(std::vector<plan::Choice> choices, const Prepare& prepare) {
  std::vector<std::string> reasons;
  std::string logs;
  for (plan::Choice& choice : choices) {
    try {
      std::unique_ptr<backend::Kernel> kernel = prepare(choice);
      choice.plan.rejected.insert(choice.plan.rejected.begin(), reasons.begin(), reasons.end());
      return {std::move(choice.plan), std::move(choice.block_mask), std::move(kernel)};
    } catch (const backend::Rejected& rejected) {
      const std::string candidate =
          fmt::format("{} with tile {} x {}", choice.plan.family, choice.plan.tile.q, choice.plan.tile.kv);
      reasons.push_back(fmt::format("{}: {}", candidate, first_line(rejected.what())));
      logs += fmt::format("\n{}: {}", candidate, rejected.what());
    }
  }
  throw Error(ErrorCode::compile, fmt::format("the compiler makes none of the planned kernels well:{}", logs));
}

}  // namespace heddle::engine
