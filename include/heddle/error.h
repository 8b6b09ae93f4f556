// The one exception type of the library.
#pragma once

#include <stdexcept>
#include <string>

namespace heddle {

enum class ErrorCode {
  invalid_argument,  // the caller's arguments are wrong; the sentence names which, what was given and what is accepted
  unsupported,       // well-formed, but this build, machine or backend does not do it
  out_of_memory,     // an allocation failed, or a size overflows
  io,                // a file cannot be read or written, or its bytes are damaged
  device,            // the device or its driver failed
  compile,           // a kernel could not be built; the compiler's log is in the sentence
  internal,          // a bug in the library
};

/// Thrown by every function of the library, before anything is launched or written.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& sentence) : std::runtime_error(sentence), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace heddle
