// A language model of characters: an embedding, two blocks, and a linear layer that predicts the next character. It has
// no embedding of positions: where a character stands, only the learned terms of attention's score tell.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention_layer.h"
#include "layers.h"

inline constexpr std::size_t kHidden = 2 * kWidth;

struct Block {
  Parameter qkv{kWidth, 3 * kWidth}, out{kWidth, kWidth}, up{kWidth, kHidden}, down{kHidden, kWidth};
  Parameter slopes{1, kHeads}, table{kBuckets, kHeads};
};

class Model {
 public:
  /// Every value is drawn, and is the same on every machine.
  explicit Model(std::size_t characters);

  /// The mean loss of kBatch windows of kWindow characters. Sets the gradients of all parameters.
  double loss_and_gradients(std::span<const std::uint8_t> characters, std::span<const std::uint8_t> next_characters);

  /// All parameters, each with its name in a file: "embedding", "blocks.0.qkv", "prediction".
  std::vector<std::pair<std::string, Parameter*>> parameters();
  const std::array<Block, 2>& blocks() const { return blocks_; }
  const Matrix& embedding() const { return embedding_.value; }    // [characters, kWidth]
  const Matrix& prediction() const { return prediction_.value; }  // [kWidth, characters]

 private:
  Parameter embedding_, prediction_;
  std::array<Block, 2> blocks_;
  AttentionLayer attention_;
};
