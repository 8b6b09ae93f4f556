#include "backend/gpu/texts.h"

#include <fmt/format.h>

#include <array>
#include <string_view>

namespace heddle::gpu {
namespace {

constexpr std::array<std::string_view, 7> kTypes = {"f64", "f32", "f16", "bf16", "e4m3", "e5m2", "mixed"};
std::string_view text_of(shared::StorageType type) { return kTypes[static_cast<std::size_t>(type)]; }

}  // namespace

KernelText merge_states_text(shared::StorageType parts, shared::StorageType output) {
  return {.name = fmt::format("merge_states {} {}", text_of(parts), text_of(output)),
          .text = fmt::format("#include \"shared/merge_states.h\"\n\n"
                              "namespace heddle::merge {{\n"
                              "constexpr shared::StorageType kPartsType = shared::StorageType::{}, "
                              "kOutputType = shared::StorageType::{};\n"
                              "}}  // namespace heddle::merge\n\n"
                              "#include \"around/merge_states.cuh\"\n",
                              text_of(parts), text_of(output))};
}

KernelText append_kv_text(const AppendTypes& types) {
  KernelText text = {.name = "append_kv",
                     .text = "#include \"shared/eight_columns.h\"\n\nnamespace heddle::append {\n"};
  const auto add = [&](const char* constant, shared::StorageType type) {
    text.name += fmt::format(" {}", text_of(type));
    text.text += fmt::format("constexpr shared::StorageType {} = shared::StorageType::{};\n", constant, text_of(type));
  };
  add("kNewType", types.rows);
  add("kKeysType", types.keys);
  add("kValuesType", types.values);
  add("kQueriesType", types.queries);
  add("kAnglesType", types.angles);
  text.text += "}  // namespace heddle::append\n\n#include \"around/append_kv.cuh\"\n";
  return text;
}

KernelText sequences_text() { return {.name = "sequences", .text = "#include \"around/sequences.cuh\"\n"}; }

}  // namespace heddle::gpu
