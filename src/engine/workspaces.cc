#include "engine/workspaces.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

namespace heddle::engine {
namespace {

constexpr std::size_t kMostStreams = 64, kMostOnHost = 64;

}  // namespace

Workspaces::Lease::Lease(Workspaces& all, const Device& device, void* stream, std::int64_t bytes) : all_(all) {
  if (bytes == 0) return;
  if (device.kind == DeviceKind::cpu) {
    on_host_ = all.take_host_memory(bytes);
    data_ = on_host_.data();
    return;
  }
  of_stream_ = all.of(device, stream);
  enqueuing_ = std::unique_lock(of_stream_->enqueuing);
  Tensor& memory = of_stream_->memory;
  if (memory.count() < bytes) {
    memory = Tensor();  // waits for the runs that use it
    memory = Tensor::empty_on(device, DType::u8, {bytes});
  }
  data_ = memory.data();
}

Workspaces::Lease::~Lease() {
  if (on_host_.data() != nullptr) all_.give_back(std::move(on_host_));
}

Tensor Workspaces::take_host_memory(std::int64_t bytes) {
  Tensor memory;
  {
    const std::lock_guard lock(mutex_);
    if (!on_host_.empty()) {
      const auto found = std::ranges::find_if(on_host_, [&](const Tensor& kept) { return kept.count() >= bytes; });
      std::swap(found == on_host_.end() ? on_host_.back() : *found, on_host_.back());
      memory = std::move(on_host_.back());  // where none is large enough it gives way to a larger one
      on_host_.pop_back();
    }
  }
  if (memory.count() >= bytes) return memory;
  memory = Tensor();
  return Tensor::empty(DType::u8, {bytes});
}

void Workspaces::give_back(Tensor memory) {
  const std::lock_guard lock(mutex_);
  try {
    if (on_host_.size() < kMostOnHost) on_host_.push_back(std::move(memory));
  } catch (const std::bad_alloc&) {  // the list cannot grow: `memory` is freed
  }
}

std::shared_ptr<Workspaces::OfStream> Workspaces::of(const Device& device, void* stream) {
  std::shared_ptr<OfStream> dropped;  // is freed behind the lock: that waits for the device
  const std::lock_guard lock(mutex_);
  const auto found = std::ranges::find_if(of_streams_, [&](const std::shared_ptr<OfStream>& kept) {
    return kept->device == device && kept->stream == stream;
  });
  if (found != of_streams_.end()) {
    of_streams_.splice(of_streams_.begin(), of_streams_, found);
    return of_streams_.front();
  }
  if (of_streams_.size() == kMostStreams) {
    dropped = std::move(of_streams_.back());
    of_streams_.pop_back();
  }
  of_streams_.push_front(std::make_shared<OfStream>());
  of_streams_.front()->device = device;
  of_streams_.front()->stream = stream;
  return of_streams_.front();
}

void Workspaces::clear() {
  std::vector<Tensor> on_host;
  std::list<std::shared_ptr<OfStream>> of_streams;
  const std::lock_guard lock(mutex_);
  on_host.swap(on_host_);
  of_streams.swap(of_streams_);
}

Workspaces& workspaces() {
  static auto* all = new Workspaces;  // never destroyed, as plan_cache()
  return *all;
}

}  // namespace heddle::engine
