// A kernel that was compiled, and is not taken.
#pragma once

#include "heddle/error.h"

namespace heddle::base {

/// The compiler took a kernel's source, but its machine code is not acceptable: it spills, for example. The sentence
/// says why and holds the compiler's log. A caller that has another candidate tries it.
class Rejected : public Error {
 public:
  using Error::Error;
};

}  // namespace heddle::base
