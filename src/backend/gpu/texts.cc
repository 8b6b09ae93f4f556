#include "backend/gpu/texts.h"

#include <fmt/format.h>

namespace heddle::gpu {

KernelText merge_states_text(shared::StorageType parts, shared::StorageType output) {
  return {.name = fmt::format("merge_states {} {}", shared::name(parts), shared::name(output)),
          .text = fmt::format("#include \"shared/merge_params.h\"\n\n"
                              "namespace heddle::merge {{\n"
                              "constexpr shared::StorageType kPartsType = shared::StorageType::{}, "
                              "kOutputType = shared::StorageType::{};\n"
                              "}}  // namespace heddle::merge\n\n"
                              "#include \"around/merge_states_kernel.cuh\"\n",
                              shared::name(parts), shared::name(output))};
}

KernelText append_kv_text(const AppendTypes& types) {
  KernelText text = {.name = "append_kv", .text = "#include \"shared/storage.h\"\n\nnamespace heddle::append {\n"};
  const auto add = [&](const char* constant, shared::StorageType type) {
    text.name += fmt::format(" {}", shared::name(type));
    text.text +=
        fmt::format("constexpr shared::StorageType {} = shared::StorageType::{};\n", constant, shared::name(type));
  };
  add("kNewType", types.rows);
  add("kKeysType", types.keys);
  add("kValuesType", types.values);
  add("kQueriesType", types.queries);
  add("kAnglesType", types.angles);
  text.text += "}  // namespace heddle::append\n\n#include \"around/append_kv_kernel.cuh\"\n";
  return text;
}

KernelText move_rows_text(const MoveTypes& types) {
  return {.name = fmt::format("move_rows {} {}{}", shared::name(types.from), shared::name(types.to),
                              types.adds ? " adds" : ""),
          .text = fmt::format("#include \"shared/storage.h\"\n\n"
                              "namespace heddle::move {{\n"
                              "constexpr shared::StorageType kFromType = shared::StorageType::{}, "
                              "kToType = shared::StorageType::{};\n"
                              "constexpr bool kAdds = {};\n"
                              "}}  // namespace heddle::move\n\n"
                              "#include \"around/move_rows_kernel.cuh\"\n",
                              shared::name(types.from), shared::name(types.to), types.adds)};
}

KernelText sequences_text() { return {.name = "sequences", .text = "#include \"around/sequences_kernels.cuh\"\n"}; }

}  // namespace heddle::gpu
