// Values of the text of mods when the host compiles it, with the interpreter's transcendentals in place of the
// device's: whole expressions are then equal bit for bit.
#include "backend/device_text/host_program.h"
#include "backend/device_text/value_cases.h"

namespace heddle::device_text::test {

INSTANTIATE_TYPED_TEST_SUITE_P(OnHost, ModValues, HostProgram);
INSTANTIATE_TYPED_TEST_SUITE_P(WideOnHost, ModValues, WideHostProgram);

}  // namespace heddle::device_text::test
