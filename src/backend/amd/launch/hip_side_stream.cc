#include "backend/amd/launch/hip_side_stream.h"

#include "backend/amd/driver/hip_objects.h"
#include "backend/gpu/gpu_side_stream.h"

namespace heddle::amd {
namespace {

struct Streams {
  using Scope = DeviceScope;
  using Stream = HipStream;
  using Event = HipEvent;

  static void make(Stream& stream) {
    check(hip().StreamCreateWithFlags(&stream, HipStreamFlags::non_blocking), "making a stream");
  }
  static void make(Event& event) {
    check(hip().EventCreateWithFlags(&event, HipEventFlags::disable_timing), "making an event");
  }
  static void destroy(Stream stream) { hip().StreamDestroy(stream); }
  static void destroy(Event event) { hip().EventDestroy(event); }
  static void record(Event event, Stream stream) { check(hip().EventRecord(event, stream), "recording an event"); }
  static void wait(Stream stream, Event event) {
    check(hip().StreamWaitEvent(stream, event, 0), "making a stream wait");
  }
};

}  // namespace

std::unique_ptr<backend::SideStream> make_side_stream(int device, int marks) {
  return std::make_unique<gpu::GpuSideStream<Streams>>(device, marks);
}

}  // namespace heddle::amd
