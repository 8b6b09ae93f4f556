// Exceptions become codes here, and their sentences are kept for the thread that called.
#pragma once

#include <string>

#include "heddle/c.h"

namespace heddle::capi {

/// Forgets what this thread's last call left behind.
void begin_call() noexcept;
/// Keeps the sentence of the exception in flight; the code that it stands for.
heddle_status keep_current_exception() noexcept;
/// Keeps a text for the caller until the thread's next call.
const char* keep_text(std::string text);

/// Runs the body of an exported function.
template <class Body>
heddle_status call(Body&& body) noexcept {
  begin_call();
  try {
    body();
    begin_call();  // a callback may have made a call that failed
    return HEDDLE_OK;
  } catch (...) {
    return keep_current_exception();
  }
}

}  // namespace heddle::capi
