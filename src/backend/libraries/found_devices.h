// The devices that a driver lists, or why there are none.
#pragma once

#include <exception>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "heddle/error.h"

namespace heddle::libraries {

template <class Caps>
struct FoundDevices {
  std::vector<Caps> devices;
  std::string missing;  // a sentence; empty if there are devices
};

/// `list()` gives the devices; the sentence of an Error that it throws becomes `missing`, as `lists_none` does if the
/// list is empty.
template <class List>
auto find_devices(List&& list, const char* lists_none) -> FoundDevices<typename decltype(list())::value_type> {
  try {
    auto devices = list();
    const bool none = devices.empty();
    return {std::move(devices), none ? lists_none : ""};
  } catch (const Error& error) {
    return {{}, error.what()};
  }
}

/// Why there are no devices, where finding them may throw, too. Running out of memory says nothing about that: it is
/// thrown on.
template <class Found>
std::string missing_of(const Found& (&found)()) {
  try {
    return found().missing;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace heddle::libraries
