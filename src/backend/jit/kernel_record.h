// A kernel as a file of the cache: a header with every length and a checksum, then the texts and the machine code.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "backend/jit/machine_code.h"

namespace heddle::jit {

/// A kept compilation of a source.
struct Record {
  std::string verdict;  // why the kernel is rejected; empty: it is not
  MachineCode code;     // of a rejected kernel: the log and the figures, no bytes
};

std::vector<char> encode(std::string_view key, const Record& record);

/// Nothing unless `bytes` are what encode() made for this key, to the last bit; `why` then says what is wrong: "is 12
/// bytes short". Safe on any bytes.
std::optional<Record> decode(std::string_view key, std::span<const char> bytes, std::string& why);

}  // namespace heddle::jit
