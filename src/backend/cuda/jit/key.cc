#include "backend/cuda/jit/key.h"

#include <fmt/format.h>

#include <cstdint>

#include "backend/cuda/jit/includes.h"
#include "base/hash.h"

namespace heddle::cuda::jit {
namespace {

/// Its length in front keeps a part from running into the next.
void add(std::string& all, std::string_view part) {
  all += fmt::format("{}:", part.size());
  all += part;
}

}  // namespace

std::vector<std::string> options_of(const Source& source) {
  if (source.architecture.empty()) {
    throw Error(ErrorCode::internal, fmt::format("kernel '{}' has no architecture", source.name));
  }
  std::vector<std::string> options{
      "--gpu-architecture=" + source.architecture,  // a real one: NVRTC runs ptxas, whose warnings come in the log
      "--std=c++20", "--device-as-default-execution-space",
      "--no-source-include",  // nothing is read from the folder that the process happens to stand in
      "--ptxas-options=-v"};
  options.insert(options.end(), source.options.begin(), source.options.end());
  return options;
}

std::string key_of(const Source& source, std::string_view compiler) {
  std::string all;
  add(all, compiler);
  add(all, source.name);
  add(all, source.text);
  for (const std::string& option : options_of(source)) add(all, option);
  for (const Header* header : headers_in_use(source)) {
    add(all, header->name);
    add(all, header->text);
  }
  return fmt::format("{:016x}{:016x}", base::hash_bytes(all.data(), all.size(), 1),
                     base::hash_bytes(all.data(), all.size(), 2));
}

}  // namespace heddle::cuda::jit
