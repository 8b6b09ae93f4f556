// The model of examples/train in double precision, in plain loops and without a cache: what generated text is held
// against. Nothing of Heddle takes part.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "../train/model.h"

/// The logits of the character that follows a whole text.
std::vector<double> exact_logits(const Model& model, std::span<const std::uint8_t> text);
