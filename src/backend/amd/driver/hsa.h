// AMD's GPUs as HSA describes them. HIP's own answer, hipDeviceProp_t, is another struct in each version; HSA's numbers
// do not change.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace heddle::amd {

struct HsaGpu {
  std::string architecture;  // "gfx1100"
  std::string name;          // "AMD Radeon RX 7900 XTX"; empty: not told
  int compute_units = 0;
  std::int64_t l2_bytes = 0;  // 0: not told
  /// Where it is on the PCI bus: "0000:03:00"; empty: not told.
  std::string bus_id;
};

/// All that HSA lists, in its order. The library is the one that HIP uses. Throws Error(unsupported) where it is not
/// found or does not start.
std::vector<HsaGpu> hsa_gpus();

/// The entry of a device of HIP: number `used` of those at its place on the bus ("0000:03:00.0"), which the parts of
/// one GPU share; null: none. HIP may leave out some that HSA lists (HIP_VISIBLE_DEVICES).
const HsaGpu* find_gpu(const std::vector<HsaGpu>& gpus, const std::string& bus_id, int used);

}  // namespace heddle::amd
