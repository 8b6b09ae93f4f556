#include "backend/gpu/merge_states_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "backend/gpu/kept_kernels.h"
#include "backend/gpu/moves_eight_columns.h"
#include "base/report.h"
#include "heddle/error.h"
#include "plan/access/kernel_types.h"
#include "problem/problem.h"
#include "shared/merge_params.h"

namespace heddle::gpu {
namespace {

using backend::MergeArguments;
using backend::MergePart;
using shared::MergeParams;
using shared::StorageType;

constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
constexpr unsigned kMostGrid = 1 << 16;  // the kernel's warps then take rows one after the other

void set_strides(long long (&to)[3], const ConstTensorView& view) { std::copy_n(view.strides.begin(), 3, to); }

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
  params.vectorised = moves_eight_columns(o);
  if (arguments.lse) {
    params.lse = arguments.lse->data;
    set_strides(params.lse_stride, *arguments.lse);
    params.lse_type = plan::storage_type_of(arguments.lse->dtype);
  }
  params.count = static_cast<int>(arguments.parts.size());
  params.rows = static_cast<int>(rows);
  params.heads = static_cast<int>(o.shape[1]);
  params.rows_of_head = static_cast<int>(o.shape[2]);
  params.columns = static_cast<int>(o.shape[3]);
  params.lanes = lanes_of_row(o.shape[3]);
  for (std::size_t i = 0; i < arguments.parts.size(); ++i) {
    const MergePart& part = arguments.parts[i];
    shared::MergePart& to = params.part[i];
    to.o = part.o.data;
    to.lse = part.lse.data;
    set_strides(to.o_stride, part.o);
    set_strides(to.lse_stride, part.lse);
    to.o_type = plan::storage_type_of(part.o.dtype);
    to.lse_type = plan::storage_type_of(part.lse.dtype);
    to.vectorised = moves_eight_columns(part.o);
  }
  return params;
}

/// The storage type of all parts.
StorageType parts_type(const MergeArguments& arguments) {
  const DType first = arguments.parts.front().o.dtype;
  const bool alike = std::ranges::all_of(arguments.parts, [&](const MergePart& part) { return part.o.dtype == first; });
  return alike ? plan::storage_type_of(first) : StorageType::mixed;
}

/// For the list of calls of an archive.
void report_call(const MergeArguments& arguments) {
  if (!base::hears_events()) return;
  std::vector<std::string> parts;
  for (const MergePart& part : arguments.parts) parts.emplace_back(name(part.o.dtype));
  const base::JsonObject call =
      base::JsonObject().add("of", "merge_states").add("parts", parts).add("o", name(arguments.o.dtype));
  base::report("call", base::JsonObject().add("call", call));
}

}  // namespace

void merge_states(const Gpu& gpu, const MergeArguments& arguments) {
  MergeParams params = params_of(arguments);
  if (params.rows == 0) return;
  using Types = std::pair<StorageType, StorageType>;  // of the parts, and of o
  static auto* kernels = new KeptKernels<Types>("merge_states");
  const Types types = {parts_type(arguments), plan::storage_type_of(arguments.o.dtype)};
  const KeptKernel& kernel = kernels->on(gpu, "o", arguments.o.device, types, [&](const Types& of) {
    report_call(arguments);
    return merge_states_text(of.first, of.second);
  });
  const std::int64_t rows_of_cta = std::int64_t{shared::kMergeThreads} / params.lanes;
  const std::int64_t grid = (std::int64_t{params.rows} + rows_of_cta - 1) / rows_of_cta;
  const Launch launch = {.ctas = std::min(static_cast<unsigned>(grid), kMostGrid), .threads = shared::kMergeThreads};
  kernel.program->launch(kernel.function, launch, arguments.stream, &params, "launching merge_states");
}

}  // namespace heddle::gpu
