// A read of memory and nothing else: what a kernel that reads the same bytes is held against.
#pragma once

#include <cstddef>
#include <cstdint>

namespace heddle::bench {

/// Reads all of `bytes` once, on the widest vectors of the machine.
void plain_read(const std::byte* from, std::int64_t bytes);

}  // namespace heddle::bench
