// How kernels are written for the compiler of one vendor: the words in which CUDA and HIP differ.
#pragma once

#include <string>
#include <vector>

#include "backend/jit/source.h"

namespace heddle::gpu {

struct Dialect {
  const char* begin;            // stands first in every source
  const char* params;           // before the type of a kernel's parameters, a struct
  const char *cta, *ctas;       // expressions, int: a CTA's number, and how many a launch has
  bool kernels_declare_memory;  // the shared memory's bytes stand in the kernel; else a launch asks for them
  const std::vector<jit::Header>& (*headers)();  // the library's device code, as the vendor's kernels include it

  /// Launch bounds of a kernel whose configuration, a constant of the source, is called `config`. `waves`: that share a
  /// SIMD of an AMD GPU; 0: as many as fit.
  std::string bounds(const std::string& config, int waves) const;
  /// Declares `memory`, char[bytes], in shared memory, at a multiple of `alignment` bytes.
  std::string memory(int bytes, int alignment = 128) const;
  jit::Source source(std::string name, const std::string& text, const std::string& architecture) const;
};

const Dialect& cuda_dialect();
const Dialect& hip_dialect();

}  // namespace heddle::gpu
