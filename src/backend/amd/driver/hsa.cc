#include "backend/amd/driver/hsa.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "backend/amd/driver/hip.h"
#include "heddle/error.h"

namespace heddle::amd {
namespace {

struct Agent {
  std::uint64_t handle;
};

constexpr int kSuccess = 0;
constexpr std::uint32_t kGpu = 1;  // of hsa_device_type_t

/// hsa_agent_info_t and hsa_amd_agent_info_t: a question, and beside it the type of its answer.
enum class Info : int {
  name = 0,                // char[64]
  device_type = 17,        // uint32_t
  cache_sizes = 18,        // uint32_t[4]
  compute_units = 0xA002,  // uint32_t
  bus_function = 0xA006,   // uint32_t: bus, device and function
  product_name = 0xA009,   // char[64]
  bus_domain = 0xA00F,     // uint32_t
};

struct Functions {
  int (*init)();
  int (*iterate_agents)(int (*visit)(Agent, void*), void* data);
  int (*agent_get_info)(Agent, Info, void* value);
};

bool find_all(const libraries::Library& library, Functions& f) {
  return library.find(f.init, "hsa_init") && library.find(f.iterate_agents, "hsa_iterate_agents") &&
         library.find(f.agent_get_info, "hsa_agent_get_info");
}

/// The functions of the library that HIP was linked with, or that stands beside it.
Functions load() {
  constexpr const char* kName = "libhsa-runtime64.so.1";
  Functions functions{};
  if (find_all(hip_library(), functions)) return functions;
  if (!find_all(libraries::open_companion(hip_library(), kName), functions)) {
    throw Error(ErrorCode::unsupported, fmt::format("HIP was found ({}), but no usable {} beside it or on the loader's "
                                                    "path, which tells what the GPUs are",
                                                    hip_library().path(), kName));
  }
  return functions;
}

template <class Value>
bool ask(const Functions& functions, Agent agent, Info info, Value& value) {
  return functions.agent_get_info(agent, info, &value) == kSuccess;
}

/// Up to a zero, or the end.
std::string text_of(const std::array<char, 64>& text) {
  return {text.begin(), std::find(text.begin(), text.end(), '\0')};
}

HsaGpu gpu_of(const Functions& functions, Agent agent) {
  HsaGpu gpu;
  std::array<char, 64> text{};
  if (ask(functions, agent, Info::name, text)) gpu.architecture = text_of(text);
  text = {};
  if (ask(functions, agent, Info::product_name, text)) gpu.name = text_of(text);
  std::uint32_t number = 0;
  if (ask(functions, agent, Info::compute_units, number)) gpu.compute_units = static_cast<int>(number);
  std::array<std::uint32_t, 4> caches{};
  if (ask(functions, agent, Info::cache_sizes, caches)) gpu.l2_bytes = caches[1];
  std::uint32_t domain = 0;
  if (ask(functions, agent, Info::bus_function, number)) {
    if (!ask(functions, agent, Info::bus_domain, domain)) domain = 0;
    gpu.bus_id = fmt::format("{:04x}:{:02x}:{:02x}", domain, number >> 8 & 0xff, number >> 3 & 0x1f);
  }
  return gpu;
}

/// Without the function, which HIP does not tell.
std::string without_function(std::string bus_id) {
  bus_id.resize(std::min(bus_id.size(), bus_id.find('.')));
  std::ranges::transform(bus_id, bus_id.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return bus_id;
}

}  // namespace

std::vector<HsaGpu> hsa_gpus() {
  const Functions functions = load();
  if (const int result = functions.init(); result != kSuccess) {
    throw Error(ErrorCode::unsupported, fmt::format("HSA does not start: error {:#x}", result));
  }
  std::vector<Agent> agents;
  const auto add = [](Agent agent, void* list) {
    static_cast<std::vector<Agent>*>(list)->push_back(agent);
    return kSuccess;
  };
  if (const int result = functions.iterate_agents(add, &agents); result != kSuccess) {
    throw Error(ErrorCode::unsupported, fmt::format("HSA does not list its agents: error {:#x}", result));
  }
  std::vector<HsaGpu> gpus;
  for (const Agent agent : agents) {
    std::uint32_t type = 0;
    if (ask(functions, agent, Info::device_type, type) && type == kGpu) gpus.push_back(gpu_of(functions, agent));
  }
  return gpus;
}

const HsaGpu* find_gpu(const std::vector<HsaGpu>& gpus, const std::string& bus_id, int used) {
  const std::string wanted = without_function(bus_id);
  for (const HsaGpu& gpu : gpus) {
    if (gpu.bus_id == wanted && used-- == 0) return &gpu;
  }
  return nullptr;
}

}  // namespace heddle::amd
