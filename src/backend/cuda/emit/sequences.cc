#include "backend/cuda/emit/sequences.h"

#include "backend/cuda/emit/embedded.h"

namespace heddle::cuda::emit {

jit::Source sequences(const std::string& architecture) {
  return {.name = "sequences",
          .text = "#include \"families/sequences.cuh\"\n",
          .headers = embedded_headers(),
          .architecture = architecture};
}

}  // namespace heddle::cuda::emit
