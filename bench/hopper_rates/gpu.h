// Launches and times on one GPU, for measurements: every wait is meant.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "backend/cuda/driver/cuda_objects.h"
#include "backend/cuda/jit/cuda_jit.h"
#include "kernels.h"

namespace heddle::bench {

/// One kernel of a source, loaded.
class LoadedKernel {
 public:
  LoadedKernel(const cuda::jit::Source& source, const char* name, int shared_bytes);
  cuda::CUfunction function() const { return function_; }
  int shared_bytes() const { return shared_bytes_; }

 private:
  int shared_bytes_;
  std::shared_ptr<const cuda::jit::Cubin> cubin_;
  cuda::Module module_;
  cuda::CUfunction function_;
};

struct Shape {
  int blocks = 1;
  int threads = 32;
  bool overlaps = false;  // may begin before the launch in front of it has ended
};

/// Device 0, its primary context current, and a stream.
class Gpu {
 public:
  Gpu();
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  /// Only enqueues.
  template <class... Parameters>
  void launch(const LoadedKernel& kernel, const Shape& shape, const Parameters&... parameters) const {
    std::array<void*, sizeof...(Parameters)> pointers{const_cast<void*>(static_cast<const void*>(&parameters))...};
    launch_with(kernel, shape, pointers.data());
  }
  void wait() const;
  /// Seconds between two points of the stream.
  void mark_begin() const;
  void mark_end() const;
  double seconds_between_marks() const;

  cuda::CUstream stream() const { return stream_; }

 private:
  void launch_with(const LoadedKernel& kernel, const Shape& shape, void** parameters) const;
  cuda::ContextScope scope_;
  cuda::CUstream stream_ = nullptr;
  cuda::CUevent begin_ = nullptr, end_ = nullptr;
};

/// `count` spans on the device.
class Spans {
 public:
  explicit Spans(int count) : memory_(0, static_cast<std::size_t>(count) * sizeof(Span)), count_(count) {}
  void* data() const { return memory_.data(); }
  std::vector<Span> read() const;

 private:
  cuda::DeviceMemory memory_;
  int count_;
};

}  // namespace heddle::bench
