#include "errors.h"

#include <exception>
#include <new>
#include <utility>

#include "heddle/error.h"

namespace heddle::capi {
namespace {

// One thread's texts. `error` points into `sentence` or at a literal: keeping a sentence may itself fail for lack of
// memory.
struct Kept {
  const char* error = "";
  std::string sentence, text;
};

Kept& kept() noexcept {
  thread_local Kept kept;
  return kept;
}

// A switch and not a table, so that a new code does not compile without a status.
heddle_status status_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::invalid_argument:
      return HEDDLE_ERROR_INVALID_ARGUMENT;
    case ErrorCode::unsupported:
      return HEDDLE_ERROR_UNSUPPORTED;
    case ErrorCode::out_of_memory:
      return HEDDLE_ERROR_OUT_OF_MEMORY;
    case ErrorCode::io:
      return HEDDLE_ERROR_IO;
    case ErrorCode::device:
      return HEDDLE_ERROR_DEVICE;
    case ErrorCode::compile:
      return HEDDLE_ERROR_COMPILE;
    case ErrorCode::internal:
      break;
  }
  return HEDDLE_ERROR_INTERNAL;
}

heddle_status keep(heddle_status status, const char* sentence) noexcept {
  try {
    kept().sentence = sentence;
    kept().error = kept().sentence.c_str();
  } catch (...) {
    kept().error = "the call failed, and there was no memory to say why";
  }
  return status;
}

}  // namespace

void begin_call() noexcept { kept().error = ""; }

heddle_status keep_current_exception() noexcept {
  try {
    throw;
  } catch (const Error& error) {
    return keep(status_of(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return keep(HEDDLE_ERROR_OUT_OF_MEMORY, "memory could not be allocated");
  } catch (const std::exception& error) {
    return keep(HEDDLE_ERROR_INTERNAL, error.what());
  } catch (...) {
    return keep(HEDDLE_ERROR_INTERNAL, "something that is no std::exception was thrown");
  }
}

const char* keep_text(std::string text) {
  kept().text = std::move(text);
  return kept().text.c_str();
}

}  // namespace heddle::capi

const char* heddle_last_error(void) { return heddle::capi::kept().error; }
