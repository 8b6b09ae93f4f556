// The check that each call of the C interface has to pass.
#pragma once

#include <cstring>

#include "fuzz_bytes.h"
#include "heddle/c.h"

namespace heddle::test {

/// A status of the header, and a sentence if and only if it says that the call failed.
inline void check(heddle_status status) {
  if (status < HEDDLE_OK || status >= HEDDLE_ERROR_INTERNAL)
    broken("a status that the header lacks, or a bug in the library");
  if ((status == HEDDLE_OK) != (std::strlen(heddle_last_error()) == 0)) broken("a sentence and its status disagree");
}

}  // namespace heddle::test
