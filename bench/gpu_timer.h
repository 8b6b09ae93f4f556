// Seconds of work on a GPU's stream, by two events.
#pragma once

#include "backend/cuda/driver/device.h"
#include "backend/cuda/driver/driver.h"

namespace heddle::bench {

/// A stream of its own, with two events on it.
class GpuTimer {
 public:
  explicit GpuTimer(int device) : scope_(device) {
    cuda::check(cuda::driver().StreamCreate(&stream_, cuda::CUstream_flags::non_blocking), "making a stream");
    cuda::check(cuda::driver().EventCreate(&begin_, cuda::CUevent_flags::timed), "making an event");
    cuda::check(cuda::driver().EventCreate(&end_, cuda::CUevent_flags::timed), "making an event");
  }
  ~GpuTimer() {
    cuda::driver().EventDestroy(end_);
    cuda::driver().EventDestroy(begin_);
    cuda::driver().StreamDestroy(stream_);
  }
  GpuTimer(const GpuTimer&) = delete;
  GpuTimer& operator=(const GpuTimer&) = delete;

  void* stream() const { return stream_; }

  /// Of one of `times` calls of `work`, which enqueues on stream().
  template <class Work>
  double seconds(int times, Work&& work) {
    cuda::check(cuda::driver().EventRecord(begin_, stream_), "recording an event");
    for (int i = 0; i < times; ++i) work();
    cuda::check(cuda::driver().EventRecord(end_, stream_), "recording an event");
    cuda::check(cuda::driver().EventSynchronize(end_), "waiting for the GPU");
    float milliseconds = 0;
    cuda::check(cuda::driver().EventElapsedTime(&milliseconds, begin_, end_), "reading two events");
    return 1e-3 * static_cast<double>(milliseconds) / times;
  }

 private:
  cuda::ContextScope scope_;
  cuda::CUstream stream_ = nullptr;
  cuda::CUevent begin_ = nullptr, end_ = nullptr;
};

}  // namespace heddle::bench
