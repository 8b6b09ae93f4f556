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
#include <vector>

#include "backend/device_code/embedded_text.h"

namespace heddle::device_code {
namespace {

namespace fs = std::filesystem;

const fs::path kRoot = HEDDLE_SOURCE_DIR;

std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The one file that a vendor's kernels mean by that name.
fs::path path_of(const std::string& name, const char* vendor) {
  std::vector<fs::path> found;
  for (const fs::path& home : {kRoot / "kernels" / vendor, kRoot / "kernels" / "common", kRoot / "kernels", kRoot / "src"}) {
    if (fs::exists(home / name)) found.push_back(home / name);
  }
  EXPECT_EQ(found.size(), 1U) << name << " of " << vendor;
  return found.empty() ? fs::path() : found.front();
}

std::set<std::string> names_of(const std::vector<jit::Header>& headers) {
  std::set<std::string> all;
  for (const jit::Header& header : headers) all.insert(header.name);
  return all;
}
std::set<std::string> names() { return names_of(cuda_headers()); }

void expect_files(const std::vector<jit::Header>& headers, const char* vendor) {
  const std::set<std::string> all = names_of(headers);
  EXPECT_EQ(all.size(), headers.size()) << "a name is there twice";
  for (const jit::Header& header : headers) {
    EXPECT_EQ(header.text, contents(path_of(header.name, vendor))) << header.name;
    EXPECT_FALSE(header.text.empty()) << header.name;
  }
  for (const char* folder : {vendor, "common"}) {
    for (const auto& entry : fs::recursive_directory_iterator(kRoot / "kernels" / folder)) {
      if (!entry.is_regular_file()) continue;
      EXPECT_TRUE(all.contains(fs::relative(entry.path(), kRoot / "kernels" / folder).generic_string())) << entry.path();
    }
  }
}

TEST(Embedded, AmdHasItsFilesAndTheCommonOnes) {
  expect_files(amd_headers(), "amd");
  const std::set<std::string> all = names_of(amd_headers());
  EXPECT_THAT(all, testing::IsSupersetOf({"language/language.cuh", "mods/instructions.cuh", "mods/operations.cuh",
                                          "portable/fragments/gfx11.cuh", "portable/fragments/fma.cuh"}));
  EXPECT_THAT(all, testing::Not(testing::Contains("ptx/wgmma.cuh")));
}

TEST(Embedded, NvidiaHasItsFilesAndTheCommonOnes) {
  expect_files(cuda_headers(), "nvidia");
  const std::set<std::string> all = names();
  EXPECT_THAT(all, testing::IsSupersetOf({"mods/operations.cuh", "families/forward_sm90/shared/forward_sm90_params.h",
                                          "shared/philox.h", "portable/forward_mma/forward.cuh",
                                          "portable/fragments/mma.cuh"}));
  EXPECT_THAT(all, testing::Not(testing::Contains("language/language.cuh")));
}

// The compiler at run time has no other headers.
TEST(Embedded, IncludesOnlyWhatIsEmbedded) {
  const std::regex include(R"(#[ \t]*include[ \t]*([<"])([^>"\n]*)[>"])");
  for (const auto* headers : {&cuda_headers(), &amd_headers()}) {
    const std::set<std::string> embedded = names_of(*headers);
    for (const jit::Header& header : *headers) {
      const std::string text(header.text);
      for (std::sregex_iterator found(text.begin(), text.end(), include), end; found != end; ++found) {
        EXPECT_TRUE((*found)[1] == "\"" && embedded.contains((*found)[2])) << header.name << " includes " << (*found)[2];
      }
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
