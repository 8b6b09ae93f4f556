#include "backend/cuda/emit/stored_mask.h"

#include <fmt/format.h>

#include "backend/cuda/emit/embedded.h"

namespace heddle::cuda::emit {

jit::Source stored_mask(const Expr& mask, const ModLayout& layout) {
  return {.name = "stored_mask",
          .text = fmt::format("#include \"shared/stored_mask.h\"\n\n"
                              "constexpr bool kBySequence = {};\n\n{}\n"
                              "#include \"families/stored_mask.cuh\"\n",
                              layout.by_sequence, mod_text("mask", mask, layout, TakesScore::no)),
          .headers = embedded_headers()};
}

}  // namespace heddle::cuda::emit
