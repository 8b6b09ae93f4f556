// The facts of a GPU kernel that explain() shows.
#pragma once

#include <string>

#include "backend/gpu/gpu.h"
#include "base/json_tree.h"

namespace heddle::gpu {

/// `summary`: its launches, shown after the kernel's name. `code`: the first of its programs.
base::JsonTree kernel_facts(const Gpu& gpu, const jit::Source& source, const jit::MachineCode& code,
                            const std::string& summary, std::size_t list_bytes);

}  // namespace heddle::gpu
