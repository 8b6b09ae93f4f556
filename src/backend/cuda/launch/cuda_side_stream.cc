#include "backend/cuda/launch/cuda_side_stream.h"

#include "backend/cuda/driver/cuda_objects.h"
#include "backend/gpu/gpu_side_stream.h"

namespace heddle::cuda {
namespace {

struct Streams {
  using Scope = ContextScope;
  using Stream = CUstream;
  using Event = CUevent;

  static void make(Stream& stream) {
    check(driver().StreamCreate(&stream, CUstream_flags::non_blocking), "making a stream");
  }
  static void make(Event& event) {
    check(driver().EventCreate(&event, CUevent_flags::disable_timing), "making an event");
  }
  static void destroy(Stream stream) { driver().StreamDestroy(stream); }
  static void destroy(Event event) { driver().EventDestroy(event); }
  static void record(Event event, Stream stream) { check(driver().EventRecord(event, stream), "recording an event"); }
  static void wait(Stream stream, Event event) {
    check(driver().StreamWaitEvent(stream, event, 0), "making a stream wait");
  }
};

}  // namespace

std::unique_ptr<backend::SideStream> make_side_stream(int device, int marks) {
  return std::make_unique<gpu::GpuSideStream<Streams>>(device, marks);
}

}  // namespace heddle::cuda
