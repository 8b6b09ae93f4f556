// Is a run's memory where its views say?
#pragma once

#include "heddle/attention.h"

namespace heddle::engine {

/// Asks the driver about each tensor of a run on a GPU. Throws invalid_argument, naming the first that is elsewhere:
/// what a kernel reads or writes there would fault long after the run returned.
void check_pointers(const AttentionTensors& tensors, int device);

}  // namespace heddle::engine
