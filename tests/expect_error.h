// Expects heddle::Error with a code and a sentence.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <source_location>
#include <string>

#include "heddle/error.h"

namespace heddle {

/// Runs `call`, which must throw Error with this code and a sentence that matches (a string matches exactly).
template <class Call>
void expect_error(Call&& call, ErrorCode code, const testing::Matcher<std::string>& sentence,
                  std::source_location where = std::source_location::current()) {
  const testing::ScopedTrace trace(where.file_name(), static_cast<int>(where.line()), "expect_error");
  try {
    call();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(std::string(error.what()), sentence);
  }
}

}  // namespace heddle
