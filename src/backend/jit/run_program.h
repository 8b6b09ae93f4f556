// Programs that people may have installed, which make machine code readable.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace heddle::jit {

/// The first that can be executed: `names` in each folder of PATH, then in `folders`. Empty when there is none.
std::filesystem::path find_program(std::span<const std::string> names, std::span<const std::filesystem::path> folders);

/// Runs `program ARGUMENTS > output`. If it fails, no such file is left.
void run_program(const std::filesystem::path& program, std::vector<std::string> arguments,
                 const std::filesystem::path& output);

}  // namespace heddle::jit
