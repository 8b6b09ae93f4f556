#include "base/hash.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace heddle::base {
namespace {

std::uint64_t hash_text(const std::string& text, std::uint64_t seed = 0) {
  return hash_bytes(text.data(), text.size(), seed);
}

TEST(Hash, KnownAnswersOfXxh64) {
  EXPECT_EQ(hash_bytes(nullptr, 0), 0xef46db3751d8e999u);
  EXPECT_EQ(hash_text("a"), 0xd24ec4f1a98c6e5bu);
  EXPECT_EQ(hash_text("abc"), 0x44bc2cf5ad770999u);
  EXPECT_EQ(hash_text("Nobody inspects the spammish repetition"), 0xfbcea83c8a378bf1u);
  EXPECT_EQ(hash_text("xxhash", 20141025), 0xb559b98d844e0635u);
}

TEST(Hash, EveryLengthAndEveryBitCounts) {
  std::mt19937_64 random(5);
  std::vector<unsigned char> bytes(100);
  for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
  std::set<std::uint64_t> seen;
  std::size_t expected = 0;
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    seen.insert(hash_bytes(bytes.data(), size));
    ++expected;
    for (std::size_t bit = 0; bit < 8 * size; ++bit) {
      bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1u << bit % 8));
      seen.insert(hash_bytes(bytes.data(), size));
      ++expected;
      bytes[bit / 8] = static_cast<unsigned char>(bytes[bit / 8] ^ (1u << bit % 8));
    }
  }
  EXPECT_EQ(seen.size(), expected);
}

TEST(Hash, CombineDependsOnOrderAndMixesSmallNumbers) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t a = 0; a < 300; ++a) {
    for (std::uint64_t b = 0; b < 300; ++b) seen.insert(hash_combine(a, b));
  }
  EXPECT_EQ(seen.size(), 90000u);
  // Each bit of the result is set about half of the time.
  for (int bit = 0; bit < 64; ++bit) {
    int ones = 0;
    for (const std::uint64_t hash : seen) ones += static_cast<int>(hash >> bit & 1);
    EXPECT_NEAR(ones, 45000, 900) << bit;
  }
}

TEST(HashView, DependsOnContentNotOnStrides) {
  std::mt19937_64 random(9);
  // More than one block of the hash, and not a whole number of them.
  Tensor rows = Tensor::empty(DType::f32, {150, 301});
  for (std::int64_t i = 0; i < rows.count(); ++i)
    static_cast<float*>(rows.data())[i] = static_cast<float>(random() % 9);
  const std::uint64_t hash = hash_view(rows);
  const Tensor columns = copy(permute(ConstTensorView(rows), {1, 0}), DType::f32);
  EXPECT_EQ(hash_view(permute(ConstTensorView(columns), {1, 0})), hash);
  EXPECT_NE(hash_view(columns), hash);

  const std::int64_t last = rows.count() - 1;
  for (const std::int64_t changed : {std::int64_t{0}, std::int64_t{16384}, last}) {
    static_cast<float*>(rows.data())[changed] += 10;
    EXPECT_NE(hash_view(rows), hash) << changed;
    static_cast<float*>(rows.data())[changed] -= 10;
  }
  EXPECT_EQ(hash_view(rows), hash);
}

TEST(Content, OfRepeatedElementsIsThatOfTheirCopies) {
  std::int32_t values[] = {5, 6, 7, 5, 6, 7};
  const ConstTensorView rows(values, DType::i32, {2, 3}), repeated(values, DType::i32, {2, 3}, {0, 1}),
      columns(values, DType::i32, {2, 3}, {1, 0});
  for (const ConstTensorView& x : {rows, repeated}) {
    for (const ConstTensorView& y : {rows, repeated}) EXPECT_TRUE(holds(x, content_of(y)));
    EXPECT_FALSE(holds(columns, content_of(x)));
    EXPECT_FALSE(holds(x, content_of(columns)));
    EXPECT_FALSE(holds(ConstTensorView(values, DType::i32, {6}), content_of(x)));
    EXPECT_FALSE(holds(ConstTensorView(values, DType::f32, {2, 3}), content_of(x)));
  }
  const Content before = content_of(repeated);
  values[4] = 8;
  EXPECT_TRUE(holds(repeated, before));
  EXPECT_FALSE(holds(rows, before)) << "the second row differs from the first";
  values[4] = 6;
  values[1] = 8;
  EXPECT_FALSE(holds(repeated, before));
  // Along one axis the copy differs, along the other it repeats.
  std::int32_t twos[] = {2, 2, 2, 2, 3, 3};
  const Content all_twos = content_of(ConstTensorView(twos, DType::i32, {3, 2}, {0, 0}));
  EXPECT_FALSE(holds(ConstTensorView(twos, DType::i32, {3, 2}), all_twos));
  EXPECT_FALSE(holds(ConstTensorView(twos, DType::i32, {3, 2}, {2, 0}), all_twos));
  twos[4] = twos[5] = 2;
  EXPECT_TRUE(holds(ConstTensorView(twos, DType::i32, {3, 2}), all_twos));
  EXPECT_TRUE(holds(ConstTensorView(twos, DType::i32, {3, 2}, {2, 0}), all_twos));
}

TEST(Content, ReadsNoMoreThanTheMemoryThatThereIs) {
  const float one = 1;
  const Dims shape = {std::int64_t{1} << 40, 1, std::int64_t{1} << 20};
  const ConstTensorView ones(&one, DType::f32, shape, {0, 9, 0});
  EXPECT_TRUE(holds(ones, content_of(ones)));
  EXPECT_FALSE(holds(ones, content_of(ConstTensorView(&one, DType::f32, {1}))));
}

TEST(HashView, DependsOnShapeAndType) {
  const Tensor zeros = Tensor::zeros(DType::f32, {6});
  std::set<std::uint64_t> seen{hash_view(zeros)};
  seen.insert(hash_view(ConstTensorView(zeros.data(), DType::i32, {6})));
  seen.insert(hash_view(ConstTensorView(zeros.data(), DType::f32, {2, 3})));
  seen.insert(hash_view(ConstTensorView(zeros.data(), DType::f32, {3, 2})));
  seen.insert(hash_view(ConstTensorView(zeros.data(), DType::f32, {0})));
  seen.insert(hash_view(ConstTensorView(zeros.data(), DType::f32, {0, 1})));
  seen.insert(hash_view(ConstTensorView(zeros.data(), DType::f32, Dims{})));
  EXPECT_EQ(seen.size(), 7u);
}

}  // namespace
}  // namespace heddle::base
