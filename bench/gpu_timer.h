// Seconds of work on a GPU's stream, by events.
#pragma once

#include <algorithm>
#include <vector>

#include "backend/cuda/driver/cuda_objects.h"
#include "backend/cuda/driver/driver.h"

namespace heddle::bench {

/// A stream of its own, and how long a call takes there.
class GpuTimer {
 public:
  explicit GpuTimer(int device) : scope_(device), flushed_(device, kFlushedBytes) {
    cuda::check(cuda::driver().StreamCreate(&stream_, cuda::CUstream_flags::non_blocking), "making a stream");
  }
  ~GpuTimer() {
    for (cuda::CUevent event : events_) cuda::driver().EventDestroy(event);
    cuda::driver().StreamDestroy(stream_);
  }
  GpuTimer(const GpuTimer&) = delete;
  GpuTimer& operator=(const GpuTimer&) = delete;

  void* stream() const { return stream_; }

  /// The median of `times` calls of `work`, which enqueues on stream(). Before each a buffer larger than L2 is zeroed,
  /// as triton's do_bench does it and compare.py: operands come from memory, and the chip does not sink to the clock of
  /// endless tensor work.
  template <class Work>
  double seconds(int times, Work&& work) {
    for (int i = 0; i < times; ++i) {
      const auto zeroed = reinterpret_cast<cuda::CUdeviceptr>(flushed_.data());
      cuda::check(cuda::driver().MemsetD8Async(zeroed, 0, flushed_.bytes(), stream_), "zeroing memory");
      record(2 * static_cast<std::size_t>(i));
      work();
      record(2 * static_cast<std::size_t>(i) + 1);
    }
    cuda::check(cuda::driver().StreamSynchronize(stream_), "waiting for the GPU");
    std::vector<float> milliseconds(static_cast<std::size_t>(times));
    for (std::size_t i = 0; i < milliseconds.size(); ++i) {
      cuda::check(cuda::driver().EventElapsedTime(&milliseconds[i], events_[2 * i], events_[2 * i + 1]),
                  "reading two events");
    }
    std::ranges::sort(milliseconds);
    return 1e-3 * static_cast<double>(milliseconds[milliseconds.size() / 2]);
  }

 private:
  static constexpr std::size_t kFlushedBytes = std::size_t{256} << 20;  // several times L2

  void record(std::size_t number) {
    if (number == events_.size()) {
      events_.push_back(nullptr);
      cuda::check(cuda::driver().EventCreate(&events_.back(), cuda::CUevent_flags::timed), "making an event");
    }
    cuda::check(cuda::driver().EventRecord(events_[number], stream_), "recording an event");
  }

  cuda::ContextScope scope_;
  cuda::DeviceMemory flushed_;
  cuda::CUstream stream_ = nullptr;
  std::vector<cuda::CUevent> events_;
};

}  // namespace heddle::bench
