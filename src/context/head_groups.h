// A call in groups of heads: views of each group's heads, and mods that know where it begins.
#pragma once

#include <cstdint>

#include "heddle/attention.h"
#include "heddle/backward.h"

namespace heddle::context {

inline constexpr const char* kFirstHead = "context_first_head";  // a param that is added

/// One group of the heads of queries and of keys.
struct HeadGroup {
  std::int64_t first = 0, count = 0, kv_first = 0, kv_count = 0;
};
/// Group i of `groups`, which divides the heads of keys.
HeadGroup head_group(std::int64_t i, std::int64_t groups, std::int64_t heads, std::int64_t kv_heads);

/// Views of a group's heads. Throws invalid_argument, by name, for a tensor that has not as many heads as q, or as k.
AttentionTensors heads_of(const AttentionTensors& tensors, const HeadGroup& group);
BackwardTensors heads_of(const BackwardTensors& tensors, const HeadGroup& group);
/// Heads of k or v.
ConstTensorView kv_heads_of(ConstTensorView view, const HeadGroup& group);
TensorView kv_heads_of(TensorView view, const HeadGroup& group);

/// Rewrites the mods of a call: h counts from the param kFirstHead.
void over_heads(AttentionOptions& options);
/// Options of one group of a call whose mods over_heads() rewrote: tensors with an entry a head, and the param.
/// `options` is of all heads, `group` number i of `groups`.
AttentionOptions options_of(const AttentionOptions& options, const HeadGroup& group, std::int64_t i,
                            std::int64_t groups);

}  // namespace heddle::context
