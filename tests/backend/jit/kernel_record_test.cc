// Cache files: what was written comes back; anything else is refused, whatever its bytes.
#include "backend/jit/kernel_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <random>

#include "base/hash.h"

namespace heddle::jit {
namespace {

const std::string kKey = "0123456789abcdef0123456789abcdef";

Record accepted() {
  Record record;
  record.code = {.bytes = {'c', 'u', '\0', 'b'},
                 .log = "two\nlines",
                 .registers = 168,
                 .spill_bytes = 0,
                 .stack_bytes = 16,
                 .static_shared_bytes = 1024,
                 .compile_ms = 512.5};
  return record;
}

Record rejected() {
  Record record;
  record.verdict = "24 bytes are spilled";
  record.code.log = "a log";
  record.code.spill_bytes = 24;
  return record;
}

/// In memory of exactly this size, so that a sanitizer sees a read behind the end.
std::optional<Record> read(const std::vector<char>& bytes, std::string& why, const std::string& key = kKey) {
  const auto copy = std::make_unique<char[]>(bytes.size());
  std::copy(bytes.begin(), bytes.end(), copy.get());
  why.clear();
  return decode(key, {copy.get(), bytes.size()}, why);
}

TEST(Record, ComesBack) {
  std::string why;
  const auto record = read(encode(kKey, accepted()), why);
  ASSERT_TRUE(record) << why;
  EXPECT_EQ(record->verdict, "");
  EXPECT_EQ(record->code.bytes, accepted().code.bytes);
  EXPECT_EQ(record->code.log, "two\nlines");
  EXPECT_EQ(record->code.registers, 168);
  EXPECT_EQ(record->code.spill_bytes, 0);
  EXPECT_EQ(record->code.stack_bytes, 16);
  EXPECT_EQ(record->code.static_shared_bytes, 1024);
  EXPECT_EQ(record->code.compile_ms, 512.5);
  EXPECT_EQ(record->code.from, MachineCode::From::disk);
}

TEST(Record, OfARejectedKernelHoldsItsVerdict) {
  std::string why;
  const auto record = read(encode(kKey, rejected()), why);
  ASSERT_TRUE(record) << why;
  EXPECT_EQ(record->verdict, "24 bytes are spilled");
  EXPECT_EQ(record->code.log, "a log");
  EXPECT_THAT(record->code.bytes, testing::IsEmpty());
}

TEST(Record, OfAnotherKernelIsRefused) {
  std::string why;
  EXPECT_FALSE(read(encode(kKey, accepted()), why, "1123456789abcdef0123456789abcdef"));
  EXPECT_EQ(why, "holds another kernel");
}

TEST(Record, CutOrLengthenedIsRefused) {
  std::string why;
  for (const Record& record : {accepted(), rejected()}) {
    const std::vector<char> bytes = encode(kKey, record);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(read({bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)}, why)) << size;
      EXPECT_NE(why, "");
    }
    std::vector<char> longer = bytes;
    longer.push_back('\0');
    EXPECT_FALSE(read(longer, why));
    EXPECT_EQ(why, "is 1 bytes too long");
  }
}

TEST(Record, WithAnyBitFlippedIsRefused) {
  std::string why;
  for (const Record& record : {accepted(), rejected()}) {
    std::vector<char> bytes = encode(kKey, record);
    for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
      const char mask = static_cast<char>(1 << bit % 8);
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ mask);
      EXPECT_FALSE(read(bytes, why)) << "bit " << bit;
      EXPECT_NE(why, "");
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ mask);
    }
    EXPECT_TRUE(read(bytes, why)) << why;
  }
}

TEST(Record, OfAnotherFormatIsRefused) {
  std::vector<char> bytes = encode(kKey, accepted());
  bytes[8] = 7;
  std::string why;
  EXPECT_FALSE(read(bytes, why));
  EXPECT_EQ(why, "is of format 7, not 1");
  bytes[0] = 'h';
  EXPECT_FALSE(read(bytes, why));
  EXPECT_EQ(why, "is no kernel of this cache");
}

/// With the checksum made right again: what a damaged writer could leave behind.
std::vector<char> signed_again(std::vector<char> bytes) {
  const std::uint64_t checksum = base::hash_bytes(bytes.data() + 24, bytes.size() - 24, 1);
  std::memcpy(bytes.data() + 16, &checksum, sizeof checksum);
  return bytes;
}

TEST(Record, WithFiguresThatNoKernelHasIsRefused) {
  std::string why;
  const std::vector<char> bytes = encode(kKey, accepted());
  ASSERT_TRUE(read(signed_again(bytes), why)) << "this test knows where things stand: " << why;
  for (std::size_t at = 80; at < 96; at += 4) {
    std::vector<char> wrong = bytes;
    wrong[at + 3] = '\xff';
    EXPECT_FALSE(read(signed_again(wrong), why)) << at;
    EXPECT_EQ(why, "holds figures that no kernel has");
  }
  for (const double time : {-1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    std::vector<char> wrong = bytes;
    std::memcpy(wrong.data() + 96, &time, sizeof time);
    EXPECT_FALSE(read(signed_again(wrong), why)) << time;
  }
  Record both = accepted(), none = accepted();
  both.verdict = "rejected";
  none.code.bytes.clear();
  EXPECT_FALSE(read(encode(kKey, both), why)) << "rejected, and a kernel";
  EXPECT_FALSE(read(encode(kKey, none), why)) << "neither";
}

TEST(Record, RandomBytesAndMutationsAreRefused) {
  std::mt19937 random(20);
  const std::vector<char> valid = encode(kKey, accepted());
  std::string why;
  for (int round = 0; round < 20000; ++round) {
    std::vector<char> bytes = valid;
    if (round % 2 == 0) {
      bytes.resize(random() % 300);
      for (char& byte : bytes) byte = static_cast<char>(random());
    } else {
      for (auto changes = 1 + random() % 8; changes > 0; --changes) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      if (bytes.size() > 24 && round % 4 == 1) bytes = signed_again(bytes);
    }
    const auto record = read(bytes, why);
    // Signed again, it may be read; then its lengths fit.
    if (!record) continue;
    EXPECT_EQ(record->verdict.size() + record->code.log.size() + record->code.bytes.size() + 104, bytes.size());
  }
}

}  // namespace
}  // namespace heddle::jit
