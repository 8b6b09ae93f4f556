#include "backend/gpu/append_kv_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "backend/gpu/device_sequences.h"
#include "backend/gpu/kept_kernels.h"
#include "backend/gpu/moves_eight_columns.h"
#include "backend/gpu/row_tensors.h"
#include "base/report.h"
#include "plan/access/kernel_types.h"
#include "problem/append_checks.h"
#include "shared/append_params.h"

namespace heddle::gpu {
namespace {

using problem::AppendSizes;
using shared::AppendedRows;
using shared::AppendParams;

constexpr std::int64_t kMostRows = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMostCtas = 1 << 12;  // they then take rows one after the other

/// `rows`: of all sequences.
AppendedRows rows_of(std::string_view name, const ConstTensorView& from, const TensorView& to, std::int64_t rows,
                     const std::optional<ConstTensorView>& descale) {
  const std::int64_t all = rows * from.shape[1];
  if (all > kMostRows) {
    throw Error(ErrorCode::unsupported, fmt::format("{} has {} rows of {} heads; on a GPU up to {} are accepted in all",
                                                    name, rows, from.shape[1], kMostRows));
  }
  AppendedRows appended{};
  appended.from.data = from.data;
  std::copy_n(from.strides.begin(), 3, appended.from.stride);
  appended.to.data = to.data;
  std::copy_n(to.strides.begin(), 3, appended.to.stride);
  appended.descale = descale_of(descale);
  appended.heads = static_cast<int>(from.shape[1]);
  appended.columns = static_cast<int>(from.shape[3]);
  appended.rows = static_cast<unsigned>(all);
  appended.vectorised = moves_eight_columns(from) && moves_eight_columns(to);
  return appended;
}

shared::Angles angles_of(const Rotary& rotary) {
  shared::Angles angles{};
  angles.cos = rotary.cos.data;
  angles.sin = rotary.sin.data;
  std::copy_n(rotary.cos.strides.begin(), 2, angles.cos_stride);
  std::copy_n(rotary.sin.strides.begin(), 2, angles.sin_stride);
  angles.positions = static_cast<int>(rotary.cos.shape[0]);
  angles.interleaved = rotary.interleaved;
  angles.queries_at_first = rotary.queries_at_first;
  return angles;
}

AppendParams params_of(const AppendTensors& tensors, const AppendOptions& options) {
  const AppendSizes sizes = problem::append_sizes(tensors, options);
  const std::int64_t entries = options.cu_seqlens ? 1 : sizes.batch;
  AppendParams params{};
  params.k = rows_of("k", tensors.k, tensors.k_cache, entries * sizes.rows, options.k_descale);
  if (tensors.v) params.v = rows_of("v", *tensors.v, *tensors.v_cache, entries * sizes.rows, options.v_descale);
  if (tensors.q) params.q = rows_of("q", *tensors.q, *tensors.q_out, entries * sizes.q_rows, {});
  params.lengths = lengths_view(options.kv_lengths);
  params.starts = lengths_view(options.cu_seqlens);
  if (options.page_table) {
    const ConstTensorView& table = *options.page_table;
    params.table = {.data = static_cast<const int*>(table.data),
                    .stride = {options.page_starts ? 0 : table.strides[0], table.strides[table.rank() - 1]},
                    .pages = static_cast<int>(tensors.k_cache.shape[0])};
    if (options.page_starts) {
      params.table.starts = {.data = static_cast<const int*>(options.page_starts->data),
                             .stride = options.page_starts->strides[0],
                             .entries = static_cast<int>(table.shape[0])};
    }
  }
  params.page_rows = static_cast<int>(sizes.page_rows);
  params.room = sizes.room;
  params.batch = static_cast<int>(sizes.batch);
  params.k_rows = static_cast<int>(sizes.rows);
  params.q_rows = static_cast<int>(sizes.q_rows);
  params.lanes = lanes_of_row(std::max(tensors.k.shape[3], tensors.v ? tensors.v->shape[3] : 0));
  if (options.rotary) {
    params.angles = angles_of(*options.rotary);
    params.first_positions = lengths_view(options.rotary->positions);
    params.k.turned = params.q.turned = static_cast<int>(2 * options.rotary->cos.shape[1]);
  }
  return params;
}

AppendTypes types_of(const AppendTensors& tensors, const AppendOptions& options) {
  using shared::StorageType;
  return {.rows = plan::storage_type_of(tensors.k.dtype),
          .keys = plan::storage_type_of(tensors.k_cache.dtype),
          .values = plan::storage_type_of(tensors.v_cache ? tensors.v_cache->dtype : tensors.k_cache.dtype),
          .queries = tensors.q_out ? plan::storage_type_of(tensors.q_out->dtype) : StorageType::mixed,
          .angles = options.rotary ? plan::storage_type_of(options.rotary->cos.dtype) : StorageType::mixed};
}

/// For the list of calls of an archive.
void report_call(const AppendTensors& tensors, const AppendOptions& options) {
  if (!base::hears_events()) return;
  base::JsonObject call;
  call.add("of", "append_kv").add("k", name(tensors.k.dtype)).add("k_cache", name(tensors.k_cache.dtype));
  if (tensors.v_cache) call.add("v_cache", name(tensors.v_cache->dtype));
  if (tensors.q_out) call.add("q_out", name(tensors.q_out->dtype));
  if (options.rotary) call.add("rotary", name(options.rotary->cos.dtype));
  base::report("call", base::JsonObject().add("call", call));
}

}  // namespace

void append_kv(const Gpu& gpu, const AppendTensors& tensors, const AppendOptions& options) {
  AppendParams params = params_of(tensors, options);
  const std::int64_t rows = std::int64_t{params.k.rows} + params.v.rows + params.q.rows;
  if (rows == 0 || params.batch == 0) return;
  static auto* kernels = new KeptKernels<AppendTypes>("append_kv");
  const KeptKernel& kernel =
      kernels->on(gpu, "k", tensors.k.device, types_of(tensors, options), [&](const AppendTypes& types) {
        report_call(tensors, options);
        return append_kv_text(types);
      });
  const std::int64_t rows_of_cta = shared::kAppendThreads / params.lanes;
  const std::int64_t ctas = std::min((rows + rows_of_cta - 1) / rows_of_cta, kMostCtas);
  kernel.program->launch(kernel.function, {.ctas = static_cast<unsigned>(ctas), .threads = shared::kAppendThreads},
                         options.stream, &params, "launching append_kv");
}

}  // namespace heddle::gpu
