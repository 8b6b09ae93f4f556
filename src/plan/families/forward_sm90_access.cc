#include "plan/families/forward_sm90_access.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string_view>

namespace heddle::plan {
namespace {

constexpr std::int64_t kTmaBytes = 16;                      // addresses and strides of a tensor map are multiples
constexpr std::int64_t kStrideEnd = std::int64_t{1} << 40;  // and strides end there
constexpr std::int64_t kBoxRows = 8;                        // after which the swizzle repeats

// Why TMA does not take the tensor; empty where it does. Strides of axes with one element say nothing.
std::string tma_refuses(const ConstTensorView& view) {
  for (int axis = 0; axis + 1 < view.rank(); ++axis) {
    if (view.shape[axis] == 1) continue;
    const std::int64_t stride = view.strides[axis], unit = kTmaBytes / size_of(view.dtype),
                       end = kStrideEnd / size_of(view.dtype);
    if (stride > 0 && stride % unit == 0 && stride < end) continue;
    return fmt::format("its strides are {}, and TMA takes positive multiples of {} elements below {}",
                       to_string(view.strides), unit, end);
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) % kTmaBytes == 0) return {};
  return fmt::format("its address is no multiple of {}, as TMA takes", kTmaBytes);
}

// Why threads cannot store two elements of an o of another type at a time; empty where they can.
std::string pairs_refused(const ConstTensorView& o) {
  for (int axis = 0; axis + 1 < o.rank(); ++axis) {
    if (o.shape[axis] == 1 || o.strides[axis] % 2 == 0) continue;
    return fmt::format("its strides are {}, and pairs of elements take multiples of 2", to_string(o.strides));
  }
  const std::int64_t bytes = 2 * size_of(o.dtype);
  if (reinterpret_cast<std::uintptr_t>(o.data) % static_cast<std::uintptr_t>(bytes) == 0) return {};
  return fmt::format("its address is no multiple of {}, as pairs of elements take", bytes);
}

// The most bytes, up to 16, that divide the address of every row; and, where they are read one by one (ptx/gather.cuh),
// the row.
int copied_bytes(const ConstTensorView& view) {
  constexpr std::int64_t kSmallestCopy = 4;
  const std::int64_t element = size_of(view.dtype);
  std::int64_t bytes = std::gcd(kTmaBytes, static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data) % 16));
  for (int axis = 0; axis + 1 < view.rank(); ++axis) {
    if (view.shape[axis] > 1) bytes = std::gcd(bytes, std::abs(view.strides[axis] % kTmaBytes) * element);
  }
  if (bytes < kSmallestCopy) bytes = std::gcd(bytes, view.shape[view.rank() - 1] * element);
  return static_cast<int>(bytes);
}

int gather(std::string_view name, const ConstTensorView& view, std::int64_t page_rows,
           std::vector<std::string>& reasons) {
  if (view.count() == 0) return 0;
  std::string reason = tma_refuses(view);
  if (reason.empty() && page_rows % kBoxRows != 0) {
    reason = fmt::format("its pages have {} rows, and TMA takes multiples of {}", page_rows, kBoxRows);
  }
  if (reason.empty()) return 0;
  const int bytes = copied_bytes(view);
  reasons.push_back(fmt::format("{} is gathered by threads, {} bytes at a time: {}", name, bytes, reason));
  return bytes;
}

}  // namespace

shared::ForwardSm90Config ForwardSm90Access::in(shared::ForwardSm90Config config) const {
  config.q_gather = q_gather;
  config.k_gather = k_gather;
  config.v_gather = v_gather;
  config.page_rows = page_rows;
  config.odd_o = odd_o;
  return config;
}

DType forward_sm90_stored_type(DType q) { return size_of(q) == 1 ? DType::bf16 : q; }

ForwardSm90Access forward_sm90_access(const AttentionTensors& tensors, std::int64_t page_rows) {
  ForwardSm90Access access;
  access.page_rows = static_cast<int>(page_rows);
  access.q_gather = gather("q", tensors.q, 0, access.reasons);
  access.k_gather = gather("k", tensors.k, page_rows, access.reasons);
  access.v_gather = gather("v", tensors.v, page_rows, access.reasons);
  const ConstTensorView o = tensors.o;
  if (o.count() == 0) return access;
  const bool converted = o.dtype != forward_sm90_stored_type(tensors.q.dtype);
  if (const std::string reason = converted ? pairs_refused(o) : tma_refuses(o); !reason.empty()) {
    access.odd_o = true;
    access.reasons.push_back(fmt::format("o is stored by threads, {} bytes at a time: {}", size_of(o.dtype), reason));
  }
  return access;
}

}  // namespace heddle::plan
