// The search for libraries: what is found in which order, and what the sentence says when nothing is.
#include "backend/libraries/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "expect_error.h"
#include "own_folder.h"
#include "scoped_environment.h"

namespace heddle::libraries {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

const fs::path kSamples = SAMPLES;

LibrarySearch search_in(std::vector<fs::path> folders) {
  return {.what = "sample",
          .option = base::Option::nvrtc,
          .names = {"libsample.so.2", "libsample.so.1"},
          .folders = std::move(folders)};
}

std::string take_any(const Library&) { return ""; }

int version_of(const Library& library) {
  int (*version)() = nullptr;
  return library.find(version, "sample_version") ? version() : -1;
}

class LibraryTest : public testing::Test {
 protected:
  ScopedVariable option_{"HEDDLE_NVRTC", nullptr};
};

TEST_F(LibraryTest, TakesTheFirstFolderThatHasIt) {
  const Library library = open_library(search_in({"/no/such/folder", kSamples / "1", kSamples / "2"}), take_any);
  EXPECT_EQ(version_of(library), 1);
  EXPECT_EQ(library.path(), (kSamples / "1/libsample.so.1").string());
  EXPECT_EQ(library.symbol("no_such_function"), nullptr);
}

TEST_F(LibraryTest, AFolderGivesTheBestNameFirst) {
  const OwnFolder both;
  fs::create_symlink(kSamples / "1/libsample.so.1", both.path() / "libsample.so.1");
  fs::create_symlink(kSamples / "2/libsample.so.2", both.path() / "libsample.so.2");
  EXPECT_EQ(version_of(open_library(search_in({both.path()}), take_any)), 2);
}

TEST_F(LibraryTest, GoesOnWhenOneIsRefused) {
  const auto at_most_one = [](const Library& library) { return version_of(library) > 1 ? "is too new" : ""; };
  EXPECT_EQ(version_of(open_library(search_in({kSamples / "2", kSamples / "1"}), at_most_one)), 1);
}

TEST_F(LibraryTest, SecondNamesAreTriedOnceNoPlaceHadTheFirst) {
  LibrarySearch search = search_in({kSamples / "2", kSamples / "1"});
  search.names = {"libsample.so.1"};
  EXPECT_EQ(version_of(open_library(search, take_any)), 1);
  search.names = {"libsample.so.3"};
  search.second_names = {"libsample.so.1", "libsample.so.2"};
  EXPECT_EQ(version_of(open_library(search, take_any)), 2) << "the folders' order comes before that of these names";
  search.names = {"libsample.so.1"};
  search.second_names = {"libsample.so.2"};
  EXPECT_EQ(version_of(open_library(search, take_any)), 1);
}

TEST_F(LibraryTest, OldNamesAreNeverTaken) {
  LibrarySearch search = search_in({kSamples / "1", kSamples / "2"});
  search.names = {"libsample.so.2"};
  search.old_names = {"libsample.so.1"};
  EXPECT_EQ(version_of(open_library(search, take_any)), 2);
  search.folders = {kSamples / "1"};
  expect_error([&] { open_library(search, take_any); }, ErrorCode::unsupported,
               "sample was found but cannot be used: " + (kSamples / "1/libsample.so.1").string() +
                   " is too old, by its name; no usable libsample.so.2 in the loader's path, " +
                   (kSamples / "1").string() + "; HEDDLE_NVRTC may name its file or folder");
  const auto refuse = [](const Library&) { return "is version 0"; };
  expect_error([&] { open_library(search, refuse); }, ErrorCode::unsupported,
               HasSubstr((kSamples / "1/libsample.so.1").string() + " is version 0; "));
}

TEST_F(LibraryTest, SaysWhereItLookedAndWhatItRefused) {
  const OwnFolder folder;
  std::ofstream(folder.path() / "libsample.so.1") << "no library";
  const auto refuse = [](const Library&) { return "is too old"; };
  expect_error(
      [&] {
        open_library(search_in({"/no/such/folder", kSamples / "2", folder.path()}), refuse);
      },
      ErrorCode::unsupported,
      AllOf(StartsWith("sample was found but cannot be used: " + (kSamples / "2/libsample.so.2").string() +
                       " is too old; " + (folder.path() / "libsample.so.1").string() + ": "),  // the loader's words
            EndsWith("; no usable libsample.so.2 or libsample.so.1 in the loader's path, /no/such/folder, " +
                     (kSamples / "2").string() + ", " + folder.path().string() +
                     "; HEDDLE_NVRTC may name its file or folder")));
  expect_error([&] { open_library(search_in({"/no/such/folder"}), refuse); }, ErrorCode::unsupported,
               "sample was not found: no usable libsample.so.2 or libsample.so.1 in the loader's path, "
               "/no/such/folder; HEDDLE_NVRTC may name its file or folder");
}

TEST_F(LibraryTest, TheOptionNamesAFile) {
  const ScopedVariable option("HEDDLE_NVRTC", SAMPLES "/1/libsample.so.1");
  EXPECT_EQ(version_of(open_library(search_in({kSamples / "2"}), take_any)), 1);
}

TEST_F(LibraryTest, TheOptionNamesAFolder) {
  const ScopedVariable option("HEDDLE_NVRTC", SAMPLES "/1");
  EXPECT_EQ(version_of(open_library(search_in({kSamples / "2"}), take_any)), 1);
}

TEST_F(LibraryTest, AnOptionThatDoesNotServeIsAnErrorAndNothingElseIsTried) {
  const auto open = [](LibraryCheck check) { open_library(search_in({kSamples / "2"}), check); };
  {
    const ScopedVariable option("HEDDLE_NVRTC", "/no/such/file.so");
    expect_error([&] { open(take_any); }, ErrorCode::unsupported,
                 AllOf(HasSubstr("sample cannot be used: HEDDLE_NVRTC is '/no/such/file.so'; "),
                       HasSubstr("No such file"), Not(HasSubstr("samples/2"))));
  }
  {
    const OwnFolder empty;
    const ScopedVariable option("HEDDLE_NVRTC", empty.path().c_str());
    expect_error([&] { open(take_any); }, ErrorCode::unsupported,
                 EndsWith("; the folder holds no libsample.so.2 or libsample.so.1"));
    fs::create_symlink(kSamples / "0/libsample.so.0", empty.path() / "libsample.so.0");
    LibrarySearch search = search_in({});
    search.old_names = {"libsample.so.0"};
    expect_error([&] { open_library(search, take_any); }, ErrorCode::unsupported,
                 EndsWith("'; " + (empty.path() / "libsample.so.0").string() + " is too old, by its name"));
  }
  {
    const ScopedVariable option("HEDDLE_NVRTC", SAMPLES "/1/libsample.so.1");
    expect_error([&] { open([](const Library&) { return "is too old"; }); }, ErrorCode::unsupported,
                 EndsWith("libsample.so.1'; " SAMPLES "/1/libsample.so.1 is too old"));
  }
}

TEST_F(LibraryTest, ToolkitsAreWhereTheVariablesSay) {
  const ScopedVariable home("CUDA_HOME", "/opt/cuda-a");
  const ScopedVariable path("CUDA_PATH", "/opt/cuda-b");
  EXPECT_THAT(toolkit_folders(), ElementsAre("/opt/cuda-a/lib64", "/opt/cuda-a/lib", "/opt/cuda-b/lib64",
                                             "/opt/cuda-b/lib", "/usr/local/cuda/lib64", "/usr/local/cuda/lib"));
}

/// A Python install of nothing but wheels' folders.
void make_install(const fs::path& prefix, const fs::path& packages, const char* wheel) {
  fs::create_directories(prefix / "bin");
  std::ofstream(prefix / "bin/python3") << "never run";
  fs::create_directories(prefix / packages / "nvidia" / wheel / "lib");
}

TEST_F(LibraryTest, WheelsStandBesideThePythonOfPathAndOfTheVirtualEnvironment) {
  const OwnFolder root;
  const std::string r = root.path().string();
  make_install(r + "/venv", "lib/python3.12/site-packages", "cuda_nvrtc");
  make_install(r + "/real", "lib/python3/dist-packages", "cu13");
  make_install(r + "/late", "lib/python3.12/site-packages", "cu13");
  fs::create_directories(r + "/links/bin");
  fs::create_symlink(r + "/real/bin/python3", r + "/links/bin/python3");
  const ScopedVariable environment("VIRTUAL_ENV", (r + "/venv").c_str());
  const ScopedVariable conda("CONDA_PREFIX", nullptr);
  const ScopedVariable home("HOME", nullptr);
  const ScopedVariable path("PATH", ("relative::" + r + "/none:" + r + "/links/bin:" + r + "/late/bin").c_str());
  constexpr std::string_view kPackages[] = {"cu13", "cuda_nvrtc"};
  std::vector<fs::path> below_root;
  for (const fs::path& folder : wheel_folders(kPackages)) {
    if (folder.string().starts_with(r)) below_root.push_back(folder);
  }
  EXPECT_THAT(below_root, ElementsAre(r + "/venv/lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib",
                                      r + "/real/lib/python3/dist-packages/nvidia/cu13/lib"));
  EXPECT_THAT(wheel_folders({}), IsEmpty());
}

}  // namespace
}  // namespace heddle::libraries
