#include "errors.h"

#include <pthread.h>

#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include "heddle/error.h"

namespace heddle::capi {
namespace {

// The sentence of this thread's last call: it points into its texts or at a literal, since keeping a sentence may
// itself fail for lack of memory.
thread_local const char* error_here = "";

// One thread's texts, which go with it. They are no thread_local: glibc allocates to remember a destructor, and ends
// the process if it cannot.
struct Texts {
  std::string sentence, text;
};

Texts& texts() {
  static const std::optional<pthread_key_t> key = []() -> std::optional<pthread_key_t> {
    pthread_key_t made{};
    const auto destroy = [](void* object) { delete static_cast<Texts*>(object); };
    if (::pthread_key_create(&made, destroy) != 0) return std::nullopt;
    return made;
  }();
  if (!key) throw std::bad_alloc();
  if (void* const object = ::pthread_getspecific(*key)) return *static_cast<Texts*>(object);
  auto made = std::make_unique<Texts>();
  if (::pthread_setspecific(*key, made.get()) != 0) throw std::bad_alloc();
  return *made.release();
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
    std::string& kept = texts().sentence;
    kept = sentence;
    error_here = kept.c_str();
  } catch (...) {
    error_here = "the call failed, and there was no memory to say why";
  }
  return status;
}

}  // namespace

void begin_call() noexcept { error_here = ""; }

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
  std::string& kept = texts().text;
  kept = std::move(text);
  return kept.c_str();
}

}  // namespace heddle::capi

const char* heddle_last_error(void) { return heddle::capi::error_here; }
