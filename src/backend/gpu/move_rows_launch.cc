#include "backend/gpu/move_rows_launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>

#include "backend/gpu/kept_kernels.h"
#include "backend/gpu/moves_eight_columns.h"
#include "base/report.h"
#include "heddle/error.h"
#include "plan/access/kernel_types.h"
#include "shared/move_params.h"

namespace heddle::gpu {
namespace {

/// For the list of calls of an archive.
void report_call(const backend::MoveArguments& arguments) {
  if (!base::hears_events()) return;
  const base::JsonObject call = base::JsonObject()
                                    .add("of", "move_rows")
                                    .add("from", name(arguments.from.dtype))
                                    .add("to", name(arguments.to.dtype))
                                    .add("adds", arguments.adds);
  base::report("call", base::JsonObject().add("call", call));
}

}  // namespace

void move_rows(const Gpu& gpu, const backend::MoveArguments& arguments) {
  constexpr std::int64_t kMostMoved = std::numeric_limits<std::int32_t>::max(), kMostCtas = 1 << 14;
  const ConstTensorView& from = arguments.from;
  const TensorView& to = arguments.to;
  const std::int64_t rows = from.shape[0] * from.shape[1] * arguments.rows;
  if (rows == 0 || from.shape[3] == 0) return;
  if (rows > kMostMoved || from.shape[3] > kMostMoved) {
    throw Error(ErrorCode::unsupported,
                fmt::format("{} rows of {} columns travel; on a GPU up to {} of each are accepted", rows, from.shape[3],
                            kMostMoved));
  }
  shared::MoveParams params{};
  params.from = from.data;
  params.to = to.data;
  params.from_rows = arguments.from_rows;
  params.to_rows = arguments.to_rows;
  std::copy_n(from.strides.begin(), 3, params.from_stride);
  std::copy_n(to.strides.begin(), 3, params.to_stride);
  params.from_vectorised = moves_eight_columns(from);
  params.to_vectorised = moves_eight_columns(to);
  params.rows = static_cast<int>(rows);
  params.heads = static_cast<int>(from.shape[1]);
  params.rows_of_head = static_cast<int>(arguments.rows);
  params.columns = static_cast<int>(from.shape[3]);
  params.lanes = lanes_of_row(from.shape[3]);
  static auto* kernels = new KeptKernels<MoveTypes>("move_rows");
  const MoveTypes types = {
      .from = plan::storage_type_of(from.dtype), .to = plan::storage_type_of(to.dtype), .adds = arguments.adds};
  const KeptKernel& kernel = kernels->on(gpu, "k", from.device, types, [&](const MoveTypes& of) {
    report_call(arguments);
    return move_rows_text(of);
  });
  const std::int64_t rows_of_cta = std::int64_t{shared::kMoveThreads} / params.lanes;
  const std::int64_t ctas = std::min((rows + rows_of_cta - 1) / rows_of_cta, kMostCtas);
  kernel.program->launch(kernel.function, {.ctas = static_cast<unsigned>(ctas), .threads = shared::kMoveThreads},
                         arguments.stream, &params, "launching move_rows");
}

}  // namespace heddle::gpu
