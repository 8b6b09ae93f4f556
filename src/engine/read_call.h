// A call from JSON (docs/guide/archives.md), to plan it for a GPU that need not be here.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "heddle/attention.h"
#include "heddle/backward.h"

namespace heddle::engine {

/// A call of attention or of its backward. Captures, and lengths on the host, have memory; the other tensors have
/// addresses that mean nothing.
struct ReadCall {
  AttentionTensors forward;
  std::optional<BackwardTensors> backward;  // where it is one; `forward` is empty then
  AttentionOptions options;
  std::vector<Tensor> memory;
};

/// `device`: where tensors are that the call does not put on the host. Throws Error(invalid_argument), which names the
/// member, for what is missing, of a wrong type, or unknown.
ReadCall read_call(const nlohmann::ordered_json& json, const Device& device);

}  // namespace heddle::engine
