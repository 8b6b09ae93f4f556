#include "backend/cuda/emit/merge_states.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

#include "backend/cuda/emit/embedded.h"

namespace heddle::cuda::emit {
namespace {

constexpr std::array<std::string_view, 7> kTypes = {"f64", "f32", "f16", "bf16", "e4m3", "e5m2", "mixed"};
std::string_view text_of(shared::StorageType type) { return kTypes[static_cast<std::size_t>(type)]; }

}  // namespace

jit::Source merge_states(shared::StorageType parts, shared::StorageType output, const std::string& architecture) {
  return {.name = fmt::format("merge_states {} {}", text_of(parts), text_of(output)),
          .text = fmt::format("#include \"shared/merge_states.h\"\n\n"
                              "namespace heddle::merge {{\n"
                              "constexpr shared::StorageType kPartsType = shared::StorageType::{}, "
                              "kOutputType = shared::StorageType::{};\n"
                              "}}  // namespace heddle::merge\n\n"
                              "#include \"families/merge_states.cuh\"\n",
                              text_of(parts), text_of(output)),
          .headers = embedded_headers(),
          .architecture = architecture};
}

}  // namespace heddle::cuda::emit
