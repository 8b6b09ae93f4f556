// A stream of a GPU beside the caller's, for every vendor.
#pragma once

#include <cstddef>
#include <vector>

#include "backend/device.h"

namespace heddle::gpu {

/// `Driver` has the vendor's words: the types Stream and Event (pointers), Scope (this thread works for that device),
/// and the functions make() and destroy() of both, record(event, stream) and wait(stream, event). All but destroy()
/// throw.
template <class Driver>
class GpuSideStream final : public backend::SideStream {
 public:
  GpuSideStream(int device, int marks) : device_(device) {
    try {
      const typename Driver::Scope scope(device);
      Driver::make(stream_);
      Driver::make(following_);
      for (int i = 0; i < marks; ++i) Driver::make(marks_.emplace_back());
    } catch (...) {
      release();
      throw;
    }
  }
  ~GpuSideStream() override { release(); }

  void* stream() const override { return stream_; }

  void follow(void* other) override {
    const typename Driver::Scope scope(device_);
    Driver::record(following_, static_cast<Stream>(other));
    Driver::wait(stream_, following_);
  }

  void mark(int number) override {
    const typename Driver::Scope scope(device_);
    Driver::record(marks_[static_cast<std::size_t>(number)], stream_);
  }

  void wait_for(int number, void* other) const override {
    const typename Driver::Scope scope(device_);
    Driver::wait(static_cast<Stream>(other), marks_[static_cast<std::size_t>(number)]);
  }

 private:
  using Stream = typename Driver::Stream;
  using Event = typename Driver::Event;

  // While the process ends the driver may be gone: nothing here is checked.
  void release() noexcept {
    try {
      const typename Driver::Scope scope(device_);
      for (const Event event : marks_) {
        if (event != nullptr) Driver::destroy(event);
      }
      if (following_ != nullptr) Driver::destroy(following_);
      if (stream_ != nullptr) Driver::destroy(stream_);
    } catch (...) {
    }
  }

  int device_;
  Stream stream_ = nullptr;
  Event following_ = nullptr;
  std::vector<Event> marks_;
};

}  // namespace heddle::gpu
