// A product of matrices on Hopper's tensor cores as the instruction of its shape: its list of operands is as long as a
// tile is wide, so it is written for the tile at hand.
#pragma once

#include <string>

namespace heddle::cuda::emit {

/// d = a b, or d += a b: 64 rows of `columns` f32 numbers.
struct Product {
  std::string name, parameters, a_operand, inputs;
  int columns, input_count;  // operands after d; `accumulate` is the last
  std::string types;         // of a and b: "bf16.bf16"
  std::string immediates;    // after the predicate: signs of a and b, then in 16 bits which operands are transposed
};

/// `void NAME(float (&d)[columns / 2], PARAMETERS)`, which issues the product; b's descriptor and `accumulate` are its
/// last parameters. `step`: columns of a and rows of b that the instruction multiplies.
std::string product_text(const Product& product, int step);

/// The text "%4, %5, %6" of `count` operands, from number `first` on.
std::string operands(int first, int count);

}  // namespace heddle::cuda::emit
