// The facts of a GPU kernel that explain() shows.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "backend/gpu/gpu.h"

namespace heddle::gpu {

/// `summary`: its launches, shown after the kernel's name. `code`: the first of its programs.
nlohmann::ordered_json kernel_facts(const Gpu& gpu, const jit::Source& source, const jit::MachineCode& code,
                                    const std::string& summary, std::size_t list_bytes);

}  // namespace heddle::gpu
