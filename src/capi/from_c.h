// The structs of c.h as what the C++ interface takes. Each function throws Error(invalid_argument) that names the
// field.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "heddle/attention.h"
#include "heddle/backward.h"
#include "heddle/c.h"
#include "heddle/partition.h"

/// Shared with the plans that were made with it.
struct heddle_block_mask {
  std::shared_ptr<const heddle::BlockMask> mask;
};

struct heddle_partition {
  heddle::MadePartition made;
};

namespace heddle::capi {

/// Throws Error(invalid_argument).
[[noreturn]] void refuse(const std::string& sentence);
/// Throws "<name> is null; a <type> is accepted".
void require(const void* pointer, std::string_view name, std::string_view type);

TensorView to_view(std::string_view name, const heddle_tensor* tensor);
std::optional<TensorView> to_optional_view(std::string_view name, const heddle_tensor* tensor);

AttentionTensors to_tensors(const heddle_attention_tensors* tensors);
BackwardTensors to_tensors(const heddle_backward_tensors* tensors);
/// Null: the defaults.
AttentionOptions to_options(const heddle_attention_options* options);
/// A field that is 0 or 1; `name`: "options.causal".
bool to_flag(std::string_view name, int number);
/// Null: no names.
Bindings to_bindings(const heddle_bindings* bindings);
/// Null: an empty expression. Errors start with the option's name, as the text is one of several.
Expr to_mod(std::string_view option, const char* text, const Bindings& bindings);

}  // namespace heddle::capi
