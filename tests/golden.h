// Golden files: texts that are compared with what a file holds, and written anew with HEDDLE_REFRESH_GOLDEN=1.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

namespace heddle::test {

/// `path`: from the root of the sources.
inline void expect_golden_text(const std::string& path, const std::string& text) {
  const std::string file = std::string(HEDDLE_SOURCE_DIR) + "/" + path;
  if (std::getenv("HEDDLE_REFRESH_GOLDEN") != nullptr) std::ofstream(file) << text;
  std::ifstream stored(file);
  const std::string want{std::istreambuf_iterator<char>(stored), {}};
  EXPECT_EQ(text, want) << file;
}

}  // namespace heddle::test
