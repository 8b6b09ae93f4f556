// A place where a mod reads a capture or a param whose gradient is asked for, as device code.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "backend/device_text/expression_text.h"

namespace heddle::device_text {

/// In namespace heddle, for number 3 and reals of the layout: struct Read3, with kNumber, kAxes, the lines of
/// `constants`, and
///
///   using Slope = ...;  // with uniform(), row() and column(), as those of a mod
///   Real slope(mod, u, r, c, score, b, h, q_idx, kv_idx);         // of the mod by what is read
///   void index(mod, score, b, h, q_idx, kv_idx, int (&index)[4]);  // where it is read: kAxes indices
std::string read_text(std::size_t number, const Expr& slope, const std::vector<Expr>& indices,
                      const std::string& constants, const ModLayout& layout);

}  // namespace heddle::device_text
