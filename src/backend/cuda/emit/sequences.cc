#include "backend/cuda/emit/sequences.h"

#include "backend/cuda/emit/embedded.h"

namespace heddle::cuda::emit {

jit::Source sequences() {
  return {.name = "sequences", .text = "#include \"families/sequences.cuh\"\n", .headers = embedded_headers()};
}

}  // namespace heddle::cuda::emit
