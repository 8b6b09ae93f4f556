// A read of memory and nothing else: what a kernel that reads the same bytes is held against.
#pragma once

#include <cstddef>
#include <span>

namespace heddle::peaks {

/// Reads each byte of `first` and `second` once, on the widest vectors of the machine and on so many threads (0: all
/// cores), which draw slices of 256 KiB. Returns all bytes joined by "or": so the read cannot be left out.
std::byte plain_read(int threads, std::span<const std::byte> first, std::span<const std::byte> second = {});

}  // namespace heddle::peaks
