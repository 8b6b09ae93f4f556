// Damaged files: cut at every length, every bit flipped, and seeded mutations through the fuzzer's entry.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "files/golden.h"
#include "files/npy.h"
#include "files/safetensors.h"
#include "heddle/error.h"
#include "sample.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace heddle {
namespace {

/// The fuzzer's input: the format's byte, then the file.
std::vector<std::string> valid_inputs() {
  return {std::string(1, '\0') + kGoldenSafetensors, "\1" + kGoldenNpyFloat, "\1" + kGoldenNpyFortran,
          "\1" + kGoldenNpyBool, "\1" + kGoldenNpyScalar};
}

bool loads(const std::string& input) {
  // A copy of exactly this size, so that a sanitizer sees a read behind the end.
  const std::vector<std::byte> bytes(std::as_bytes(std::span(input)).begin() + 1,
                                     std::as_bytes(std::span(input)).end());
  try {
    if (input[0] == 0) {
      files::read_safetensors(files::MemorySource(bytes));
    } else {
      files::read_npy(files::MemorySource(bytes));
    }
    return true;
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::io || error.code() == ErrorCode::unsupported) << error.what();
    EXPECT_TRUE(std::string(error.what()).starts_with("cannot read memory: ")) << error.what();
    return false;
  }
}

void fuzz(const std::string& input) {
  const std::vector<std::uint8_t> bytes(input.begin(), input.end());
  LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
}

TEST(DamagedFiles, CutAtEveryLengthAreRefused) {
  for (const std::string& input : valid_inputs()) {
    EXPECT_TRUE(loads(input));
    for (std::size_t size = 1; size < input.size(); ++size) EXPECT_FALSE(loads(input.substr(0, size))) << size;
    EXPECT_FALSE(loads(input + '\0'));
  }
}

TEST(DamagedFiles, WithOneBitFlippedAreRefusedOrReadWhole) {
  for (std::string input : valid_inputs()) {
    for (std::size_t bit = 8; bit < 8 * input.size(); bit += test::is_reduced() ? 5 : 1) {
      input[bit / 8] = static_cast<char>(input[bit / 8] ^ (1 << bit % 8));
      loads(input);
      fuzz(input);
      input[bit / 8] = static_cast<char>(input[bit / 8] ^ (1 << bit % 8));
    }
  }
}

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::string mutate(std::string input) {
    for (std::size_t count = 1 + below(3); count > 0; --count) mutate_once(input);
    return input;
  }

 private:
  std::size_t below(std::size_t n) { return n == 0 ? 0 : static_cast<std::size_t>(random_() % n); }

  void mutate_once(std::string& input) {
    static const std::vector<std::string> kPieces{"0",
                                                  "1",
                                                  "8",
                                                  "9223372036854775807",
                                                  "9223372036854775808",
                                                  "18446744073709551615",
                                                  "-1",
                                                  "1e3",
                                                  ",",
                                                  ":",
                                                  "[",
                                                  "]",
                                                  "{",
                                                  "}",
                                                  "\"",
                                                  "\\u0041",
                                                  "()",
                                                  "null",
                                                  "\"U8\"",
                                                  "\"F4\"",
                                                  "'<f8'",
                                                  "True",
                                                  "'",
                                                  "[0,1]",
                                                  "[]",
                                                  "{}",
                                                  " ",
                                                  "\n",
                                                  "\"a\":",
                                                  "\xff",
                                                  "(",
                                                  "(1,)"};
    const std::size_t at = 1 + below(input.size() - 1);
    const std::size_t length = 1 + below(std::min<std::size_t>(12, input.size() - at));
    switch (below(7)) {
      case 0:
        input[at] = static_cast<char>(input[at] ^ (1 << below(8)));
        break;
      case 1:
        input[at] = static_cast<char>(random_());
        break;
      case 2:
        input.insert(at, kPieces[below(kPieces.size())]);
        break;
      case 3:
        if (input.size() > length + 2) input.erase(at, length);
        break;
      case 4:
        input.insert(1 + below(input.size() - 1), input.substr(at, length));
        break;
      case 5: {
        // Another number of the same length passes the parser and reaches the checks behind it.
        const std::size_t digit = input.find_first_of("0123456789", at);
        if (digit != std::string::npos) input[digit] = static_cast<char>('0' + below(10));
        break;
      }
      default:
        input.replace(at, length, kPieces[below(kPieces.size())]);
    }
    if (below(2) == 0) repair_length(input);
  }

  /// Makes the header's length fit again, without which few mutations of the text would reach the parser.
  void repair_length(std::string& input) {
    if (input[0] != 0 || input.size() < 10) return;
    const std::size_t close = input.rfind("}}");
    if (close == std::string::npos || close < 9) return;
    const std::size_t length = close + 2 - 9;
    for (std::size_t i = 0; i < 8; ++i) input[1 + i] = static_cast<char>(length >> (8 * i));
  }

  std::mt19937_64 random_;
};

TEST(DamagedFiles, MutatedAreRefusedOrReadWhole) {
  const std::vector<std::string> inputs = valid_inputs();
  Mutator mutator(20240917);
  int loaded = 0;
  for (int round = 0; round < 6000; ++round) {
    const std::string input = mutator.mutate(inputs[static_cast<std::size_t>(round) % inputs.size()]);
    loaded += loads(input) ? 1 : 0;
    fuzz(input);
  }
  // Both outcomes occur, so that the mutations are neither harmless nor hopeless.
  EXPECT_GT(loaded, 50);
  EXPECT_LT(loaded, 5000);
}

}  // namespace
}  // namespace heddle
