#include "backend/amd/launch/hip_side_stream.h"

#include "backend/amd/driver/hip_objects.h"

namespace heddle::amd {

HipSideStream::HipSideStream(int device, int marks) : device_(device) {
  try {
    const DeviceScope scope(device);
    check(hip().StreamCreateWithFlags(&stream_, HipStreamFlags::non_blocking), "making a stream");
    check(hip().EventCreateWithFlags(&following_, HipEventFlags::disable_timing), "making an event");
    for (int i = 0; i < marks; ++i) {
      check(hip().EventCreateWithFlags(&marks_.emplace_back(), HipEventFlags::disable_timing), "making an event");
    }
  } catch (...) {
    release();
    throw;
  }
}

HipSideStream::~HipSideStream() { release(); }

// While the process ends HIP may be gone: nothing here is checked.
void HipSideStream::release() noexcept {
  try {
    const DeviceScope scope(device_);
    for (HipEvent event : marks_) {
      if (event != nullptr) hip().EventDestroy(event);
    }
    if (following_ != nullptr) hip().EventDestroy(following_);
    if (stream_ != nullptr) hip().StreamDestroy(stream_);
  } catch (...) {
  }
}

void HipSideStream::follow(void* other) {
  const DeviceScope scope(device_);
  check(hip().EventRecord(following_, static_cast<HipStream>(other)), "recording an event");
  check(hip().StreamWaitEvent(stream_, following_, 0), "making a stream wait");
}

void HipSideStream::mark(int number) {
  const DeviceScope scope(device_);
  check(hip().EventRecord(marks_[static_cast<std::size_t>(number)], stream_), "recording an event");
}

void HipSideStream::wait_for(int number, void* other) const {
  const DeviceScope scope(device_);
  check(hip().StreamWaitEvent(static_cast<HipStream>(other), marks_[static_cast<std::size_t>(number)], 0),
        "making a stream wait");
}

}  // namespace heddle::amd
