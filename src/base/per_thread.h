// Objects of which each thread has its own.
#pragma once

#include <pthread.h>

#include <memory>
#include <new>

namespace heddle::base {

/// Makes an object for each thread that asks for it, which goes with the thread. A thread_local whose type has a
/// destructor would end the process where memory is out: glibc allocates to remember the destructor, and calls a
/// failure fatal. An object of this class lives as long as the process.
template <class T>
class PerThread {
 public:
  PerThread() : is_there_(::pthread_key_create(&key_, [](void* object) { delete static_cast<T*>(object); }) == 0) {}
  PerThread(const PerThread&) = delete;
  PerThread& operator=(const PerThread&) = delete;

  /// This thread's object. Throws std::bad_alloc if it has none yet and memory, or what threads may keep, is out.
  T& here() {
    if (!is_there_) throw std::bad_alloc();
    if (void* const object = ::pthread_getspecific(key_)) return *static_cast<T*>(object);
    auto made = std::make_unique<T>();
    if (::pthread_setspecific(key_, made.get()) != 0) throw std::bad_alloc();
    return *made.release();
  }

 private:
  pthread_key_t key_{};
  bool is_there_;
};

}  // namespace heddle::base
