// The archives of a process, and builders that find kernels there: with a compiler, and without one.
#include "backend/jit/archives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "backend/jit/builder.h"
#include "backend/jit/recording.h"
#include "expect_error.h"
#include "heddle/archive.h"
#include "heddle/events.h"
#include "scoped_environment.h"

namespace heddle::jit {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

/// Makes a kernel of each text; rejects that of "slow". One that is absent throws, as NVRTC does where there is none.
class AnyCompiler : public Compiler {
 public:
  explicit AnyCompiler(bool absent) : absent_(absent) {}
  const char* name() const override { return "any"; }
  std::string version() const override { return "7"; }
  std::string path() const override { return ""; }
  std::string identity() const override {
    if (absent_) throw Error(ErrorCode::unsupported, "there is no compiler");
    return "any 7";
  }
  std::vector<std::string> options_of(const Source& source) const override { return {source.architecture}; }
  Compilation compile(const Source& source, bool) const override {
    Compilation made;
    made.code.assign(source.text.begin(), source.text.end());
    return made;
  }
  Record judge(const Source& source, const Compilation& compilation) const override {
    Record record;
    record.code.log = "a log";
    if (source.text == "slow") {
      record.verdict = "it is slow";
    } else {
      record.code.bytes = compilation.code;
    }
    return record;
  }
  DumpSuffixes dump_suffixes() const override { return {".in", ".mid", ".out", ".dis"}; }
  void disassemble(const fs::path&, const fs::path&) const override {}

 private:
  bool absent_;
};

Source source(const std::string& text, const std::string& architecture = "sm_90a") {
  return {.name = "kernel " + text, .text = text, .architecture = architecture};
}

class ArchivesCase : public testing::Test {
 protected:
  ArchivesCase()
      : folder_(testing::TempDir() + "/heddle_archives"),
        cache_("HEDDLE_CACHE_DIR", (folder_ + "/cache").c_str()),
        named_("HEDDLE_ARCHIVE", nullptr) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    Archives::of_process().forget();
  }
  ~ArchivesCase() override {
    Archives::of_process().forget();
    fs::remove_all(folder_);
  }

  /// An archive of kernels that a builder makes of these texts.
  std::string written(const std::string& name, const std::vector<Source>& sources,
                      const std::string& by = std::string(archive_version())) {
    Builder builder(there_);
    Recording recording;
    {
      const Recording::Scope scope(recording);
      for (const Source& each : sources) {
        try {
          builder.build(each);
        } catch (const Rejected&) {
        }
      }
    }
    std::string path = folder_ + "/" + name;
    const std::vector<char> bytes = encode_archive(by, recording.kernels());
    std::ofstream(path, std::ios::binary).write(bytes.data(), std::ssize(bytes));
    fs::remove_all(folder_ + "/cache");
    return path;
  }

  static std::string text_of(const MachineCode& code) { return {code.bytes.begin(), code.bytes.end()}; }

  std::string folder_;
  ScopedVariable cache_, named_;
  AnyCompiler there_{false}, absent_{true};
};

TEST_F(ArchivesCase, AKernelNeedsNoCompiler) {
  use_archive(written("a", {source("one"), source("slow")}));
  Builder builder(absent_);
  const auto code = builder.build(source("one"));
  EXPECT_EQ(text_of(*code), "one");
  EXPECT_EQ(code->from, MachineCode::From::archive);
  EXPECT_EQ(code->compiler, "any 7");
  EXPECT_EQ(builder.build(source("one"))->from, MachineCode::From::memory);
  EXPECT_THROW(builder.build(source("slow")), Rejected);
  EXPECT_EQ(builder.counts().from_archive, 1);
  EXPECT_EQ(builder.counts().compiled, 0);
  EXPECT_EQ(builder.counts().rejected, 1);
  EXPECT_FALSE(fs::exists(folder_ + "/cache"));
  EXPECT_THAT(builder.cache_notes(), HasSubstr("kernel archive: " + folder_ + "/a (2 kernels for sm_90a)\n"));
}

TEST_F(ArchivesCase, ComesBeforeTheDiskCacheAndTheCompiler) {
  const std::string path = written("a", {source("one")});
  Builder builder(there_);
  EXPECT_EQ(builder.build(source("one"))->from, MachineCode::From::compiler);
  builder.forget();
  use_archive(path);
  EXPECT_EQ(builder.build(source("one"))->from, MachineCode::From::archive);
  EXPECT_EQ(builder.build(source("two"))->from, MachineCode::From::compiler);
}

TEST_F(ArchivesCase, OtherOptionsOrArchitecturesAreOtherKernels) {
  use_archive(written("a", {source("one")}));
  Builder builder(absent_);
  EXPECT_THROW(builder.build(source("one", "sm_80")), Error);
  Source another = source("one");
  another.has_alternative = false;
  EXPECT_THROW(builder.build(another), Error);
}

TEST_F(ArchivesCase, WithoutACompilerTheErrorSaysWhatToDo) {
  Builder builder(absent_);
  expect_error([&] { builder.build(source("one")); }, ErrorCode::unsupported, StartsWith("there is no compiler"));
  use_archive(written("a", {source("one")}));
  use_archive(written("b", {source("one", "gfx1100")}));
  const std::string both = folder_ + "/a (1 kernels for sm_90a) and " + folder_ + "/b (1 kernels for gfx1100)";
  expect_error([&] { builder.build(source("two")); }, ErrorCode::unsupported,
               AllOf(StartsWith("no archive has the kernel 'kernel two' for sm_90a; there are " + both),
                     HasSubstr("To have it there: add this call to the list of `heddle aot`"),
                     HasSubstr("It cannot be compiled here: there is no compiler")));
  expect_error([&] { builder.build(source("two", "sm_80")); }, ErrorCode::unsupported,
               HasSubstr("name a GPU of sm_80 to `heddle aot`"));
  Source changed = source("one");
  changed.text = "changed";
  expect_error([&] { builder.build(changed); }, ErrorCode::unsupported,
               HasSubstr("write the archive again with `heddle aot` of this build of heddle"));
}

