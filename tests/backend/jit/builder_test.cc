// A builder's events and counts, over a compiler of the test.
#include "backend/jit/builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "heddle/error.h"
#include "heddle/events.h"
#include "scoped_environment.h"

namespace heddle::jit {
namespace {

using Json = nlohmann::json;

/// Makes three bytes of every text but "wrong", and rejects the kernel of "slow".
class ThreeBytes : public Compiler {
 public:
  const char* name() const override { return "three bytes"; }
  std::string version() const override { return "1"; }
  std::string path() const override { return ""; }
  std::string identity() const override { return "three bytes 1"; }
  std::vector<std::string> options_of(const Source&) const override { return {}; }
  Compilation compile(const Source& source, bool) const override {
    Compilation made;
    made.result = source.text == "wrong" ? 1 : 0;
    made.code = {'a', 'b', 'c'};
    made.milliseconds = 2;
    return made;
  }
  Record judge(const Source& source, const Compilation& compilation) const override {
    if (compilation.result != 0) throw Error(ErrorCode::compile, "it does not compile");
    Record record;
    record.code.bytes = compilation.code;
    record.code.registers = 40;
    record.code.compile_ms = compilation.milliseconds;
    if (source.text == "slow") record.verdict = "it is slow", record.code.bytes.clear();
    return record;
  }
  DumpSuffixes dump_suffixes() const override { return {".in", ".mid", ".out", ".dis"}; }
  void disassemble(const std::filesystem::path&, const std::filesystem::path&) const override {}
};

class BuilderEvents : public testing::Test {
 protected:
  BuilderEvents()
      : folder_(testing::TempDir() + "/heddle_builder_events"), cache_("HEDDLE_CACHE_DIR", folder_.c_str()) {
    std::filesystem::remove_all(folder_);
    set_event_listener([this](const std::string& event) { heard_.push_back(Json::parse(event)); });
  }
  ~BuilderEvents() override {
    set_event_listener({});
    std::filesystem::remove_all(folder_);
  }

  static Source source(const std::string& text) { return {.name = "a kernel", .text = text, .architecture = "none"}; }

  std::string folder_;
  ScopedVariable cache_;
  ThreeBytes compiler_;
  std::vector<Json> heard_;
};

TEST_F(BuilderEvents, SayHowAKernelWasGot) {
  const KernelCounts before = kernel_counts();
  Builder builder(compiler_);
  builder.build(source("right"));
  builder.build(source("right"));  // from memory: no event
  builder.forget();
  builder.build(source("right"));
  ASSERT_EQ(heard_.size(), 2U);
  EXPECT_EQ(heard_[0]["event"], "kernel");
  EXPECT_EQ(heard_[0]["name"], "a kernel");
  EXPECT_EQ(heard_[0]["from"], "compiled");
  EXPECT_EQ(heard_[0]["compile_ms"], 2);
  EXPECT_EQ(heard_[0]["bytes"], 3);
  EXPECT_EQ(heard_[0]["registers"], 40);
  EXPECT_EQ(heard_[1]["from"], "from the disk cache");
  const KernelCounts after = kernel_counts();
  EXPECT_EQ(after.compiled - before.compiled, 1);
  EXPECT_EQ(after.from_memory - before.from_memory, 1);
  EXPECT_EQ(after.from_disk - before.from_disk, 1);
}

TEST_F(BuilderEvents, SayWhyThereIsNoKernel) {
  const KernelCounts before = kernel_counts();
  Builder builder(compiler_);
  EXPECT_THROW(builder.build(source("wrong")), Error);
  EXPECT_THROW(builder.build(source("slow")), Rejected);
  ASSERT_EQ(heard_.size(), 2U);
  EXPECT_EQ(heard_[0]["error"], "it does not compile");
  EXPECT_THAT(heard_[1]["error"].get<std::string>(), testing::HasSubstr("is rejected: it is slow"));
  EXPECT_EQ(kernel_counts().rejected - before.rejected, 1);
}

// A process that makes ever new kernels keeps its size.
TEST_F(BuilderEvents, KernelsBeyondTheBoundGiveWay) {
  Builder builder(compiler_, 10);  // three kernels of three bytes
  const auto from = [&](const std::string& text) { return builder.build(source(text))->from; };
  for (const char* text : {"a", "b", "c"}) EXPECT_EQ(from(text), MachineCode::From::compiler);
  EXPECT_EQ(from("a"), MachineCode::From::memory);
  EXPECT_EQ(from("d"), MachineCode::From::compiler);  // b, which was used least recently, gives way
  for (const char* text : {"a", "c", "d"}) EXPECT_EQ(from(text), MachineCode::From::memory) << text;
  EXPECT_EQ(from("b"), MachineCode::From::disk);
  EXPECT_EQ(from("c"), MachineCode::From::memory);
  EXPECT_EQ(from("a"), MachineCode::From::disk);
}

TEST_F(BuilderEvents, VerdictsBeyondTheBoundGiveWay) {
  Builder builder(compiler_, 10);
  EXPECT_THROW(builder.build(source("slow")), Rejected);  // its sentence is longer
  const Counts before = builder.counts();
  EXPECT_THROW(builder.build(source("slow")), Rejected);  // from the disk cache
  EXPECT_EQ(builder.counts().compiled, before.compiled);
  EXPECT_EQ(builder.build(source("a"))->from, MachineCode::From::compiler);
  EXPECT_EQ(builder.build(source("a"))->from, MachineCode::From::memory);
}

TEST_F(BuilderEvents, ForgottenKernelsTakeNoRoom) {
  Builder builder(compiler_, 10);
  for (int round = 0; round < 5; ++round) {
    for (const char* text : {"a", "b", "c"}) builder.build(source(text));
    for (const char* text : {"a", "b", "c"}) EXPECT_EQ(builder.build(source(text))->from, MachineCode::From::memory);
    builder.forget();
  }
}

}  // namespace
}  // namespace heddle::jit
