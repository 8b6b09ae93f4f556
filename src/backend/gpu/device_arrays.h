// Several arrays in one block of a device's memory.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "backend/gpu/gpu.h"

namespace heddle::gpu {

/// Arrays are added, uploaded together, and found again by what add() returned.
class DeviceArrays {
 public:
  template <class T>
  struct Offset {
    std::size_t bytes;
  };

  /// Each begins at a multiple of 16 bytes: kernels read them 16 bytes at a time.
  template <class T>
  Offset<T> add(const std::vector<T>& array) {
    constexpr std::size_t kAlignment = 16;
    const std::size_t begin = (bytes_.size() + kAlignment - 1) / kAlignment * kAlignment;
    bytes_.resize(begin + array.size() * sizeof(T));
    if (!array.empty()) std::memcpy(bytes_.data() + begin, array.data(), array.size() * sizeof(T));
    return {begin};
  }
  /// Throws Error(out_of_memory).
  void upload(const backend::DeviceInterface& devices, int device) {
    memory_ = Memory(devices, device, bytes_.size());
    if (!bytes_.empty()) devices.copy_and_wait(device, memory_.data(), bytes_.data(), bytes_.size());
    bytes_ = {};
  }
  template <class T>
  const T* at(Offset<T> offset) const {
    return reinterpret_cast<const T*>(static_cast<const char*>(memory_.data()) + offset.bytes);
  }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  std::vector<char> bytes_;  // until upload()
  Memory memory_;
};

}  // namespace heddle::gpu
