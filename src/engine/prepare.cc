#include "engine/prepare.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "heddle/error.h"

namespace heddle::engine {
namespace {

const backend::Backend& find_backend(BackendChoice choice) {
  const backend::Backend* found = nullptr;
  for (const backend::Backend* candidate : backend::backends()) {
    if (candidate->choice != choice) continue;
    if (found != nullptr) throw Error(ErrorCode::internal, fmt::format("two backends are called {}", name(choice)));
    found = candidate;
  }
  if (found == nullptr) throw Error(ErrorCode::internal, fmt::format("no backend is called {}", name(choice)));
  return *found;
}

// The sentence without the compiler's log, which may stand below it.
std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::unique_ptr<backend::Kernel> prepare(const plan::Plan& plan, const BlockMask* block_mask,
                                         const plan::Request& request, const Bindings& bindings) {
  const plan::Plan listed = plan::with_schedule(plan, request, block_mask);
  return find_backend(plan.backend)
      .prepare({request.problem, listed, request.tensors, request.options, bindings, block_mask, request.backward});
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
