// The entry of the fuzzer for DLPack capsules of both versions (tools/fuzz.py; fuzz_dlpack_test.cc drives it, too). A
// capsule is taken, and its deleter runs once, when the last tensor of it goes; or it is refused, and stays the
// caller's. What was taken comes back from an export as it was.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <optional>

#include "base/dlpack_abi.h"
#include "fuzz_bytes.h"
#include "heddle/error.h"
#include "heddle/tensor.h"

namespace {

using namespace heddle;
using heddle::test::Bytes;

void require(bool condition) {
  if (!condition) std::abort();
}

template <class Managed>
struct Producer {
  std::array<std::int64_t, 12> shape{}, strides{};
  int deleted = 0;
  Managed managed{};
};

/// The elements lie within `size` bytes from `offset` on.
bool lies_inside(const TensorView& view, std::uint64_t offset, std::uint64_t size) {
  if (offset > size) return false;
  std::int64_t lowest = 0, highest = 0;
  for (int i = 0; i < view.rank(); ++i) {
    if (view.shape[i] > 64 || view.strides[i] > 64 || view.strides[i] < -64) return false;
    const std::int64_t last = (view.shape[i] - 1) * view.strides[i];
    (last < 0 ? lowest : highest) += last;
  }
  const auto bytes = static_cast<std::int64_t>(size_of(view.dtype)), begin = static_cast<std::int64_t>(offset);
  return begin + lowest * bytes >= 0 && begin + (highest + 1) * bytes <= static_cast<std::int64_t>(size);
}

template <class Managed>
Managed* exported(const Tensor& tensor) {
  if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>)
    return tensor.to_dlpack_versioned();
  else
    return tensor.to_dlpack();
}

template <class Managed>
void import(Bytes& bytes) {
  alignas(64) static std::array<std::byte, 4096> memory{};
  Producer<Managed> producer;
  DLTensor& x = producer.managed.dl_tensor;
  x.data = bytes.next() < 240 ? memory.data() : nullptr;
  x.device = {static_cast<std::int32_t>(bytes.next() < 200 ? std::int64_t{base::kDLCpu} : bytes.any(16)),
              static_cast<std::int32_t>(bytes.any(2))};
  x.ndim = static_cast<std::int32_t>(bytes.any(9));
  x.dtype = {static_cast<std::uint8_t>(bytes.any(13)), static_cast<std::uint8_t>(8 << bytes.next() % 4),
             static_cast<std::uint16_t>(bytes.next() < 240 ? 1 : bytes.next())};
  for (std::size_t i = 0; i < producer.shape.size(); ++i) {
    producer.shape[i] = bytes.any(5), producer.strides[i] = bytes.any(8);
    if (bytes.next() >= 240) producer.strides[i] = -(producer.strides[i] % 64);
  }
  x.shape = bytes.next() < 245 ? producer.shape.data() : nullptr;
  x.strides = bytes.next() < 200 ? producer.strides.data() : nullptr;
  x.byte_offset = static_cast<std::uint64_t>(bytes.next() < 200 ? bytes.next() % 8 * 8 : bytes.next());
  producer.managed.manager_ctx = &producer;
  if (bytes.next() < 240) {
    producer.managed.deleter = [](Managed* self) { ++static_cast<Producer<Managed>*>(self->manager_ctx)->deleted; };
  }
  if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
    producer.managed.version = {static_cast<std::uint32_t>(bytes.next() < 240 ? 1 : bytes.next()), bytes.next()};
    producer.managed.flags = bytes.next();
  }
  const int most = producer.managed.deleter != nullptr ? 1 : 0;
  std::optional<Tensor> taken;
  try {
    taken = Tensor::from_dlpack(&producer.managed);
  } catch (const Error& error) {
    require(error.code() != ErrorCode::internal && std::strlen(error.what()) > 0 && producer.deleted == 0);
    return;
  }
  require(taken->view().rank() == x.ndim && taken->count() >= 0);
  for (int i = 0; i < x.ndim; ++i) require(taken->shape()[i] == producer.shape[static_cast<std::size_t>(i)]);
  {
    const Tensor again = Tensor::from_dlpack(exported<Managed>(*taken));
    require(again.dtype() == taken->dtype() && again.shape() == taken->shape() && again.data() == taken->data());
    require(again.view().strides == taken->view().strides && again.view().device == taken->view().device);
    if (x.device.device_type == base::kDLCpu && x.data != nullptr &&
        lies_inside(taken->view(), x.byte_offset, memory.size())) {
      require(again.to(DType::f64).count() == taken->count());
    }
    taken.reset();
    require(producer.deleted == 0);
  }
  require(producer.deleted == most);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Bytes bytes(data, size);
  if (bytes.next() % 2 == 0) {
    import <DLManagedTensor>(bytes);
  } else {
    import <DLManagedTensorVersioned>(bytes);
  }
  return 0;
}
