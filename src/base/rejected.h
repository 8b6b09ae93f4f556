// A kernel that was compiled, and is not taken.
#pragma once

#include "heddle/error.h"

namespace heddle::base {

/// The compiler took a kernel's source, but what it made is not acceptable: it spills, say. The sentence says why and
/// holds the compiler's log. Whoever has another candidate tries that.
class Rejected : public Error {
 public:
  using Error::Error;
};

}  // namespace heddle::base
