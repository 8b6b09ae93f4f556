#include "device/known_gpus.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include "heddle/error.h"

namespace heddle::device {
namespace {

constexpr int kMostMultiprocessors = 4096;

/// "h100:114", cut at the colon.
struct NamedGpu {
  std::string_view name;
  std::optional<int> multiprocessors;
};

NamedGpu cut(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {text, {}};
  const std::string_view number = text.substr(colon + 1);
  int value = 0;
  const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
  if (error == std::errc() && end == number.data() + number.size() && value >= 1 && value <= kMostMultiprocessors) {
    return {text.substr(0, colon), value};
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("gpu is '{}'; behind the colon a number of multiprocessors from 1 to {} is accepted", text,
                          kMostMultiprocessors));
}

void set_multiprocessors(CudaCaps& caps, int count) { caps.multiprocessors = count; }
void set_multiprocessors(AmdCaps& caps, int count) { caps.compute_units = count; }
std::string architecture_of(const AmdCaps& caps) { return caps.architecture; }

template <class Visit>
void for_each_gpu(Visit&& visit) {
  for (const KnownGpu& row : kKnownGpus) visit(row.name, row.caps);
  for (const KnownAmdGpu& row : kKnownAmdGpus) visit(row.name, row.caps);
}

std::string quoted_names() {
  std::string names;
  for_each_gpu(
      [&](std::string_view name, const auto&) { names += fmt::format("{}'{}'", names.empty() ? "" : ", ", name); });
  return names;
}

}  // namespace

KnownMachine with_known_gpu(Machine machine, std::string_view name) {
  const NamedGpu wanted = cut(name);
  KnownMachine found{.machine = std::move(machine), .kind = DeviceKind::cpu, .architecture = {}};
  const auto look_in = [&](const auto& gpus, auto& devices, DeviceKind kind) {
    for (const auto& row : gpus) {
      if (row.name != wanted.name) continue;
      devices = {row.caps};
      if (wanted.multiprocessors) set_multiprocessors(devices.front(), *wanted.multiprocessors);
      found.kind = kind;
      found.architecture = architecture_of(row.caps);
    }
  };
  look_in(kKnownGpus, found.machine.cuda, DeviceKind::cuda);
  look_in(kKnownAmdGpus, found.machine.amd, DeviceKind::rocm);
  if (found.kind != DeviceKind::cpu) return found;
  throw Error(ErrorCode::invalid_argument, fmt::format("gpu is '{}'; {} are accepted", name, quoted_names()));
}

std::vector<std::string> known_gpus_of(std::string_view name) {
  if (name == "sm_90") name = "sm_90a";
  std::vector<std::string> gpus, architectures;
  const NamedGpu wanted = cut(name);
  for_each_gpu([&](std::string_view each, const auto& caps) {
    const std::string architecture = architecture_of(caps);
    if (each == wanted.name) gpus.emplace_back(name);
    if (architecture == name) gpus.emplace_back(each);
    if (std::ranges::find(architectures, architecture) == architectures.end()) architectures.push_back(architecture);
  });
  if (!gpus.empty()) return gpus;
  throw Error(ErrorCode::invalid_argument, fmt::format("gpu is '{}'; {}, and the architectures {} are accepted", name,
                                                       quoted_names(), fmt::join(architectures, ", ")));
}

}  // namespace heddle::device
