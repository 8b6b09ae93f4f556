// The .cuh files of this folder, as text inside the program (cmake/embed_text.cmake).
#pragma once

#include "backend/device_code/embedded_text.h"

namespace heddle::bench {

const device_code::EmbeddedText* hopper_texts();

}  // namespace heddle::bench
