#include "base/environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "expect_error.h"
#include "scoped_environment.h"

namespace heddle::base {
namespace {

TEST(Environment, EveryOptionHasItsOwnNameAndAMeaning) {
  std::set<std::string> names;
  for (const OptionRow& row : environment_options()) {
    EXPECT_THAT(row.name, testing::StartsWith("HEDDLE_"));
    EXPECT_STREQ(name_of(row.option), row.name);
    EXPECT_STRNE(row.meaning, "");
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(Option::log) + 1);
}

TEST(Environment, TheDocumentationHasTheSameTable) {
  std::ifstream file(HEDDLE_SOURCE_DIR "/docs/environment.md");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::size_t rows = 0;
  for (std::size_t at = 0; (at = text.find("\n| `", at)) != std::string::npos; ++at) ++rows;
  EXPECT_EQ(rows, environment_options().size());
  for (const OptionRow& row : environment_options()) {
    EXPECT_THAT(text, testing::HasSubstr("\n| `" + std::string(row.name) + "` | " + row.meaning + " |\n"));
  }
}

TEST(Environment, AValueIsReadAtEachCall) {
  const ScopedVariable absent("HEDDLE_DUMP", nullptr);
  EXPECT_EQ(value_of(Option::dump), "");
  const ScopedVariable set("HEDDLE_DUMP", "/some/where");
  EXPECT_EQ(value_of(Option::dump), "/some/where");
}

TEST(Environment, BytesMayHaveAUnit) {
  const auto bytes = [](const char* text) {
    const ScopedVariable set("HEDDLE_CACHE_BYTES", text);
    return bytes_of(Option::cache_bytes, 77);
  };
  EXPECT_EQ(bytes(nullptr), 77);
  EXPECT_EQ(bytes(""), 77);
  EXPECT_EQ(bytes("0"), 0);
  EXPECT_EQ(bytes("123"), 123);
  EXPECT_EQ(bytes("3K"), 3 << 10);
  EXPECT_EQ(bytes("512M"), 512 << 20);
  EXPECT_EQ(bytes("8589934591G"), 8589934591LL << 30);
  for (const char* wrong : {"G", "-1", "1T", "1GB", "1 G", "0x10", "1.5G", "8589934592G", "99999999999999999999"}) {
    expect_error([&] { bytes(wrong); }, ErrorCode::invalid_argument,
                 "HEDDLE_CACHE_BYTES is '" + std::string(wrong) +
                     "'; accepted is a number of bytes below 2^63, which may end in K, M or G");
  }
}

}  // namespace
}  // namespace heddle::base
