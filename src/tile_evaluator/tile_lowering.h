// From an expression to the program that computes it over tiles.
#pragma once

#include "tile_evaluator/tile_program.h"

namespace heddle::cpu {

/// `diagonal_comparisons`: whether to use guards. The program without them is for every tile.
Program lower(const Expr& root, bool diagonal_comparisons);

}  // namespace heddle::cpu
