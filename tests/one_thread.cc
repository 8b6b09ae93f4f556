// Linked into tests that say ONE_THREAD: starting a thread ends the program. The C library's function is overridden, so
// std::thread, oneTBB and everything else are caught.
#include <pthread.h>

#include <cstdio>
#include <cstdlib>

extern "C" int pthread_create(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*) noexcept {
  std::fputs("a test that says ONE_THREAD in its CMakeLists.txt started a thread\n", stderr);
  std::abort();
}
