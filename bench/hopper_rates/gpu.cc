#include "gpu.h"

namespace heddle::bench {

using cuda::check;
using cuda::driver;

LoadedKernel::LoadedKernel(const cuda::jit::Source& source, const char* name, int shared_bytes)
    : shared_bytes_(shared_bytes),
      cubin_(cuda::jit::build(source)),
      module_(0, cubin_->bytes),
      function_(module_.function(name, shared_bytes)) {}

Gpu::Gpu() : scope_(0) {
  check(driver().StreamCreate(&stream_, cuda::CUstream_flags::non_blocking), "making a stream");
  check(driver().EventCreate(&begin_, cuda::CUevent_flags::timed), "making an event");
  check(driver().EventCreate(&end_, cuda::CUevent_flags::timed), "making an event");
}

Gpu::~Gpu() {
  driver().EventDestroy(end_);
  driver().EventDestroy(begin_);
  driver().StreamDestroy(stream_);
}

void Gpu::launch_with(const LoadedKernel& kernel, const Shape& shape, void** parameters) const {
  cuda::CUlaunchAttribute overlap{};
  overlap.id = cuda::CUlaunchAttributeID::programmatic_stream_serialization;
  overlap.value.programmaticStreamSerializationAllowed = 1;
  const cuda::CUlaunchConfig config{.gridDimX = static_cast<unsigned>(shape.blocks),
                                    .gridDimY = 1,
                                    .gridDimZ = 1,
                                    .blockDimX = static_cast<unsigned>(shape.threads),
                                    .blockDimY = 1,
                                    .blockDimZ = 1,
                                    .sharedMemBytes = static_cast<unsigned>(kernel.shared_bytes()),
                                    .hStream = stream_,
                                    .attrs = shape.overlaps ? &overlap : nullptr,
                                    .numAttrs = shape.overlaps ? 1U : 0U};
  check(driver().LaunchKernelEx(&config, kernel.function(), parameters, nullptr), "launching a kernel");
}

void Gpu::wait() const { check(driver().StreamSynchronize(stream_), "waiting for a kernel"); }
void Gpu::mark_begin() const { check(driver().EventRecord(begin_, stream_), "recording an event"); }
void Gpu::mark_end() const { check(driver().EventRecord(end_, stream_), "recording an event"); }

double Gpu::seconds_between_marks() const {
  float milliseconds = 0;
  check(driver().EventSynchronize(end_), "waiting for an event");
  check(driver().EventElapsedTime(&milliseconds, begin_, end_), "reading the time between events");
  return 1e-3 * static_cast<double>(milliseconds);
}

std::vector<Span> Spans::read() const {
  std::vector<Span> spans(static_cast<std::size_t>(count_));
  cuda::copy_and_wait(0, spans.data(), memory_.data(), memory_.bytes());
  return spans;
}

}  // namespace heddle::bench
