// A call that the tests of faults repeat, and what it is drawn for.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>

namespace heddle::test {

struct CallSettings {
  int threads = 1;
  std::filesystem::path folder;  // for files; it is there
};

/// Makes the call, and returns a hash of its results, which is the same for each repetition. Throws as the library; a
/// status of C is thrown as the exception that it stands for.
using Call = std::function<std::uint64_t()>;

}  // namespace heddle::test
