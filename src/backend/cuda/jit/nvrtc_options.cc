#include "backend/cuda/jit/nvrtc_options.h"

#include <fmt/format.h>

#include "backend/jit/key.h"

namespace heddle::cuda::jit {

std::vector<std::string> options_of(const Source& source) {
  if (source.architecture.empty()) {
    throw Error(ErrorCode::internal, fmt::format("kernel '{}' has no architecture", source.name));
  }
  std::vector<std::string> options{
      "--gpu-architecture=" + source.architecture,  // a real one: NVRTC runs ptxas, whose warnings come in the log
      "--std=c++20", "--device-as-default-execution-space",
      "--no-source-include",  // nothing is read from the folder that the process happens to stand in
      "--ptxas-options=-v"};
  if (!source.contracts) options.emplace_back("--fmad=false");
  options.insert(options.end(), source.options.begin(), source.options.end());
  return options;
}

std::string key_of(const Source& source, std::string_view compiler) {
  return heddle::jit::key_of(source, options_of(source), compiler);
}

}  // namespace heddle::cuda::jit
