// Several processes over one folder. Nothing here builds in the test's own process: each child starts afresh.
#include "backend/cuda/jit/jit_case.h"

namespace heddle::cuda::jit {
namespace {

namespace fs = std::filesystem;

class Processes : public JitCase {
 protected:
  void SetUp() override {
    JitCase::SetUp();
    ::setenv("HEDDLE_NVRTC", FAKE_NVRTC, 1);
    ::setenv("FAKE_NVRTC_COUNT", (folder_ / "compilations").c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("HEDDLE_NVRTC");
    JitCase::TearDown();
  }
  std::size_t compilations() const { return get(folder_ / "compilations").size(); }
};

/// Builds, and compares; empty when all is well.
std::string build_and_compare(const Source& source) {
  const auto cubin = build(source);
  if (text_of(*cubin) != source.text) return "another kernel";
  if (cubin->registers != 40) return "other figures";
  const std::string notes = cache_notes();
  return std::count(notes.begin(), notes.end(), '\n') == 1 ? "" : notes;
}

TEST_F(Processes, ThatWantOneKernelAllGetIt) {
  const Source source = fake_source("k", "//sleep 200\n");
  std::vector<Child> children;
  for (int i = 0; i < 8; ++i) children.emplace_back([&] { return build_and_compare(source); });
  for (Child& child : children) EXPECT_EQ(child.answer(), "");
  EXPECT_THAT(listing(cache()), testing::SizeIs(1));
  const std::size_t compiled = compilations();
  EXPECT_GE(compiled, 1u);
  EXPECT_EQ(Child([&] { return build_and_compare(source); }).answer(), "");
  EXPECT_EQ(compilations(), compiled) << "the next process finds it";
}

TEST_F(Processes, ThatFillAndClearASmallFolderDisturbNobody) {
  ::setenv("HEDDLE_CACHE_BYTES", "3K", 1);
  std::vector<Child> children;
  for (int i = 0; i < 6; ++i) {
    children.emplace_back([&] {
      for (int round = 0; round < 60; ++round) {
        const std::string trouble = build_and_compare(fake_source("k" + std::to_string(round % 10)));
        if (!trouble.empty()) return trouble;
        forget();
      }
      return std::string();
    });
  }
  for (Child& child : children) EXPECT_EQ(child.answer(), "");
  std::uintmax_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(cache())) bytes += entry.file_size();
  EXPECT_LE(bytes, 3u << 10);
}

TEST_F(Processes, ThatDieWhileWritingLeaveNothingThatIsRead) {
  const Source source = fake_source("k");
  ASSERT_EQ(Child([&] { return build_and_compare(source); }).answer(), "");
  const fs::path file = cache() / listing(cache()).at(0);
  const std::string whole = get(file);
  fs::rename(file, cache() / ".writing-1-0-00000000");
  ASSERT_EQ(Child([&] { return build_and_compare(source); }).answer(), "");
  EXPECT_EQ(compilations(), 2u) << "what was being written is not taken";
  EXPECT_EQ(get(file).size(), whole.size());
}

TEST_F(Processes, OneRejectsForAll) {
  const Source source = fake_source("k", "//log (C7512) serialized\n");
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(Child([&] { return build_and_compare(source); }).answer(),
                testing::StartsWith("threw: kernel 'k' is rejected: (C7512) serialized\n"));
  }
  EXPECT_EQ(compilations(), 1u);
}

TEST_F(Processes, WithoutAHomeCompileEachTime) {
  ::unsetenv("HEDDLE_CACHE_DIR");
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Child([&] {
                ::unsetenv("HOME");
                return build_and_compare(fake_source("k"));
              }).answer(),
              "");
  }
  EXPECT_EQ(compilations(), 2u);
}

}  // namespace
}  // namespace heddle::cuda::jit
