// Reads a code object's kernels, and checks that no damage makes the reader leave its bytes.
#include "backend/amd/jit/code_object.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "backend/amd/jit/message_pack.h"

namespace heddle::amd {
namespace {

std::vector<char> code_object(const std::string& name) {
  std::ifstream file(AMD_CODE_OBJECTS "/" + name + ".hsaco", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// In memory of exactly this size, so that a sanitizer sees a read behind the end.
std::optional<CodeObjectFacts> read(const std::vector<char>& bytes, std::size_t size) {
  const auto copy = std::make_unique<char[]>(size);
  std::copy_n(bytes.begin(), size, copy.get());
  return facts_of({copy.get(), size});
}

TEST(CodeObject, TellsWhatKernelsTake) {
  for (const char* chip : {"gfx1100", "gfx1201", "gfx90a", "gfx942"}) {
    const std::vector<char> bytes = code_object(std::string("attention.") + chip);
    const auto facts = read(bytes, bytes.size());
    ASSERT_TRUE(facts) << chip;
    EXPECT_GE(facts->kernels, 1);
    EXPECT_GT(facts->vector_registers, 32);
    EXPECT_LE(facts->vector_registers, 512);
    EXPECT_GT(facts->shared_bytes, 1000);
    EXPECT_EQ(facts->scratch_bytes + facts->spilled_vector + facts->spilled_scalar, 0);
    EXPECT_FALSE(facts->dynamic_stack);
  }
}

TEST(CodeObject, GivesNothingOfWhatIsDamaged) {
  const std::vector<char> bytes = code_object("faults.gfx1100");
  const auto whole = read(bytes, bytes.size());
  ASSERT_TRUE(whole);
  // Cut off behind the section headers it says the same, before them nothing.
  std::size_t given = 0;
  for (std::size_t size = 0; size < bytes.size(); size += 7) {
    const auto facts = read(bytes, size);
    given += facts ? 1 : 0;
    if (facts) {
      EXPECT_EQ(facts->kernels, whole->kernels);
    }
  }
  EXPECT_LT(given, bytes.size() / 7 / 2);
  std::vector<char> other = bytes;
  for (std::size_t at = 0; at < std::min<std::size_t>(bytes.size(), 4000); ++at) {
    other[at] = static_cast<char>(~bytes[at]);
    read(other, other.size());
    other[at] = bytes[at];
  }
}

TEST(MessagePack, ReadsWhatMetadataHas) {
  // {"a": 200, "list": [true, nil, -1, "x"], 5: 70000}
  const std::vector<unsigned char> bytes = {0x83, 0xa1, 'a',  0xcc, 200, 0xa4, 'l',  'i',  's',  't',  0x94,
                                            0xc3, 0xc0, 0xff, 0xa1, 'x', 0x05, 0xce, 0x00, 0x01, 0x11, 0x70};
  MessagePackReader reader({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  EXPECT_EQ(reader.map(), 3U);
  EXPECT_EQ(reader.text(), "a");
  EXPECT_EQ(reader.number(), 200U);
  EXPECT_EQ(reader.text(), "list");
  EXPECT_EQ(reader.map(), std::nullopt);
  reader.skip();
  EXPECT_EQ(reader.number(), 5U);
  EXPECT_EQ(reader.number(), 70000U);
  EXPECT_FALSE(reader.failed());
  reader.skip();
  EXPECT_TRUE(reader.failed());
}

// More levels than any metadata has, and a list of more values than there are bytes.
TEST(MessagePack, FailsRatherThanRunAway) {
  const std::string deep = std::string(1000, '\x91') + '\x01';
  MessagePackReader down(deep);
  down.skip();
  EXPECT_TRUE(down.failed());
  MessagePackReader cut(std::string_view("\xce\x01\x02\x03", 4));
  EXPECT_EQ(cut.number(), std::nullopt);
  EXPECT_TRUE(cut.failed());
  const std::string wide = "\xdd\xff\xff\xff\xff";
  MessagePackReader along(wide);
  along.skip();
  EXPECT_TRUE(along.failed());
}

}  // namespace
}  // namespace heddle::amd
