// A kernel as a file of the cache: a header with every length and a checksum, then the texts and the cubin.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/cuda/jit/jit.h"

namespace heddle::cuda::jit {

/// What the compiler made of a source.
struct Record {
  std::string verdict;  // why the kernel is rejected; empty: it is not
  Cubin cubin;          // of a rejected kernel: the log and the figures, no bytes
};

std::vector<char> encode(std::string_view key, const Record& record);

/// Nothing unless `bytes` are what encode() made for this key, to the last bit; `why` then says what is wrong: "is 12
/// bytes short". Safe on any bytes.
std::optional<Record> decode(std::string_view key, std::span<const char> bytes, std::string& why);

}  // namespace heddle::cuda::jit
