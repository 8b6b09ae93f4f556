// One name for each operation: generations call the same thing by different names.
#pragma once

#include <string>
#include <string_view>

namespace heddle::amd::simulator {

/// The mnemonic without its encoding (`_e32`, `_e64`, `_dpp`, `_sdwa`), in the words of gfx11: `ds_read_b64` of gfx9 is
/// `ds_load_b64`, `v_max_num_f32` of gfx12 is `v_max_f32`.
std::string canonical_name(std::string_view mnemonic);

}  // namespace heddle::amd::simulator
