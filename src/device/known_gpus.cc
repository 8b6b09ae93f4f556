#include "device/known_gpus.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include "heddle/error.h"

namespace heddle::device {

KnownMachine with_known_gpu(Machine machine, std::string_view name) {
  KnownMachine found{.machine = std::move(machine), .kind = DeviceKind::cpu};
  std::string names;
  const auto look_in = [&](const auto& gpus, auto& devices, DeviceKind kind) {
    for (const auto& row : gpus) {
      names += fmt::format("{}'{}'", names.empty() ? "" : ", ", row.name);
      if (row.name == name) devices = {row.caps}, found.kind = kind;
    }
  };
  look_in(kKnownGpus, found.machine.cuda, DeviceKind::cuda);
  look_in(kKnownAmdGpus, found.machine.amd, DeviceKind::rocm);
  if (found.kind != DeviceKind::cpu) return found;
  throw Error(ErrorCode::invalid_argument, fmt::format("gpu is '{}'; {} are accepted", name, names));
}

}  // namespace heddle::device
