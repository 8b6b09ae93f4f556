#include "model.h"

#include <algorithm>
#include <cmath>

namespace {

/// splitmix64; expected.py draws the same numbers.
class Generator {
 public:
  /// Uniform in [-1, 1), a multiple of 2^-23.
  double next() {
    std::uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return static_cast<double>((z ^ (z >> 31)) >> 40) / (1 << 23) - 1;
  }

 private:
  std::uint64_t state_ = 0;
};

void draw(Parameter& parameter, double most, Generator& generator) {
  for (float& value : parameter.value.values) value = static_cast<float>(generator.next() * most);
}

/// What the backward of one block needs of its forward.
struct BlockStates {
  Normed attention_input;
  Matrix qkv;
  AttentionLayer::Result attention;
  Normed mlp_input;
  Matrix hidden, activated;
};

/// x += out(attention(norm(x))), then x += down(squared_relu(up(norm(x)))).
BlockStates forward(const Block& block, AttentionLayer& attention, Matrix& x) {
  BlockStates states;
  states.attention_input = layer_norm(x);
  states.qkv = multiply(states.attention_input.y, block.qkv.value);
  states.attention = attention.forward(states.qkv, block.slopes, block.table);
  multiply_add(states.attention.o, block.out.value, x);
  states.mlp_input = layer_norm(x);
  states.hidden = multiply(states.mlp_input.y, block.up.value);
  states.activated = squared_relu(states.hidden);
  multiply_add(states.activated, block.down.value, x);
  return states;
}

/// d_x in: the gradient of the block's result. Out: that of its input.
void backward(Block& block, AttentionLayer& attention, const BlockStates& states, Matrix& d_x) {
  Matrix d_hidden = multiply_backward(states.activated, block.down, d_x);
  squared_relu_backward(states.hidden, d_hidden);
  layer_norm_backward(states.mlp_input, multiply_backward(states.mlp_input.y, block.up, d_hidden), d_x);
  const Matrix d_o = multiply_backward(states.attention.o, block.out, d_x);
  const Matrix d_qkv = attention.backward(states.qkv, states.attention, d_o, block.slopes, block.table);
  layer_norm_backward(states.attention_input, multiply_backward(states.attention_input.y, block.qkv, d_qkv), d_x);
}

}  // namespace

Model::Model(std::size_t characters) : embedding_(characters, kWidth), prediction_(kWidth, characters) {
  Generator generator;
  draw(embedding_, 1, generator);
  for (Block& block : blocks_) {
    for (Parameter* weights : {&block.qkv, &block.out, &block.up, &block.down}) {
      draw(*weights, 1 / std::sqrt(static_cast<double>(weights->value.rows)), generator);
    }
    draw(block.slopes, 0.125, generator);
    draw(block.table, 0.125, generator);
  }
  draw(prediction_, 1 / std::sqrt(static_cast<double>(kWidth)), generator);
}

double Model::loss_and_gradients(std::span<const std::uint8_t> characters,
                                 std::span<const std::uint8_t> next_characters) {
  for (const auto& [name, parameter] : parameters()) std::ranges::fill(parameter->gradient.values, 0.0f);

  Matrix x(characters.size(), kWidth);
  for (std::size_t row = 0; row < x.rows; ++row) std::copy_n(embedding_.value[characters[row]], kWidth, x[row]);
  std::array<BlockStates, 2> states;
  for (std::size_t n = 0; n < blocks_.size(); ++n) states[n] = forward(blocks_[n], attention_, x);
  const Normed result = layer_norm(x);
  const CrossEntropy prediction = cross_entropy(multiply(result.y, prediction_.value), next_characters);

  Matrix d_x(x.rows, x.columns);
  layer_norm_backward(result, multiply_backward(result.y, prediction_, prediction.d_logits), d_x);
  for (std::size_t n = blocks_.size(); n-- > 0;) backward(blocks_[n], attention_, states[n], d_x);
  for (std::size_t row = 0; row < x.rows; ++row) {
    float* gradient = embedding_.gradient[characters[row]];
    for (std::size_t i = 0; i < kWidth; ++i) gradient[i] += d_x[row][i];
  }
  return prediction.loss;
}

std::vector<std::pair<std::string, Parameter*>> Model::parameters() {
  std::vector<std::pair<std::string, Parameter*>> all = {{"embedding", &embedding_}};
  for (std::size_t n = 0; n < blocks_.size(); ++n) {
    Block& block = blocks_[n];
    const std::string prefix = "blocks." + std::to_string(n) + ".";
    all.insert(all.end(), {{prefix + "qkv", &block.qkv},
                           {prefix + "out", &block.out},
                           {prefix + "up", &block.up},
                           {prefix + "down", &block.down},
                           {prefix + "slopes", &block.slopes},
                           {prefix + "table", &block.table}});
  }
  all.emplace_back("prediction", &prediction_);
  return all;
}
