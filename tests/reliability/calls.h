// Calls of the whole interface with arguments drawn at random, on the CPU: what the tests of faults make fail, and what
// the soak repeats.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <random>
#include <span>
#include <string_view>

namespace heddle::test {

struct CallSettings {
  int threads = 1;
  std::filesystem::path folder;  // for files; it is there
};

/// Makes the call, and returns a hash of its results, which is the same for each repetition. Throws as the library; a
/// status of C is thrown as the exception that it stands for.
using Call = std::function<std::uint64_t()>;

struct CallKind {
  const char* name;
  Call (*draw)(std::mt19937_64& random, const CallSettings& settings);
  /// It makes trees of JSON, whose library does not bear that memory is out (SECURITY.md).
  bool makes_json = false;
};

std::span<const CallKind> call_kinds();
/// Draws a call of this kind.
Call drawn_call(std::string_view kind, std::uint64_t seed, const CallSettings& settings);

/// Throws what a status of c.h stands for: std::bad_alloc, or heddle::Error with the sentence.
void throw_status(std::int32_t status);

}  // namespace heddle::test
