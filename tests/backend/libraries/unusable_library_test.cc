// Libraries that are there and do not open: each is told of with the loader's words, wherever it was found.
#include <elf.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <iterator>

#include "backend/libraries/printed_by.h"
#include "own_folder.h"

namespace heddle::libraries {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const fs::path kSamples = SAMPLES;

/// Output of open_sample where the loader looks into `loader` too.
std::string open_sample(const fs::path& loader, const fs::path& folder) {
  const std::string command =
      fmt::format("unset HEDDLE_NVRTC; LD_LIBRARY_PATH='{}' '{}' '{}'", loader.string(), OPEN_SAMPLE, folder.string());
  return printed_by(command);
}

/// A sample library as `file`, changed by `change`, which gets its bytes.
template <class Change>
void put_damaged(const fs::path& file, Change&& change) {
  std::ifstream stream(kSamples / "2/libsample.so.2", std::ios::binary);
  std::string bytes(std::istreambuf_iterator<char>(stream), {});
  change(bytes);
  std::ofstream(file, std::ios::binary) << bytes;
}

void make_other_machine(std::string& bytes) {
  const Elf64_Half machine = EM_S390;
  std::memcpy(bytes.data() + offsetof(Elf64_Ehdr, e_machine), &machine, sizeof machine);
}

/// Expects these words about `file` when it stands in a folder of the search, and when it stands on the loader's path.
void expect_told(const fs::path& file, const testing::Matcher<std::string>& words) {
  const fs::path nowhere = "/no/such/folder";
  for (const std::string& text : {open_sample(nowhere, file.parent_path()), open_sample(file.parent_path(), nowhere)}) {
    EXPECT_THAT(text, AllOf(StartsWith("sample was found but cannot be used: "), HasSubstr(file.string()), words,
                            HasSubstr("; no usable libsample.so.2 or libsample.so.1 in the loader's path, "),
                            EndsWith("; HEDDLE_NVRTC may name its file or folder")));
  }
}

TEST(UnusableLibrary, NoneIsNotFound) {
  EXPECT_EQ(open_sample("/no/such/folder", "/neither"),
            "sample was not found: no usable libsample.so.2 or libsample.so.1 in the loader's path, /neither; "
            "HEDDLE_NVRTC may name its file or folder");
}

TEST(UnusableLibrary, TheLoadersPathComesFirst) {
  EXPECT_EQ(open_sample(kSamples / "1", kSamples / "2"), (kSamples / "1/libsample.so.1").string());
}

TEST(UnusableLibrary, NoElfFile) {
  const OwnFolder folder;
  const fs::path file = folder.path() / "libsample.so.2";
  std::ofstream(file) << std::string(4096, 'x');
  expect_told(file, HasSubstr(file.string() + ": invalid ELF header"));
}

TEST(UnusableLibrary, CutShort) {
  const OwnFolder folder;
  const fs::path file = folder.path() / "libsample.so.2";
  put_damaged(file, [](std::string& bytes) { bytes.resize(20); });
  expect_told(file, HasSubstr(file.string() + ": file too short"));
}

TEST(UnusableLibrary, OfAnotherWordSize) {
  const OwnFolder folder;
  const fs::path file = folder.path() / "libsample.so.2";
  put_damaged(file, [](std::string& bytes) { bytes[EI_CLASS] = ELFCLASS32; });
  expect_told(file, HasSubstr(file.string() + ": wrong ELF class"));
}

// The loader says of such a file that there is none.
TEST(UnusableLibrary, OfAnotherMachine) {
  const OwnFolder folder;
  const fs::path file = folder.path() / "libsample.so.2";
  put_damaged(file, make_other_machine);
  expect_told(file, AllOf(HasSubstr(file.string() + ": cannot open shared object file"),
                          HasSubstr("(the file is there, made for another kind of machine)")));
}

TEST(UnusableLibrary, ALinkThatLeadsNowhere) {
  const OwnFolder folder;
  const fs::path file = folder.path() / "libsample.so.1";
  fs::create_symlink("libsample.so.1.55", file);
  expect_told(file, HasSubstr("(a link to a file that is not there)"));
}

TEST(UnusableLibrary, OneThatIsTooOld) {
  const std::string old = (kSamples / "0/libsample.so.0").string();
  expect_told(old, HasSubstr(old + " is version 0; "));
}

TEST(UnusableLibrary, OneThatIsNotIsTakenAllTheSame) {
  const OwnFolder folder;
  put_damaged(folder.path() / "libsample.so.2", make_other_machine);
  EXPECT_EQ(open_sample(folder.path(), kSamples / "1"), (kSamples / "1/libsample.so.1").string());
  EXPECT_THAT(open_sample(kSamples / "0", kSamples / "1"), Not(HasSubstr("version 0")));
}

}  // namespace
}  // namespace heddle::libraries
