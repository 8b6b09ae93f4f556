// System calls beside signals. A handler that was installed without SA_RESTART lets a call that waits, an open on a
// network's file system say, end with EINTR.
#pragma once

#include <cerrno>

namespace heddle::base {

/// Makes a call until no signal interrupts it, and returns its result. Not for close(), which Linux never repeats: its
/// descriptor is free when a signal interrupts it.
template <class Call>
auto uninterrupted(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

}  // namespace heddle::base
