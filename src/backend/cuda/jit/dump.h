// HEDDLE_DUMP: everything about a kernel in files that people read.
#pragma once

#include <string>

#include "backend/cuda/jit/nvrtc.h"
#include "backend/cuda/jit/record.h"

namespace heddle::cuda::jit {

/// Writes NAME-KEY.cu (the whole source), .log and .json (resources), and what there is of .ptx, .cubin and .sass
/// (where nvdisasm is found) into the folder. `record` is null when the source did not compile. Throws Error(io) when a
/// file cannot be written: the user asked for it.
void dump(const std::string& folder, const Source& source, const std::string& key, const Compilation& compilation,
          const Record* record);

}  // namespace heddle::cuda::jit
