// A read of memory and nothing else: what a kernel that reads the same bytes is held against.
#pragma once

#include <cstddef>
#include <span>

namespace heddle::peaks {

/// Reads all of `first` and `second` once, on the widest vectors of the machine and on so many threads (0: all cores),
/// which draw slices of 256 KiB. Up to 511 bytes at a slice's end that fill no whole step of vectors are not read.
void plain_read(int threads, std::span<const std::byte> first, std::span<const std::byte> second = {});

}  // namespace heddle::peaks
