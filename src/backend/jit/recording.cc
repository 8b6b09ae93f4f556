#include "backend/jit/recording.h"

#include <utility>

namespace heddle::jit {
namespace {

thread_local Recording* current_recording = nullptr;

}  // namespace

void Recording::add(const ArchivedKernel& kernel) {
  const std::scoped_lock lock(mutex_);
  kernels_.try_emplace(kernel.key, kernel);
}

std::vector<ArchivedKernel> Recording::kernels() const {
  const std::scoped_lock lock(mutex_);
  std::vector<ArchivedKernel> all;
  all.reserve(kernels_.size());
  for (const auto& [key, kernel] : kernels_) all.push_back(kernel);
  return all;
}

Recording::Scope::Scope(Recording& recording) : before_(std::exchange(current_recording, &recording)) {}
Recording::Scope::~Scope() { current_recording = before_; }

Recording* Recording::current() { return current_recording; }

}  // namespace heddle::jit
