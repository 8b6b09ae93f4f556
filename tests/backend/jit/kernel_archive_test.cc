// Archives as bytes: what was written comes back; anything else is refused, whatever its bytes.
#include "backend/jit/kernel_archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>

#include "base/hash.h"
#include "expect_error.h"

namespace heddle::jit {
namespace {

using testing::HasSubstr;

std::string key(char last) { return std::string(31, '0') + last; }

ArchivedKernel kernel(char last, const std::string& name, const std::string& verdict = "") {
  ArchivedKernel made{.key = key(last), .name = name, .architecture = "sm_90a", .compiler = "NVRTC 13.0", .record = {}};
  made.record.verdict = verdict;
  if (verdict.empty()) made.record.code.bytes = {'c', 'u', '\0', 'b'};
  made.record.code.registers = 40;
  return made;
}

std::vector<char> archive() { return encode_archive("0.1.0", {kernel('b', "two"), kernel('a', "one", "spills")}); }

/// The head of a file of these bytes, in memory of exactly its size, so that a sanitizer sees a read behind the end.
std::optional<ArchiveHead> head_of(const std::vector<char>& bytes, std::string& why) {
  const auto copy = std::make_unique<char[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  const std::span<const char> file{copy.get(), bytes.size()};
  const auto size = head_bytes(file.first(std::min(bytes.size(), kArchiveStart)), bytes.size(), why);
  return size ? decode_head(file.first(*size), bytes.size(), why) : std::nullopt;
}

TEST(Archive, ComesBackInTheOrderOfKeys) {
  const std::vector<char> bytes = archive();
  std::string why;
  const auto head = head_of(bytes, why);
  ASSERT_TRUE(head) << why;
  EXPECT_EQ(why, "");
  EXPECT_EQ(head->version, "0.1.0");
  ASSERT_EQ(head->entries.size(), 2U);
  EXPECT_EQ(head->entries[0].key, key('a'));
  EXPECT_EQ(head->entries[0].name, "one");
  EXPECT_EQ(head->entries[1].name, "two");
  EXPECT_EQ(head->entries[1].architecture, "sm_90a");
  EXPECT_EQ(head->entries[1].compiler, "NVRTC 13.0");
  for (const ArchiveHead::Entry& entry : head->entries) {
    const auto record = decode(entry.key, std::span(bytes).subspan(entry.offset, entry.size), why);
    ASSERT_TRUE(record) << why;
    EXPECT_EQ(record->verdict, entry.name == "one" ? "spills" : "");
    EXPECT_EQ(record->code.registers, 40);
  }
}

TEST(Archive, HoldsAKernelOnce) {
  const std::vector<char> bytes = encode_archive("1", {kernel('a', "first"), kernel('b', "x"), kernel('a', "second")});
  std::string why;
  const auto head = head_of(bytes, why);
  ASSERT_TRUE(head) << why;
  ASSERT_EQ(head->entries.size(), 2U);
  EXPECT_EQ(head->entries[0].name, "first");
}

TEST(Archive, OfNothingIsOne) {
  std::string why;
  const auto head = head_of(encode_archive("1", {}), why);
  ASSERT_TRUE(head) << why;
  EXPECT_TRUE(head->entries.empty());
}

TEST(Archive, RefusesALongVersion) {
  expect_error([] { encode_archive(std::string(33, '1'), {}); }, ErrorCode::invalid_argument,
               HasSubstr("has 33 letters; up to 32 are accepted"));
  std::string why;
  EXPECT_EQ(head_of(encode_archive(std::string(32, '1'), {}), why)->version, std::string(32, '1'));
}

TEST(Archive, CutOrLengthenedIsRefused) {
  const std::vector<char> whole = archive();
  std::string why;
  for (std::size_t size = 0; size < whole.size(); ++size) {
    EXPECT_FALSE(head_of({whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size)}, why)) << size;
    EXPECT_NE(why, "");
  }
  std::vector<char> longer = whole;
  longer.push_back('x');
  EXPECT_FALSE(head_of(longer, why));
  EXPECT_EQ(why, "is 1 bytes too long");
}

TEST(Archive, WithAnyBitOfItsHeadFlippedIsRefused) {
  const std::vector<char> whole = archive();
  std::string why;
  const std::size_t head = *head_bytes(whole, whole.size(), why);
  for (std::size_t bit = 0; bit < 8 * head; ++bit) {
    std::vector<char> bytes = whole;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ 1 << bit % 8);
    EXPECT_FALSE(head_of(bytes, why)) << bit;
    EXPECT_NE(why, "") << bit;
  }
}

// Whoever writes a file may give it the right checksum.
TEST(Archive, WithAnotherHeadAndItsChecksumIsReadOrRefused) {
  const std::vector<char> whole = archive();
  std::string why;
  const std::size_t head = *head_bytes(whole, whole.size(), why);
  std::mt19937 rng(1);
  int refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<char> bytes = whole;
    for (int changes = 1 + static_cast<int>(rng() % 4); changes > 0; --changes) {
      bytes[24 + rng() % (head - 24)] = static_cast<char>(rng());
    }
    const std::uint64_t checksum = base::hash_bytes(bytes.data() + 24, head - 24, 1);
    std::memcpy(bytes.data() + 16, &checksum, sizeof checksum);
    const auto changed = head_of(bytes, why);
    refused += changed ? 0 : 1;
    if (!changed) continue;
    for (const ArchiveHead::Entry& entry : changed->entries) {
      ASSERT_LE(entry.offset, bytes.size());
      ASSERT_LE(entry.size, bytes.size() - entry.offset);
    }
  }
  EXPECT_GT(refused, 1000);
}

TEST(Archive, OfAnotherFormatSaysSo) {
  std::vector<char> bytes = archive();
  bytes[8] = 7;
  std::string why;
  EXPECT_FALSE(head_of(bytes, why));
  EXPECT_EQ(why, "is an archive of format 7; this heddle reads format 1");
  bytes[0] = 'X';
  EXPECT_FALSE(head_of(bytes, why));
  EXPECT_EQ(why, "is no archive of kernels");
}

}  // namespace
}  // namespace heddle::jit
