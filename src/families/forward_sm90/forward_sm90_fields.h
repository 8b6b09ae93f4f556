// The fields of forward_sm90's configuration, one after the other, for texts of it.
#pragma once

#include <string_view>

#include "families/forward_sm90/shared/forward_sm90_config.h"

namespace heddle::plan {

/// Calls visit(name, type, pointer to member) for each field, in order; `type` is spelled as in heddle::shared.
template <class Visit>
void for_each_field(Visit&& visit) {
#define HEDDLE_FIELD(type, name, value) \
  visit(std::string_view(#name), std::string_view(#type), &shared::ForwardSm90Config::name);
#include "families/forward_sm90/shared/forward_sm90_config.def"
#undef HEDDLE_FIELD
}

}  // namespace heddle::plan
