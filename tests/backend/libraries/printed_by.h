// Output of another program.
#pragma once

#include <array>
#include <cstdio>
#include <string>

namespace heddle {

/// Runs a command of the shell; " (ended badly)" follows its output where its status is not 0.
inline std::string printed_by(const std::string& command) {
  FILE* output = popen(command.c_str(), "r");
  if (output == nullptr) return "cannot be run";
  std::string text;
  std::array<char, 4096> buffer{};
  for (std::size_t got = 0; (got = fread(buffer.data(), 1, buffer.size(), output)) > 0;) {
    text.append(buffer.data(), got);
  }
  return pclose(output) == 0 ? text : text + " (ended badly)";
}

}  // namespace heddle
