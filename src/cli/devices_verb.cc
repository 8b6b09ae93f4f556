// heddle devices: what this build can compute on.
#include "heddle/devices.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "output.h"
#include "verbs.h"

namespace heddle::cli {
namespace {

int list(bool json) {
  const auto found = devices();
  if (json) {
    Json entries = Json::array();
    for (const DeviceInfo& device : found) {
      entries.push_back({{"kind", device.kind},
                         {"name", device.name},
                         {"detail", device.detail},
                         {"memory_bytes", device.memory_bytes}});
    }
    Json result{{"verb", "devices"}, {"heddle", version()}, {"devices", entries}};
    if (const std::string reason = missing(DeviceKind::cuda); !reason.empty()) result["cuda_missing"] = reason;
    if (const std::string reason = missing(DeviceKind::rocm); !reason.empty()) result["rocm_missing"] = reason;
    print_json(result);
    return 0;
  }
  std::string text;
  for (const DeviceInfo& device : found) {
    text += fmt::format("{}: {}, {}, {:.1f} GiB\n", device.kind, device.name, device.detail,
                        static_cast<double>(device.memory_bytes) / (1 << 30));
  }
  if (const std::string reason = missing(DeviceKind::cuda); !reason.empty())
    text += fmt::format("no CUDA: {}\n", reason);
  if (const std::string reason = missing(DeviceKind::rocm); !reason.empty())
    text += fmt::format("no ROCm: {}\n", reason);
  print_text(text);
  return 0;
}

}  // namespace

void add_devices(CLI::App& app, Work& chosen) {
  auto json = std::make_shared<bool>(false);
  CLI::App* verb = app.add_subcommand("devices", "Lists the devices that this build can compute on.");
  verb->add_flag("--json", *json, "prints JSON");
  verb->footer(
      "Example:\n"
      "  heddle devices --json");
  verb->callback([json, &chosen] { chosen = [json] { return list(*json); }; });
}

}  // namespace heddle::cli
