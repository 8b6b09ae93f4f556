// The plan of an attention on a GPU that need not be here.
#include "engine/call_there.h"
#include "engine/explain.h"
#include "families/table.h"

namespace heddle {
namespace {

template <class Tensors>
Explanation explain_there(std::string_view gpu, const Tensors& tensors, const AttentionOptions& options) {
  engine::CallThere call(gpu, tensors, options);
  const std::vector<plan::Choice> choices =
      plan::choose(call.request(), [&](BlockSize block) { return call.mask_rows(block); });
  const base::JsonTree explanation = engine::explanation(call.problem(), choices.front().block_mask.get(),
                                                         call.mask_found(), choices.front().plan, nullptr);
  return {engine::to_text(explanation), explanation.dump(2), choices.front().block_mask};
}

}  // namespace

Explanation explain_on(std::string_view gpu, const AttentionTensors& tensors, const AttentionOptions& options) {
  return explain_there(gpu, tensors, options);
}

template <std::same_as<BackwardTensors> Tensors>
Explanation explain_on(std::string_view gpu, const Tensors& tensors, const AttentionOptions& options) {
  return explain_there(gpu, tensors, options);
}
template Explanation explain_on(std::string_view gpu, const BackwardTensors&, const AttentionOptions&);

}  // namespace heddle
