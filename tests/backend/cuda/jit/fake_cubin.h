// A file that passes for machine code with a CUDA driver that runs nothing.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heddle::cuda {

/// The names of the kernels that CUDA text defines.
std::vector<std::string> kernels_defined_in(std::string_view text);

/// An ELF file for NVIDIA's GPUs with an empty section ".text.NAME" for each kernel.
std::string fake_cubin(const std::vector<std::string>& kernels);

}  // namespace heddle::cuda
