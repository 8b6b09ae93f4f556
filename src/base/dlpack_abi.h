// The binary interface of DLPack, versions 0.x and 1.x (github.com/dmlc/dlpack), as plain structs of the same names and
// layout, so that no header of it is needed to build.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct DLDevice {
  std::int32_t device_type;
  std::int32_t device_id;
};

struct DLDataType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  std::int32_t ndim;
  DLDataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // in elements; null: row-major
  std::uint64_t byte_offset;
};

struct DLManagedTensor {
  DLTensor dl_tensor;
  void* manager_ctx;
  void (*deleter)(DLManagedTensor* self);  // may be null
};

struct DLPackVersion {
  std::uint32_t major;
  std::uint32_t minor;
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);  // may be null
  std::uint64_t flags;
  DLTensor dl_tensor;
};

}  // extern "C"

static_assert(sizeof(void*) != 8 ||
                  (sizeof(DLTensor) == 48 && sizeof(DLManagedTensor) == 64 && sizeof(DLManagedTensorVersioned) == 80),
              "DLPack's layout");

namespace heddle::base {

enum DLDeviceCode : std::int32_t {
  kDLCpu = 1,
  kDLCuda = 2,
  kDLCudaHost = 3,
  kDLRocm = 10,
  kDLRocmHost = 11,
  kDLCudaManaged = 13,
};

enum DLTypeCode : std::uint8_t {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLBool = 6,
  kDLFloat8E4m3fn = 10,
  kDLFloat8E5m2 = 12,
};

inline constexpr DLPackVersion kDLPackVersion{1, 1};
inline constexpr std::uint64_t kDLFlagReadOnly = 1;

}  // namespace heddle::base
