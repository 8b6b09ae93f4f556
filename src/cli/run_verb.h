// The arguments of `heddle run`, and what its two passes share.
#pragma once

#include <chrono>
#include <string>

#include "arguments.h"
#include "heddle/attention.h"
#include "heddle/files.h"

namespace heddle::cli {

struct RunArguments {
  AttentionArguments attention;
  BackwardArguments backward;
  std::string output;
  bool json = false, explain = false;

  bool is_backward() const { return !backward.tensors.empty(); }
};

class Stopwatch {
 public:
  /// Seconds since the last call.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    const double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// The version and the mods, for the readers of an output file.
void add_metadata(TensorFile& file, const AttentionOptions& options);

/// The work of `heddle run --backward`, once the output was checked. Returns the exit code.
int run_backward(const RunArguments& arguments);

}  // namespace heddle::cli
