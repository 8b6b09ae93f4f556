// Seeded mutations of good texts through the fuzz target, which aborts when something does not hold.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <string>

#include "expr/random_expression.h"
#include "sample.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace heddle {
namespace {

constexpr std::array<std::string_view, 44> kPieces = {
    "score", "kv_idx", "q_idx", "slopes[", "table[", "doc[h]", "open[b]", "gain", "window", "alpha", "enabled",
    "(",     ")",      "[",     "]",       ",",      " ",      "+",       "-",    "*",      "/",     "//",
    "%",     "**",     "<",     "<=",      "==",     "!=",     "&",       "|",    "^",      "~",     " and ",
    " or ",  " not ",  " if ",  " else ",  "min(",   "at(",    "where(",  "1e9",  "0.5",    "-1",    "\xC3\xA9"};

class Mutations {
 public:
  explicit Mutations(std::uint64_t seed) : random_(seed) {}

  std::string next() {
    std::string text = random_.below(3) == 0 ? soup() : print(random_.draw(30));
    for (int edits = random_.below(4); edits > 0; --edits) mutate(text);
    return text;
  }

 private:
  std::string soup() {
    std::string text;
    for (int i = random_.below(12); i >= 0; --i) text += piece();
    return text;
  }
  std::string_view piece() { return kPieces[static_cast<std::size_t>(random_.below(kPieces.size()))]; }
  std::size_t offset(const std::string& text) {
    return static_cast<std::size_t>(random_.below(static_cast<int>(text.size()) + 1));
  }

  void mutate(std::string& text) {
    const std::size_t at = offset(text);
    switch (random_.below(5)) {
      case 0:
        text.insert(at, piece());
        break;
      case 1:
        text.erase(at, 1 + static_cast<std::size_t>(random_.below(6)));
        break;
      case 2:
        text.insert(at, 1, static_cast<char>(random_.below(256)));
        break;
      case 3:
        text.insert(at, text.substr(offset(text), static_cast<std::size_t>(random_.below(20))));
        break;
      default:
        text.insert(at, 300, '(');
    }
  }

  test::RandomExpressions random_;
};

TEST(FuzzParse, MutatedTextsAreReadOrRefused) {
  Mutations mutations(1234);
  for (int i = 0; i < heddle::test::random_cases(5000); ++i) {
    const std::string text = mutations.next();
    LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  }
}

TEST(FuzzParse, LongTextsAreReadOrRefused) {
  for (const std::string_view piece : {"h+", "h<", "not ", "-", "(", "[", "slopes[", "min(h,", "h**",
                                       "h if enabled else ", "clip(", "1", ".", "e", "\xFF", "\t", "zz"}) {
    for (const std::size_t size : {std::size_t{2000}, std::size_t{65536}, std::size_t{65537}}) {
      std::string text;
      while (text.size() + piece.size() <= size) text += piece;
      text += std::string(size - text.size(), ' ');
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
    }
  }
}

}  // namespace
}  // namespace heddle
