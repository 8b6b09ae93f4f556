#include "engine/one_call.h"

#include <fmt/format.h>

#include "backend/device.h"
#include "heddle/error.h"

namespace heddle::engine {

void check_not_capturing(const Device& device, void* stream, std::string_view function) {
  const backend::DeviceInterface* kind = backend::find_device_kind(device.kind);
  if (device.kind == DeviceKind::cpu || kind == nullptr) return;
  // A device that is not there is the planner's to refuse.
  if (device.index < 0 || device.index >= kind->count() || !kind->is_capturing(device.index, stream)) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("stream {} is being captured in a graph; {}() keeps neither its plan nor its workspace for "
                          "one: the run of an AttentionPlan is accepted",
                          fmt::ptr(stream), function));
}

}  // namespace heddle::engine
