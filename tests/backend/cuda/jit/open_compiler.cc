// Prints the file of the NVRTC that is taken, or the sentence. A program of its own, since the loader's path is fixed
// when one starts.
//
//   open_compiler [driver]    with a driver that has started before
#include <cstdio>

#include "backend/cuda/driver/driver.h"
#include "backend/cuda/jit/nvrtc.h"

int main(int count, char**) {
  using namespace heddle;
  try {
    if (count > 1) cuda::driver();
    std::fputs(cuda::jit::compiler().path.c_str(), stdout);
  } catch (const Error& error) {
    std::fputs(error.what(), stdout);
  }
  return 0;
}
