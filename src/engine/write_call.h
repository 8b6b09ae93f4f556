// A call as JSON, without its tensors' memory: what a plan is made for. docs/guide/archives.md has the form.
#pragma once

#include "base/json_text.h"
#include "heddle/attention.h"
#include "heddle/backward.h"

namespace heddle::engine {

/// Holds the numbers of lengths, and of small integer captures, that are in host memory. A call whose mods have no
/// text that parse() would take is an object with the key "unwritten", a sentence.
base::JsonObject write_call(const AttentionTensors& tensors, const AttentionOptions& options);
base::JsonObject write_call(const BackwardTensors& tensors, const AttentionOptions& options);

}  // namespace heddle::engine
