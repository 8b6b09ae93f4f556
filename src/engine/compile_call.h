// Compiles the kernels of a call for a GPU that need not be here.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string_view>

namespace heddle::engine {

/// Everything that planning and preparing the call on that GPU compiles, up to the kernel that it takes: kernels that
/// the compiler does not make well, kernels beside attention, and those that find a mask's rows. `gpu`: as
/// device::with_known_gpu(). Throws as read_call() and as planning on that GPU would.
void compile_call(const nlohmann::ordered_json& call, std::string_view gpu);

}  // namespace heddle::engine
