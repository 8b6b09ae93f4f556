#include "backend/cuda/launch/cuda_side_stream.h"

#include "backend/cuda/driver/cuda_objects.h"

namespace heddle::cuda {

CudaSideStream::CudaSideStream(int device, int marks) : device_(device) {
  try {
    const ContextScope scope(device);
    check(driver().StreamCreate(&stream_, CUstream_flags::non_blocking), "making a stream");
    check(driver().EventCreate(&following_, CUevent_flags::disable_timing), "making an event");
    for (int i = 0; i < marks; ++i) {
      check(driver().EventCreate(&marks_.emplace_back(), CUevent_flags::disable_timing), "making an event");
    }
  } catch (...) {
    release();
    throw;
  }
}

CudaSideStream::~CudaSideStream() { release(); }

// While the process ends the driver may be gone: nothing here is checked.
void CudaSideStream::release() noexcept {
  try {
    const ContextScope scope(device_);
    for (CUevent event : marks_) {
      if (event != nullptr) driver().EventDestroy(event);
    }
    if (following_ != nullptr) driver().EventDestroy(following_);
    if (stream_ != nullptr) driver().StreamDestroy(stream_);
  } catch (...) {
  }
}

void CudaSideStream::follow(void* other) {
  const ContextScope scope(device_);
  check(driver().EventRecord(following_, static_cast<CUstream>(other)), "recording an event");
  check(driver().StreamWaitEvent(stream_, following_, 0), "making a stream wait");
}

void CudaSideStream::mark(int number) {
  const ContextScope scope(device_);
  check(driver().EventRecord(marks_[static_cast<std::size_t>(number)], stream_), "recording an event");
}

void CudaSideStream::wait_for(int number, void* other) const {
  const ContextScope scope(device_);
  check(driver().StreamWaitEvent(static_cast<CUstream>(other), marks_[static_cast<std::size_t>(number)], 0),
        "making a stream wait");
}

}  // namespace heddle::cuda
