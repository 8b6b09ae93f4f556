// Waves of a tile, and the rings of blocks that they have keys in, as a multiprocessor has room for.
#pragma once

#include <cstdint>
#include <vector>

#include "backend/portable/shared/forward_mma_config.h"
#include "device/caps.h"

namespace heddle::plan {

/// Waves and rings of a tile that fit a multiprocessor, best first. `all` has the rows; `wave_keys`: of a unit.
std::vector<shared::ForwardMmaConfig> decode_mma_rings(const shared::ForwardMmaConfig& all, int wave_keys,
                                                       std::int64_t shared_memory_bytes);
/// Two warpgroups read one ring, whose keys hold the values, and share the columns of o; or each has keys and values of
/// its own, in a ring of its own.
enum class Warpgroups { one_ring, own_rings };
/// Tiles of 64 rows by wgmma, padded, where the chip has it and all fits: keys and values of 16 bits, head dimensions
/// of whole panels. `config` has the rows. Most keys of a unit come first: products of 64 keys read the queries half as
/// often as those of 32.
std::vector<shared::ForwardMmaConfig> decode_mma_warpgroup_rings(shared::ForwardMmaConfig config, Warpgroups warpgroups,
                                                                 const device::CudaCaps& caps);

}  // namespace heddle::plan
