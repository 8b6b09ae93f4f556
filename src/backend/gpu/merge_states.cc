#include "backend/gpu/merge_states.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>

#include "backend/gpu/texts.h"
#include "heddle/error.h"
#include "problem/problem.h"
#include "shared/merge_states.h"

namespace heddle::gpu {
namespace {

using backend::MergeArguments;
using backend::MergePart;
using shared::MergeParams;
using shared::StorageType;

constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kVectorBytes = 16;
constexpr unsigned kMostGrid = 1 << 16;  // the kernel's warps then take rows one after the other

struct Kernel {
  std::unique_ptr<Program> program;
  void* function = nullptr;
};

/// Kept for the process: a call has no plan that could own it, and when statics are destroyed the driver may be gone.
const Kernel& kernel_on(const Gpu& gpu, int device, StorageType parts, StorageType output) {
  static std::mutex mutex;
  static auto* kernels = new std::map<std::tuple<const Gpu*, int, StorageType, StorageType>, Kernel>;
  const std::scoped_lock lock(mutex);
  Kernel& kernel = (*kernels)[{&gpu, device, parts, output}];
  if (kernel.function == nullptr) {
    KernelText text = merge_states_text(parts, output);
    kernel.program = gpu.load(device, gpu.source(device, std::move(text.name), std::move(text.text)));
    kernel.function = kernel.program->function("merge_states");
  }
  return kernel;
}

/// As plan::output_type_of(), but by the numbers that the kernel compares: there `mixed` stands in place of `same`.
StorageType type_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return StorageType::f64;
    case DType::f32:
      return StorageType::f32;
    case DType::f16:
      return StorageType::f16;
    case DType::bf16:
      return StorageType::bf16;
    case DType::e4m3:
      return StorageType::e4m3;
    case DType::e5m2:
      return StorageType::e5m2;
    default:
      throw Error(ErrorCode::internal, fmt::format("merge_states of {}", name(dtype)));
  }
}

void set_strides(long long (&to)[3], const ConstTensorView& view) { std::copy_n(view.strides.begin(), 3, to); }

/// Eight columns of every row lie at a multiple of what a thread moves at once, and none is left over.
bool is_wide(const ConstTensorView& o) {
  const std::int64_t size = size_of(o.dtype), bytes = std::min(kVectorBytes, size * shared::kMergeColumns);
  const auto divided = [&](std::int64_t x) { return x % bytes == 0; };
  for (int axis = 0; axis < 3; ++axis) {
    if (o.shape[axis] > 1 && !divided(o.strides[axis] * size)) return false;
  }
  return o.shape[3] % shared::kMergeColumns == 0 && reinterpret_cast<std::uintptr_t>(o.data) % bytes == 0;
}

MergeParams params_of(const MergeArguments& arguments) {
  const TensorView& o = arguments.o;
  const std::int64_t rows = o.shape[0] * o.shape[1] * o.shape[2];
  if (std::ssize(arguments.parts) > shared::kMergeParts) {
    throw Error(ErrorCode::unsupported,
                fmt::format("o_parts has {} parts; on a GPU up to {} are accepted (merge some of them first)",
                            arguments.parts.size(), shared::kMergeParts));
  }
  if (rows > kMostRows || o.shape[3] > kMostRows) {
    throw Error(ErrorCode::unsupported, fmt::format("o has shape {}; on a GPU up to {} rows and columns are accepted",
                                                    to_string(o.shape), kMostRows));
  }
  MergeParams params{};
  params.o = o.data;
  set_strides(params.o_stride, o);
  params.wide = is_wide(o);
  if (arguments.lse) {
    params.lse = arguments.lse->data;
    set_strides(params.lse_stride, *arguments.lse);
    params.lse_type = type_of(arguments.lse->dtype);
  }
  params.count = static_cast<int>(arguments.parts.size());
  params.rows = static_cast<int>(rows);
  params.heads = static_cast<int>(o.shape[1]);
  params.rows_of_head = static_cast<int>(o.shape[2]);
  params.columns = static_cast<int>(o.shape[3]);
  const std::int64_t vectors = (o.shape[3] + shared::kMergeColumns - 1) / shared::kMergeColumns;
  params.lanes = static_cast<int>(std::bit_ceil(static_cast<std::uint64_t>(std::clamp<std::int64_t>(vectors, 1, 32))));
  for (std::size_t i = 0; i < arguments.parts.size(); ++i) {
    const MergePart& part = arguments.parts[i];
    shared::MergePart& to = params.part[i];
    to.o = part.o.data;
    to.lse = part.lse.data;
    set_strides(to.o_stride, part.o);
    set_strides(to.lse_stride, part.lse);
    to.o_type = type_of(part.o.dtype);
    to.lse_type = type_of(part.lse.dtype);
    to.wide = is_wide(part.o);
  }
  return params;
}

/// The storage type of all parts.
StorageType parts_type(const MergeArguments& arguments) {
  const DType first = arguments.parts.front().o.dtype;
  const bool alike = std::ranges::all_of(arguments.parts, [&](const MergePart& part) { return part.o.dtype == first; });
  return alike ? type_of(first) : StorageType::mixed;
}

}  // namespace

void merge_states(const Gpu& gpu, const MergeArguments& arguments) {
  MergeParams params = params_of(arguments);
  if (params.rows == 0) return;
  const int device = arguments.o.device.index;
  if (device < 0 || device >= gpu.devices().count()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("o is on {}, which is not there", problem::name(arguments.o.device)));
  }
  const Kernel& kernel = kernel_on(gpu, device, parts_type(arguments), type_of(arguments.o.dtype));
  const std::int64_t rows_of_cta = std::int64_t{shared::kMergeThreads} / params.lanes;
  const std::int64_t grid = (std::int64_t{params.rows} + rows_of_cta - 1) / rows_of_cta;
  const Launch launch = {.ctas = std::min(static_cast<unsigned>(grid), kMostGrid), .threads = shared::kMergeThreads};
  kernel.program->launch(kernel.function, launch, arguments.stream, &params, "launching merge_states");
}

}  // namespace heddle::gpu
