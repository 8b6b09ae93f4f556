// Kernels of functions that have no plan which could own them: compiled and loaded once a process, device and type.
#pragma once

#include <fmt/format.h>

#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <tuple>

#include "backend/gpu/gpu.h"
#include "backend/gpu/texts.h"
#include "heddle/error.h"
#include "problem/problem.h"

namespace heddle::gpu {

struct KeptKernel {
  std::unique_ptr<Program> program;
  void* function = nullptr;
};

/// One function's kernels, by `Key`. An object lives as long as the process: when statics are destroyed the driver may
/// be gone.
template <class Key>
class KeptKernels {
 public:
  explicit KeptKernels(const char* function) : function_(function) {}

  /// `text(key)`: a KernelText. Throws as Gpu::load(), and for a device that is not there.
  template <class Text>
  const KeptKernel& on(const Gpu& gpu, std::string_view tensor, const Device& device, const Key& key, Text&& text) {
    if (!gpu.keeps_kernels()) {
      KernelText made = text(key);
      thread_local KeptKernel last;
      last.program = gpu.load(device.index, gpu.source(device.index, std::move(made.name), made.text));
      last.function = last.program->function(function_);
      return last;
    }
    if (device.index < 0 || device.index >= gpu.devices().count()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("{} is on {}, which is not there", tensor, problem::name(device)));
    }
    const std::scoped_lock lock(mutex_);
    KeptKernel& kernel = kernels_[{&gpu, device.index, key}];
    if (kernel.function == nullptr) {
      KernelText made = text(key);
      kernel.program = gpu.load(device.index, gpu.source(device.index, std::move(made.name), made.text));
      kernel.function = kernel.program->function(function_);
    }
    return kernel;
  }

 private:
  const char* function_;
  std::mutex mutex_;
  std::map<std::tuple<const Gpu*, int, Key>, KeptKernel> kernels_;
};

}  // namespace heddle::gpu
