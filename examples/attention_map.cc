// Draws who attends to whom: the probabilities of one head. The library returns o = P v, never P itself; with the
// identity for v, o is P.
//
//   attention_map IN.safetensors HEAD FIRST LAST OUT.svg
//
// IN holds q, k [B, H, S, D] and lengths [B]; tokens [FIRST, LAST) of batch entry 0 are drawn, with their words beside
// them where the file's metadata has them ("tokens", separated by spaces).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

#include "heat_map.h"
#include "heddle/heddle.h"

namespace {

/// P of one head over the first `length` tokens: [1, 1, length, length] f32.
heddle::Tensor probabilities(const heddle::TensorFile& file, std::int64_t head, std::int64_t length) {
  const auto one_head = [&](const char* name) {
    const heddle::ConstTensorView all = file.tensors.at(name);
    const auto entry = slice(slice(all, 0, 0, 1), 1, head, head + 1);
    return copy(slice(entry, 2, 0, length), heddle::DType::f32);
  };
  const heddle::Tensor identity = heddle::Tensor::zeros(heddle::DType::f32, {1, 1, length, length});
  for (std::int64_t i = 0; i < length; ++i) static_cast<float*>(identity.data())[i * (length + 1)] = 1;
  return heddle::attention(one_head("q"), one_head("k"), identity).o;
}

std::vector<std::string> words_of(const heddle::TensorFile& file, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kMost = 80;  // more would not be readable
  const auto found = file.metadata.find("tokens");
  if (found == file.metadata.end() || last - first > kMost) return {};
  std::istringstream text(found->second);
  std::vector<std::string> words;
  std::string word;
  for (std::int64_t i = 0; i < last && text >> word; ++i) {
    if (i >= first) words.push_back(word);
  }
  return static_cast<std::int64_t>(words.size()) == last - first ? words : std::vector<std::string>{};
}

void draw(const std::string& input, std::int64_t head, std::int64_t first, std::int64_t last,
          const std::string& output) {
  std::error_code none_yet;
  if (std::filesystem::equivalent(input, output, none_yet)) {
    throw std::runtime_error(fmt::format("OUT.svg: {} is the input", output));
  }
  const heddle::TensorFile file = heddle::load_safetensors(input);
  const auto length = static_cast<std::int64_t>(get_element(file.tensors.at("lengths"), {0}));
  last = std::min(last, length);
  if (first < 0 || first >= last) throw std::runtime_error(fmt::format("FIRST must be in [0, {})", last));
  const heddle::Tensor p = probabilities(file, head, length);

  HeatMap map;
  map.rows = map.columns = last - first;
  map.title = fmt::format("Attention of head {}, tokens {} to {}", head, first, last - 1);
  map.row_axis = "query";
  map.column_axis = "key";
  map.row_names = map.column_names = words_of(file, first, last);
  map.least = "p = 0";
  map.most = "p ≥ 1/4";
  // The square root shows small probabilities; a quarter is already the darkest.
  for (std::int64_t i = first; i < last; ++i) {
    for (std::int64_t j = first; j < last; ++j) {
      map.values.push_back(static_cast<float>(2 * std::sqrt(get_element(p, {0, 0, i, j}))));
    }
  }
  write_heat_map(output, map);
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 6) {
    fmt::print(stderr, "usage: attention_map IN.safetensors HEAD FIRST LAST OUT.svg\n");
    return 2;
  }
  try {
    draw(arguments[1], std::atoll(arguments[2]), std::atoll(arguments[3]), std::atoll(arguments[4]), arguments[5]);
  } catch (const std::exception& error) {
    fmt::print(stderr, "attention_map: {}\n", error.what());
    return 1;
  }
}
