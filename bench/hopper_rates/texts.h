// The .cuh files of this folder, as text inside the program (cmake/embed_text.cmake).
#pragma once

#include "backend/cuda/emit/embedded_text.h"

namespace heddle::bench {

const cuda::emit::EmbeddedText* hopper_texts();

}  // namespace heddle::bench
