// Texts of mods of older versions are read, and mean what they did. To add one: append a line without `=>` to the
// newest list of tests/expr/kept_texts; this test fails and says what the line's values are.
#include <gtest/gtest.h>

#include <array>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <variant>
#include <vector>

#include "expr/interpret.h"
#include "expr/node.h"
#include "heddle/expr.h"
#include "heddle/tensor.h"

namespace heddle::expr {
namespace {

template <class T>
Tensor filled(DType dtype, const Dims& shape, T (*value)(std::int64_t)) {
  Tensor made = Tensor::empty(dtype, shape);
  for (std::int64_t i = 0; i < made.count(); ++i) static_cast<T*>(made.data())[i] = value(i);
  return made;
}

/// Values of every name that a text may have.
struct Names {
  Tensor slopes = filled<float>(DType::f32, {4}, [](std::int64_t i) { return 0.5F / static_cast<float>(i + 1); });
  Tensor bias =
      filled<float>(DType::f32, {4, 16}, [](std::int64_t i) { return 0.25F * static_cast<float>(i % 7) - 1; });
  Tensor gain = filled<float>(DType::f32, {}, [](std::int64_t) { return 1.5F; });
  Tensor documents = filled<std::int64_t>(DType::i64, {16}, [](std::int64_t i) { return i / 6; });
  Tensor open = filled<bool>(DType::boolean, {16}, [](std::int64_t i) { return i % 3 == 0; });
  Bindings bindings{{{"slopes", slopes}, {"bias", bias}, {"gain", gain}, {"documents", documents}, {"open", open}},
                    {{"alpha", 0.75}, {"window", std::int32_t{5}}, {"seed", std::int32_t{3}}, {"enabled", true}}};
};

std::array<Element, 2> elements() {
  Element near, far;
  near.score = 1.25, far.score = 0.375;
  const auto set = [](Element& element, std::array<std::int32_t, 10> index) {
    std::size_t i = 0;
    for (const Leaf leaf : {Leaf::b, Leaf::h, Leaf::q_idx, Leaf::kv_idx, Leaf::q_token, Leaf::kv_token, Leaf::q_len,
                            Leaf::kv_len, Leaf::q_start, Leaf::kv_start}) {
      element[leaf] = index[i++];
    }
  };
  set(near, {0, 1, 7, 6, 17, 26, 12, 14, 2, 1});
  set(far, {2, 3, 3, 11, 3, 11, 16, 16, 0, 0});
  return {near, far};
}

std::string text_of(const Value& value) {
  if (const bool* truth = std::get_if<bool>(&value)) return *truth ? "True" : "False";
  if (const std::int32_t* number = std::get_if<std::int32_t>(&value)) return std::to_string(*number);
  std::array<char, 32> digits{};
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), static_cast<float>(std::get<double>(value)));
  const std::string text(digits.data(), end.ptr);
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;  // unlike an i32
}

/// C's functions may round another way elsewhere: four units in the last place.
bool agrees(const std::string& kept, const std::string& now) {
  if (kept == now) return true;
  if (kept.find_first_of(".e") == std::string::npos || now.find_first_of(".e") == std::string::npos) return false;
  const float x = std::stof(kept), y = std::stof(now);
  return std::abs(x - y) <= 4 * 1.2e-7F * std::abs(x);
}

struct Line {
  std::string text, values;
};

std::vector<Line> lines_of(const std::filesystem::path& file) {
  std::ifstream stream(file);
  std::vector<Line> lines;
  std::string line;
  while (std::getline(stream, line)) {
    if (line.empty() || line.starts_with('#')) continue;
    const std::size_t arrow = line.find(" => ");
    lines.push_back({line.substr(0, arrow), arrow == std::string::npos ? "" : line.substr(arrow + 4)});
  }
  return lines;
}

std::vector<std::filesystem::path> lists() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(HEDDLE_SOURCE_DIR "/tests/expr/kept_texts")) {
    files.push_back(entry.path());
  }
  return files;
}

TEST(KeptTexts, MeanWhatTheyDid) {
  const Names names;
  const Symbols symbols(names.bindings);
  const auto [near, far] = elements();
  for (const auto& file : lists()) {
    const std::vector<Line> lines = lines_of(file);
    EXPECT_GT(lines.size(), 100U) << file;
    for (const Line& line : lines) {
      Expr e;
      ASSERT_NO_THROW(e = parse(line.text, symbols)) << line.text;
      const Interpreter interpret(e, names.bindings, Precision::f32);
      const std::string first = text_of(interpret(near)), second = text_of(interpret(far));
      const std::size_t bar = line.values.find(" | ");
      const bool holds = bar != std::string::npos && agrees(line.values.substr(0, bar), first) &&
                         agrees(line.values.substr(bar + 3), second);
      EXPECT_TRUE(holds) << file.filename() << " has\n"
                         << line.text << " => " << line.values << "\nand now it is\n"
                         << line.text << " => " << first << " | " << second;
      EXPECT_TRUE(same(parse(print(e), symbols), e)) << line.text;
    }
  }
}

TEST(KeptTexts, HaveEveryOperationAndLeaf) {
  const Names names;
  const Symbols symbols(names.bindings);
  std::array<bool, kOpCount> has{};
  std::array<bool, kLeafCount> has_leaf{};
  for (const auto& file : lists()) {
    for (const Line& line : lines_of(file)) {
      const Expr e = parse(line.text, symbols);
      for (const Node* node : post_order(e)) {
        has[static_cast<std::size_t>(node->op)] = true;
        if (node->op == Op::leaf) has_leaf[static_cast<std::size_t>(node->leaf())] = true;
      }
    }
  }
  for (int i = 0; i < kOpCount; ++i) EXPECT_TRUE(has[static_cast<std::size_t>(i)]) << "operation " << i;
  for (int i = 0; i < kLeafCount; ++i) {
    EXPECT_TRUE(has_leaf[static_cast<std::size_t>(i)]) << name(static_cast<Leaf>(i));
  }
}

}  // namespace
}  // namespace heddle::expr
