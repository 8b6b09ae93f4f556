// What the text of mods gives on a GPU.
#include "backend/cuda/emit/device_program.h"
#include "backend/cuda/emit/value_cases.h"

namespace heddle::cuda::emit::test {

INSTANTIATE_TYPED_TEST_SUITE_P(OnGpu, ModValues, DeviceProgram);

}  // namespace heddle::cuda::emit::test
