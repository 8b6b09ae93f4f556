// Refusals of ready-made mods: each names the argument, what was given and what is accepted.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "heddle/expr.h"

namespace heddle::mods {

inline constexpr std::int64_t kIntMax = std::numeric_limits<std::int32_t>::max();

[[noreturn]] void refuse(const std::string& sentence);
/// An integer argument as a literal.
Expr literal(std::string_view argument, std::int64_t value, std::int64_t least, std::int64_t largest = kIntMax);
void require_i32(std::string_view argument, const Expr& x);
void require_integers(std::string_view argument, const Capture& capture, int least_rank, int largest_rank);
void require_reals(std::string_view argument, const Capture& capture, int rank);

}  // namespace heddle::mods
