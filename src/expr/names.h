// Sentences about names that mean nothing.
#pragma once

#include <string>
#include <string_view>

#include "heddle/expr.h"

namespace heddle::expr {

/// "unknown name 'kv_idz'; did you mean 'kv_idx'?", or the names that there are.
std::string unknown_name(std::string_view given, const Symbols& symbols);
/// unknown_name for a name that is called.
std::string unknown_function(std::string_view given);

/// heddle::require_name for every name that is given a value.
void require_names(const Bindings& bindings);

}  // namespace heddle::expr
