#include "backend/jit/includes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace heddle::jit {
namespace {

std::vector<std::string> names_in_use(const Source& source) {
  std::vector<std::string> names;
  for (const Header* header : headers_in_use(source)) names.push_back(header->name);
  return names;
}

Source source(std::string text) {
  return {.name = "k",
          .text = std::move(text),
          .headers = {{"a.cuh", "#pragma once\n#include \"dir/b.h\"\nint a;\n"},
                      {"dir/b.h", "#pragma once\n#include \"a.cuh\"\nint b;"},
                      {"c.cuh", "int c;\n"}},
          .architecture = "sm_90a"};
}

TEST(Includes, AreFollowedOnceEach) {
  EXPECT_THAT(names_in_use(source("#include \"a.cuh\"\n#include \"dir/b.h\"\n")),
              testing::ElementsAre("a.cuh", "dir/b.h"));
  EXPECT_THAT(names_in_use(source("#include \"dir/b.h\"")), testing::ElementsAre("dir/b.h", "a.cuh"));
  EXPECT_THAT(names_in_use(source("int x;")), testing::IsEmpty());
  EXPECT_THAT(names_in_use(source("")), testing::IsEmpty());
}

TEST(Includes, InEverySpelling) {
  for (const char* line :
       {"#include <c.cuh>", "  #  include\t\"c.cuh\"  // why", "int x;\n#include\"c.cuh\"\nint y;"}) {
    EXPECT_THAT(names_in_use(source(line)), testing::ElementsAre("c.cuh")) << line;
  }
}

TEST(Includes, OtherLinesAreNone) {
  for (const char* line :
       {"// #include \"c.cuh\"", "#include \"c.cuh", "#include c.cuh", "#include", "#", "#define include",
        "#include \"other.h\"", "#include \"\"", "#include \"c.cuh \"", "x #include \"c.cuh\""}) {
    EXPECT_THAT(names_in_use(source(line)), testing::IsEmpty()) << line;
  }
}

// A list of rows is read once for each meaning of its rows.
TEST(Includes, RepeatListsOfRows) {
  const Source twice = {.name = "k",
                        .text = "#include \"rows.def\"\n#include \"rows.def\"\n",
                        .headers = {{"rows.def", "ROW(x)\n"}},
                        .architecture = "sm_90a"};
  EXPECT_EQ(in_one_file(twice),
            "// ---- rows.def\nROW(x)\n\n// ---- end of rows.def\n"
            "// ---- rows.def\nROW(x)\n\n// ---- end of rows.def\n");
  EXPECT_THAT(names_in_use(twice), testing::ElementsAre("rows.def"));
}

TEST(Includes, BecomeOneFile) {
  EXPECT_EQ(in_one_file(source("#include \"a.cuh\"\n#include \"x.h\"\n#include \"dir/b.h\"\nend")),
            "// ---- a.cuh\n"
            "#pragma once\n"
            "// ---- dir/b.h\n"
            "#pragma once\n"
            "int b;\n"
            "// ---- end of dir/b.h\n"
            "int a;\n\n"
            "// ---- end of a.cuh\n"
            "#include \"x.h\"\n"
            "end");
}

}  // namespace
}  // namespace heddle::jit
