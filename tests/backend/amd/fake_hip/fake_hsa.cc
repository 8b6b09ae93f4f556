// A libhsa-runtime64 that tells of the fake HIP's devices: a CPU, and FAKE_HIP_DEVICES GPUs with a name and compute
// units.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kSuccess = 0, kInvalidArgument = 0x1001;
constexpr int kName = 0, kDeviceType = 17, kCaches = 18, kComputeUnits = 0xA002, kBus = 0xA006;  // hsa_agent_info_t
constexpr std::uint32_t kCpu = 0, kGpu = 1;                                                      // hsa_device_type_t
constexpr std::uint64_t kFirstAgent = 1;  // handles: the CPU, then the GPUs

std::string setting(const char* name, const char* otherwise) {
  const char* text = std::getenv(name);
  return text ? text : otherwise;
}

std::uint64_t number_of(const char* name, const char* otherwise) {
  return static_cast<std::uint64_t>(std::atoi(setting(name, otherwise).c_str()));
}
std::uint64_t gpus() { return number_of("FAKE_HIP_DEVICES", "2") + number_of("FAKE_HIP_SKIPPED", "0"); }

}  // namespace

extern "C" {

struct hsa_agent_t {
  std::uint64_t handle;
};

int hsa_init() { return kSuccess; }
int hsa_shut_down() { return kSuccess; }

int hsa_iterate_agents(int (*callback)(hsa_agent_t, void*), void* data) {
  for (std::uint64_t n = 0; n <= gpus(); ++n) {
    if (const int status = callback({kFirstAgent + n}, data); status != kSuccess) return status;
  }
  return kSuccess;
}

int hsa_agent_get_info(hsa_agent_t agent, int attribute, void* value) {
  if (agent.handle < kFirstAgent || agent.handle > kFirstAgent + gpus()) return kInvalidArgument;
  const bool gpu = agent.handle > kFirstAgent;
  if (attribute == kName) {
    char name[64] = {};
    const std::string text = gpu ? setting("FAKE_HIP_CHIP", "gfx1100") : "a CPU";
    text.copy(name, sizeof(name) - 1);
    std::memcpy(value, name, sizeof(name));
  } else if (attribute == kDeviceType) {
    const std::uint32_t type = gpu ? kGpu : kCpu;
    std::memcpy(value, &type, sizeof(type));
  } else if (attribute == kCaches) {
    const std::uint32_t bytes[4] = {32U << 10, 6U << 20, 0, 0};
    std::memcpy(value, bytes, sizeof(bytes));
  } else if (attribute == kBus) {
    const auto bus = static_cast<std::uint32_t>(agent.handle - kFirstAgent - 1 + 3) << 8;
    std::memcpy(value, &bus, sizeof(bus));
  } else if (attribute == kComputeUnits) {
    // HIP's device n has n more than its first one.
    const std::uint64_t first = kFirstAgent + 1 + number_of("FAKE_HIP_SKIPPED", "0");
    const auto units = static_cast<std::uint32_t>(gpu ? number_of("FAKE_HIP_CUS", "96") + agent.handle - first : 0);
    std::memcpy(value, &units, sizeof(units));
  } else {
    return kInvalidArgument;
  }
  return kSuccess;
}
}
