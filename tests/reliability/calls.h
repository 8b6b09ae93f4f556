// Calls of the whole interface with arguments drawn at random, on the CPU: what the tests of faults make fail, and what
// the soak repeats.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <string_view>

#include "reliability/call_settings.h"

namespace heddle::test {

struct CallKind {
  const char* name;
  Call (*draw)(std::mt19937_64& random, const CallSettings& settings);
};

std::span<const CallKind> call_kinds();
/// Draws a call of this kind.
Call drawn_call(std::string_view kind, std::uint64_t seed, const CallSettings& settings);

}  // namespace heddle::test
