// The kinds of calls as parameters of tests.
#pragma once

#include <gtest/gtest.h>

#include <cctype>
#include <ostream>
#include <string>

#include "reliability/calls.h"

namespace heddle::test {

inline void PrintTo(const CallKind& kind, std::ostream* to) { *to << kind.name; }

/// Letters and digits of the kind's name.
inline std::string name_of(const testing::TestParamInfo<CallKind>& info) {
  std::string name = info.param.name;
  std::erase_if(name, [](unsigned char c) { return std::isalnum(c) == 0; });
  return name;
}

}  // namespace heddle::test
