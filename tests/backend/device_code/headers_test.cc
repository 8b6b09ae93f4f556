// The device code inside the library is that of the source tree, byte for byte, and complete.
#include "backend/device_code/headers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>

#include "backend/device_code/embedded_text.h"

namespace heddle::device_code {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = HEDDLE_SOURCE_DIR;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

fs::path path_of(const std::string& name) {
  if (name.starts_with("portable/")) return kRoot / "kernels" / name;
  return name.starts_with("shared/") ? kRoot / "src" / name : kRoot / "kernels" / "cuda" / name;
}

/// A file of kernels/amd stands in for one of kernels/cuda.
fs::path path_for_amd(const std::string& name) {
  const fs::path own = kRoot / "kernels" / "amd" / name;
  return fs::exists(own) ? own : path_of(name);
}

std::set<std::string> names_of(const std::vector<jit::Header>& headers) {
  std::set<std::string> all;
  for (const jit::Header& header : headers) all.insert(header.name);
  return all;
}
std::set<std::string> names() { return names_of(cuda_headers()); }

TEST(Embedded, AmdHasItsOwnInThePlaceOfOthers) {
  const std::set<std::string> all = names_of(amd_headers());
  EXPECT_EQ(all.size(), amd_headers().size()) << "a name is there twice";
  EXPECT_THAT(all, testing::IsSupersetOf({"language.cuh", "mods/instructions.cuh", "mods/operations.cuh",
                                          "portable/fragments/gfx11.cuh", "portable/fragments/fma.cuh"}));
  for (const jit::Header& header : amd_headers()) {
    EXPECT_EQ(header.text, contents(path_for_amd(header.name))) << header.name;
  }
  EXPECT_THAT(names(), testing::Not(testing::Contains("language.cuh")));
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "kernels" / "amd")) {
    if (!entry.is_regular_file()) continue;
    EXPECT_TRUE(all.contains(fs::relative(entry.path(), kRoot / "kernels" / "amd").generic_string())) << entry.path();
  }
}

TEST(Embedded, IsTheTextOfTheFiles) {
  for (const jit::Header& header : cuda_headers()) {
    EXPECT_EQ(header.text, contents(path_of(header.name))) << header.name;
    EXPECT_FALSE(header.text.empty()) << header.name;
  }
  EXPECT_EQ(names().size(), cuda_headers().size()) << "a name is there twice";
}

TEST(Embedded, HasEveryDeviceHeader) {
  const std::set<std::string> embedded = names();
  EXPECT_THAT(embedded, testing::IsSupersetOf({"mods/operations.cuh", "shared/forward_sm90.h", "shared/philox.h",
                                               "portable/forward/forward.cuh", "portable/fragments/mma.cuh"}));
  for (const auto& entry : fs::recursive_directory_iterator(kRoot / "kernels" / "cuda")) {
    if (!entry.is_regular_file() || entry.path().extension() != ".cuh") continue;
    EXPECT_TRUE(embedded.contains(fs::relative(entry.path(), kRoot / "kernels" / "cuda").generic_string()))
        << entry.path();
  }
}

// The compiler at run time has no other headers.
TEST(Embedded, IncludesOnlyWhatIsEmbedded) {
  const std::set<std::string> embedded = names();
  const std::regex include(R"(#[ \t]*include[ \t]*([<"])([^>"\n]*)[>"])");
  for (const jit::Header& header : cuda_headers()) {
    const std::string text(header.text);
    for (std::sregex_iterator found(text.begin(), text.end(), include), end; found != end; ++found) {
      EXPECT_TRUE((*found)[1] == "\"" && embedded.contains((*found)[2])) << header.name << " includes " << (*found)[2];
    }
  }
}

// The C++ standard asks compilers to accept literals of 64 KiB; some accept no more than 16.
TEST(Embedded, PiecesAreShort) {
  std::size_t pieces = 0, texts = 0;
  for (const EmbeddedText* file = embedded_texts(); file->name != nullptr; ++file, ++texts) {
    for (const char* const* piece = file->pieces; *piece != nullptr; ++piece, ++pieces) {
      EXPECT_LE(std::string(*piece).size(), 8000U) << file->name;
    }
  }
  EXPECT_GE(pieces, texts);
}

}  // namespace
}  // namespace heddle::device_code
