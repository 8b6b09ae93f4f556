#include "backend/cuda/emit/copied_rows.h"

#include "backend/device_code/headers.h"

namespace heddle::cuda::emit {

jit::Source copied_rows(const std::string& architecture) {
  return {.name = "copy_rows",
          .text = "#include \"around/copied_rows.cuh\"\n",
          .headers = device_code::cuda_headers(),
          .architecture = architecture};
}

}  // namespace heddle::cuda::emit
