// Integers that mods would not read as they are: the language of mods has i32 alone.
#pragma once

#include <string>

#include "heddle/tensor.h"

namespace heddle::python {

/// Throws invalid_argument, with the capture's name, its value and where it stands, for an element of i64, u64 or u32
/// on the CPU that does not fit i32. It reads each element once. Memory of a GPU is not read: to do so would be to
/// wait.
void refuse_wide_integers(const std::string& name, const ConstTensorView& view);

}  // namespace heddle::python
