#include "context/rows_of_keys.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>

#include "backend/device.h"

namespace heddle::context {
namespace {

void move(const backend::MoveArguments& arguments) {
  backend::find_device_kind(arguments.to.device.kind)->move_rows(arguments);
}

/// Rows [begin, begin + rows) of a view, [B, H, rows, D].
template <class View>
View rows_from(View view, std::int64_t begin, std::int64_t rows) {
  using Byte = std::conditional_t<std::is_same_v<View, TensorView>, std::byte, const std::byte>;
  view.data = static_cast<Byte*>(view.data) + begin * view.strides[2] * size_of(view.dtype);
  view.shape[2] = rows;
  return view;
}

/// Own rows as they stand in the caller's tensors, and among all.
struct OwnRows {
  std::int64_t own, all, rows;
};
std::array<OwnRows, 2> own_rows(const Route& route) {
  return {OwnRows{0, 0, route.before}, {route.before, route.before + route.received, route.own - route.before}};
}

}  // namespace

void* KeptMemory::bytes(const Device& device, std::int64_t count, bool zeros) {
  if (memory_.count() < count || memory_.view().device != device) {
    memory_ = Tensor();
    const Dims shape{std::max<std::int64_t>(count, 1)};
    memory_ = zeros ? Tensor::zeros(DType::u8, shape).to(device) : Tensor::empty_on(device, DType::u8, shape);
  }
  return memory_.data();
}

RowsOfKeys::RowsOfKeys(const ConstTensorView& k, const ConstTensorView& v, const Route& route, KeptMemory& rows,
                       CallMemory& memory, const std::optional<DType>& dtype)
    : route_(&route),
      memory_(&memory),
      dtype_(dtype.value_or(k.dtype)),
      device_(k.device),
      batch_(k.shape[0]),
      heads_(k.shape[1]),
      k_dim_(k.shape[3]),
      v_dim_(v.shape[3]) {
  // All is allocated now: an exchange that others wait for must not fail.
  data_ = rows.bytes(device_, route.all() * row_bytes());
  memory.moving.bytes(device_, std::max(route.near.sent_rows(), route.crossing.sent_rows()) * row_bytes());
  if (!route.crossing.is_empty()) memory.zeros.bytes(device_, row_bytes(), true);
}

TensorView RowsOfKeys::part(void* data, std::int64_t rows, std::int64_t first, std::int64_t dim) const {
  const std::int64_t columns = k_dim_ + v_dim_;
  return {static_cast<std::byte*>(data) + first * size_of(dtype_), dtype_, Dims{batch_, heads_, rows, dim},
          Dims{heads_ * columns, columns, batch_ * heads_ * columns, 1}, device_};
}

TensorView RowsOfKeys::flat(void* data, std::int64_t rows) const {
  return {data, dtype_, Dims{1, 1, rows, row_count()}, device_};
}

std::vector<std::int64_t> RowsOfKeys::in_bytes(const std::vector<std::int64_t>& rows) const {
  std::vector<std::int64_t> bytes = rows;
  for (std::int64_t& count : bytes) count *= row_bytes();
  return bytes;
}

void RowsOfKeys::send(const Step& step, std::int64_t first_received, Communicator& communicator, void* stream) {
  const std::int64_t rows = step.sent_rows();
  void* leaving = memory_->moving.bytes(device_, rows * row_bytes());
  move({.from = flat(data_, route_->all()),
        .to = flat(leaving, rows),
        .rows = rows,
        .from_rows = static_cast<const std::int32_t*>(step.leaving.data()),
        .stream = stream});
  communicator.exchange(leaving, in_bytes(step.sent), row(first_received), in_bytes(step.received), stream);
}

void RowsOfKeys::send_own(const ConstTensorView& k, const ConstTensorView& v, Communicator& communicator,
                          void* stream) {
  const Step& step = route_->near;
  const std::int64_t rows = step.sent_rows();
  void* leaving = memory_->moving.bytes(device_, rows * row_bytes());
  for (const auto& [own, packed] :
       {std::pair(k, part(leaving, rows, 0, k_dim_)), {v, part(leaving, rows, k_dim_, v_dim_)}}) {
    move({.from = own,
          .to = packed,
          .rows = rows,
          .from_rows = static_cast<const std::int32_t*>(step.leaving_own.data()),
          .stream = stream});
  }
  communicator.exchange(leaving, in_bytes(step.sent), row(route_->before), in_bytes(step.received), stream);
}

void RowsOfKeys::copy_own(const ConstTensorView& k, const ConstTensorView& v, void* stream) {
  for (const auto& [own, all] : {std::pair(k, keys()), {v, values()}}) {
    for (const OwnRows& part : own_rows(*route_)) {
      move({.from = rows_from(own, part.own, part.rows),
            .to = rows_from(all, part.all, part.rows),
            .rows = part.rows,
            .stream = stream});
    }
  }
}

void RowsOfKeys::bring(const ConstTensorView& k, const ConstTensorView& v, Communicator& communicator, void* stream) {
  if (!leaves_from_memory()) return send_own(k, v, communicator, stream);
  send(route_->crossing, route_->attended(), communicator, stream);
  send(route_->near, route_->before, communicator, stream);
}

void RowsOfKeys::add_back(const Step& step, std::int64_t first_received, Communicator& communicator, void* stream) {
  void* came = memory_->moving.bytes(device_, step.sent_rows() * row_bytes());
  communicator.exchange(row(first_received), in_bytes(step.received), came, in_bytes(step.sent), stream);
  std::int64_t before = 0;
  for (const std::int64_t rows : step.sent) {  // rank by rank: several may have terms of one row
    move({.from = flat(static_cast<std::byte*>(came) + before * row_bytes(), rows),
          .to = flat(data_, route_->all()),
          .rows = rows,
          .to_rows = static_cast<const std::int32_t*>(step.leaving.data()) + before,
          .adds = true,
          .stream = stream});
    before += rows;
  }
}

void RowsOfKeys::give_back(const std::optional<TensorView>& dk, const std::optional<TensorView>& dv,
                           const AddedGradients& added, Communicator& communicator, void* stream) {
  if (!route_->crossing.is_empty()) {
    const void* zeros = memory_->zeros.bytes(device_, row_bytes(), true);
    move({.from = ConstTensorView(zeros, dtype_, Dims{1, 1, route_->crossed, row_count()}, Dims{0, 0, 0, 1}, device_),
          .to = flat(row(route_->attended()), route_->crossed),
          .rows = route_->crossed,
          .stream = stream});
  }
  add_back(route_->near, route_->before, communicator, stream);
  if (!route_->crossing.is_empty()) add_back(route_->crossing, route_->attended(), communicator, stream);
  for (const auto& [all, own, adds] : {std::tuple(keys(), dk, added.k), {values(), dv, added.v}}) {
    if (!own) continue;
    for (const OwnRows& part : own_rows(*route_)) {
      move({.from = rows_from(all, part.all, part.rows),
            .to = rows_from(*own, part.own, part.rows),
            .rows = part.rows,
            .adds = adds,
            .stream = stream});
    }
  }
}

}  // namespace heddle::context