TEST_F(ArchivesCase, OfTheEnvironmentComeFirst) {
  const std::string first = written("a", {source("one")}), second = written("b", {source("two")}),
                    third = written("c", {source("three")});
  const ScopedVariable named("HEDDLE_ARCHIVE", (":" + first + "::" + second).c_str());
  Archives::of_process().forget();
  use_archive(third);
  Builder builder(absent_);
  for (const char* text : {"one", "two", "three"}) EXPECT_EQ(text_of(*builder.build(source(text))), text);
  const std::string notes = builder.cache_notes();
  EXPECT_LT(notes.find(first), notes.find(second));
  EXPECT_LT(notes.find(second), notes.find(third));
}

TEST_F(ArchivesCase, ThatCannotBeUsedAreErrors) {
  const std::string path = written("a", {source("one")});
  expect_error([&] { use_archive(folder_ + "/none"); }, ErrorCode::io,
               HasSubstr("/none cannot be opened: No such file or directory; a whole file that `heddle aot` wrote is"));
  expect_error([&] { use_archive(folder_); }, ErrorCode::io, HasSubstr("is no regular file"));
  expect_error([&] { use_archive(path + std::string("\0y", 2)); }, ErrorCode::invalid_argument,
               HasSubstr("path has a byte 0 behind '"));
  std::ofstream(folder_ + "/text") << std::string(200, 'x');
  expect_error([&] { use_archive(folder_ + "/text"); }, ErrorCode::io, HasSubstr("/text is no archive of kernels"));
  const std::string other = written("other", {source("one")}, "9.9");
  expect_error([&] { use_archive(other); }, ErrorCode::invalid_argument,
               AllOf(HasSubstr("was written by heddle 9.9; this is heddle " + std::string(archive_version())),
                     HasSubstr("write it again with `heddle aot`")));
  EXPECT_EQ(read_archive(other).version, "9.9");
  const ScopedVariable named("HEDDLE_ARCHIVE", (folder_ + "/text").c_str());
  Archives::of_process().forget();
  Builder builder(there_);
  expect_error([&] { builder.build(source("one")); }, ErrorCode::io, HasSubstr("/text is no archive of kernels"));
}

TEST_F(ArchivesCase, ADamagedKernelIsAnErrorWithACompilerToo) {
  const std::string path = written("a", {source("one")});
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).seekp(-1, std::ios::end).put('x');
  use_archive(path);
  Builder builder(there_);
  expect_error([&] { builder.build(source("one")); }, ErrorCode::io,
               HasSubstr("is damaged: its kernel 'kernel one' does not match its checksum"));
  expect_error([&] { read_archive(path); }, ErrorCode::io, HasSubstr("is damaged"));
}

TEST_F(ArchivesCase, AReplacedFileDoesNotChangeOneThatIsOpen) {
  const std::string path = written("a", {source("one")});
  use_archive(path);
  fs::rename(written("b", {source("two")}), path);
  Builder builder(absent_);
  EXPECT_EQ(text_of(*builder.build(source("one"))), "one");
  use_archive(path);
  EXPECT_EQ(text_of(*builder.build(source("two"))), "two");
  builder.forget();
  use_archive(path);
  EXPECT_THROW(builder.build(source("one")), Error);
}

TEST_F(ArchivesCase, OneThatBecomesShorterIsAnError) {
  const std::string path = written("a", {source("one")});
  use_archive(path);
  fs::resize_file(path, fs::file_size(path) - 1);
  Builder builder(absent_);
  expect_error([&] { builder.build(source("one")); }, ErrorCode::io, HasSubstr("became shorter while it was open"));
}

TEST_F(ArchivesCase, RecordsWhatComesFromMemoryToo) {
  Builder builder(there_);
  builder.build(source("one"));
  EXPECT_THROW(builder.build(source("slow")), Rejected);
  Recording recording;
  {
    const Recording::Scope scope(recording);
    builder.build(source("one"));
    EXPECT_THROW(builder.build(source("slow")), Rejected);
  }
  builder.build(source("two"));
  const std::vector<ArchivedKernel> kernels = recording.kernels();
  ASSERT_EQ(kernels.size(), 2U);
  for (const ArchivedKernel& kernel : kernels) {
    EXPECT_EQ(kernel.compiler, "any 7");
    EXPECT_EQ(kernel.record.verdict, kernel.name == "kernel slow" ? "it is slow" : "");
  }
}

TEST_F(ArchivesCase, CountsAndEventsSayFromAnArchive) {
  use_archive(written("a", {source("one")}));
  const KernelCounts before = kernel_counts();
  std::string heard;
  set_event_listener([&](const std::string& event) { heard += event; });
  Builder builder(absent_);
  builder.build(source("one"));
  set_event_listener({});
  EXPECT_EQ(kernel_counts().from_archive - before.from_archive, 1);
  EXPECT_THAT(heard, HasSubstr("\"from\":\"from an archive\""));
}

}  // namespace
}  // namespace heddle::jit
