// Trains a small language model of characters on the CPU, through Heddle's public interface alone.
//
//   train_model TEXT STEPS LOSSES.txt [EXPECTED.txt OUT.svg] [--save MODEL.safetensors]
//
//   build/release/bin/train_model examples/data/text.txt 300 losses.txt examples/train/expected_losses.txt losses.svg
//
// The model (model.h) has two blocks of attention and MLP. Each block learns its own score function: a slope of the
// distance for each head (capture `slopes`) and a table of buckets of distances (capture `table`). attention_layer.cc
// has all that concerns attention: the mod is written once, and attention_backward_into() gives the gradients of q, k,
// v, slopes and table. The other layers (layers.h) and Adam are plain loops.
//
// LOSSES.txt gets a line a step: the step, its loss before the update, and what the blocks learned so far (each head's
// slope, and the root of the mean square of the table). EXPECTED.txt has the same of expected.py, which trains the same
// model from the same numbers in double precision, with gradients by PyTorch's autograd. OUT.svg shows both curves.
// MODEL.safetensors is what examples/generate generates text with.
//
// 300 steps take 2.5 s of one core (AVX2). In them the two curves differ by at most 3.3e-7 nats a character.
#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "heddle/heddle.h"
#include "loss_curves.h"
#include "model.h"
#include "model_file.h"

namespace {

/// The text as numbers of its characters, which are those of its bytes that occur, in order.
struct Text {
  std::vector<std::uint8_t> characters;
  std::string kinds;
};

Text read_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file || bytes.size() <= kWindow) {
    throw std::runtime_error(fmt::format("{}: more than {} bytes are accepted", path, kWindow));
  }
  std::array<std::uint8_t, 256> number{};
  for (const char byte : bytes) number[static_cast<std::uint8_t>(byte)] = 1;
  Text text;
  for (std::size_t byte = 0; byte < number.size(); ++byte) {
    if (number[byte] == 0) continue;
    number[byte] = static_cast<std::uint8_t>(text.kinds.size());
    text.kinds += static_cast<char>(byte);
  }
  for (const char byte : bytes) text.characters.push_back(number[static_cast<std::uint8_t>(byte)]);
  return text;
}

/// Adam with the usual decay rates and a constant learning rate.
class Adam {
 public:
  explicit Adam(const std::vector<std::pair<std::string, Parameter*>>& parameters) {
    for (const auto& [name, one] : parameters) {
      parameters_.push_back(one);
      first_.emplace_back(one->value.values.size());
      second_.emplace_back(one->value.values.size());
    }
  }

  void update() {
    constexpr double kRate = 3e-3, kFirst = 0.9, kSecond = 0.999, kEpsilon = 1e-8;
    ++updates_;
    const double first_scale = 1 / (1 - std::pow(kFirst, updates_));
    const double second_scale = 1 / (1 - std::pow(kSecond, updates_));
    for (std::size_t n = 0; n < parameters_.size(); ++n) {
      for (std::size_t i = 0; i < first_[n].size(); ++i) {
        const double gradient = parameters_[n]->gradient.values[i];
        first_[n][i] = kFirst * first_[n][i] + (1 - kFirst) * gradient;
        second_[n][i] = kSecond * second_[n][i] + (1 - kSecond) * gradient * gradient;
        const double step = kRate * first_[n][i] * first_scale / (std::sqrt(second_[n][i] * second_scale) + kEpsilon);
        parameters_[n]->value.values[i] -= static_cast<float>(step);
      }
    }
  }

 private:
  std::vector<Parameter*> parameters_;
  std::vector<std::vector<double>> first_, second_;  // moments
  int updates_ = 0;
};

/// Windows that start all over the text; expected.py takes the same.
struct Windows {
  std::vector<std::uint8_t> characters, next_characters;
};

Windows windows_of(const Text& text, std::size_t step) {
  Windows windows;
  for (std::size_t n = 0; n < kBatch; ++n) {
    const std::size_t start = (step * kBatch + n) * 997 % (text.characters.size() - kWindow);
    const auto first = text.characters.begin() + static_cast<std::ptrdiff_t>(start);
    windows.characters.insert(windows.characters.end(), first, first + kWindow);
    windows.next_characters.insert(windows.next_characters.end(), first + 1, first + 1 + kWindow);
  }
  return windows;
}

/// A step's line of LOSSES.txt.
std::string line_of(std::size_t step, double loss, const Model& model) {
  std::string line = fmt::format("{} {:.7f}", step, loss);
  for (const Block& block : model.blocks()) {
    for (const float slope : block.slopes.value.values) line += fmt::format(" {:.7f}", slope);
    double squares = 0;
    for (const double value : block.table.value.values) squares += value * value;
    line += fmt::format(" {:.7f}", std::sqrt(squares / static_cast<double>(block.table.value.values.size())));
  }
  return line + "\n";
}

/// The losses of a file of such lines; those that begin with # are left out.
std::vector<double> losses_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error(fmt::format("{}: cannot be read", path));
  std::vector<double> losses;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream fields(line);
    double step = 0, loss = 0;
    if (!(fields >> step >> loss)) throw std::runtime_error(fmt::format("{}: \"{}\" has no loss", path, line));
    losses.push_back(loss);
  }
  if (losses.empty()) throw std::runtime_error(fmt::format("{}: has no losses", path));
  return losses;
}

constexpr const char* kColumns =
    "step loss, of each block: slope of head 0, slope of head 1, root mean square of the table";

std::vector<double> train(const Text& text, std::size_t steps, const std::string& output, Model& model) {
  Adam adam(model.parameters());
  fmt::print("{} characters of {} kinds; {}\n", text.characters.size(), text.kinds.size(), kColumns);
  std::string lines = fmt::format("# {}\n", kColumns);
  std::vector<double> losses;
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t step = 0; step < steps; ++step) {
    const Windows windows = windows_of(text, step);
    losses.push_back(model.loss_and_gradients(windows.characters, windows.next_characters));
    const std::string line = line_of(step, losses.back(), model);
    lines += line;
    if (step % 20 == 0 || step + 1 == steps) fmt::print("{}", line);
    adam.update();
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print("{} steps took {:.1f} s\n", steps, seconds.count());
  heddle::save_text(output, lines);
  return losses;
}

}  // namespace

int main(int count, char** arguments) {
  const bool saves = count > 5 && arguments[count - 2] == std::string_view("--save");
  const char* saved = saves ? arguments[count - 1] : nullptr;
  if (saves) count -= 2;
  if (count != 4 && count != 6) {
    fmt::print(stderr, "usage: train_model TEXT STEPS LOSSES.txt [EXPECTED.txt OUT.svg] [--save MODEL.safetensors]\n");
    return 2;
  }
  try {
    const int steps = std::atoi(arguments[2]);
    if (steps < 1) throw std::runtime_error(fmt::format("STEPS must be at least 1, but is {}", arguments[2]));
    const Text text = read_text(arguments[1]);
    Model model(text.kinds.size());
    const std::vector<double> losses = train(text, static_cast<std::size_t>(steps), arguments[3], model);
    if (saves) save_model(saved, model, text.kinds);
    if (count == 6) {
      write_loss_curves(arguments[5], {"Heddle, f32", losses}, {"PyTorch, double precision", losses_of(arguments[4])});
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "train_model: {}\n", error.what());
    return 1;
  }
}
