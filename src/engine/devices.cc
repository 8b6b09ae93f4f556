#include "heddle/devices.h"

#include "backend/device.h"
#include "base/folder.h"

namespace heddle {

std::vector<DeviceInfo> devices() {
  std::vector<DeviceInfo> all;
  for (const backend::DeviceInterface* kind : backend::device_kinds()) {
    for (DeviceInfo& info : kind->infos()) all.push_back(std::move(info));
  }
  return all;
}

std::string missing(DeviceKind kind) {
  const backend::DeviceInterface* found = backend::find_device_kind(kind);
  return found != nullptr ? found->missing() : "this build computes on none";
}

std::string cache_folder() { return base::cache_folder().string(); }

std::string version() { return HEDDLE_VERSION; }

}  // namespace heddle
