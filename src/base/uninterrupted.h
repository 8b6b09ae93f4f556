// System calls beside signals. A handler that was installed without SA_RESTART lets a call that waits, an open on a
// network's file system say, end with EINTR.
#pragma once

#include <cerrno>

namespace heddle::base {

/// Makes a call until no signal interrupts it, and returns its result. Do not use it for close(): on Linux the
/// descriptor is free even if a signal interrupts the call.
template <class Call>
auto uninterrupted(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

}  // namespace heddle::base
