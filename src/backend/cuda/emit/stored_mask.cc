#include "backend/cuda/emit/stored_mask.h"

#include <fmt/format.h>

#include "backend/device_code/headers.h"

namespace heddle::cuda::emit {

jit::Source stored_mask(const Expr& mask, const device_text::ModLayout& layout, const std::string& architecture) {
  return {
      .name = "stored_mask",
      .text = fmt::format("#include \"shared/stored_mask.h\"\n\n"
                          "constexpr bool kBySequence = {};\n\n{}\n"
                          "#include \"around/stored_mask.cuh\"\n",
                          layout.by_sequence, device_text::mod_text("mask", mask, layout, device_text::TakesScore::no)),
      .headers = device_code::cuda_headers(),
      .architecture = architecture};
}

}  // namespace heddle::cuda::emit
