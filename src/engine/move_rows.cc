// move_rows: its checks, and its dispatch to a device.
#include "heddle/move_rows.h"

#include <cstdint>
#include <optional>
#include <string_view>

#include "backend/device.h"
#include "engine/pointers.h"
#include "problem/one_device.h"
#include "problem/refuse.h"
#include "problem/tensors.h"

namespace heddle {
namespace {

using problem::refuse;

void check_beside_from(std::string_view name, const ConstTensorView& view, const Device& device) {
  if (view.device == device) return;
  refuse("{} is on {}; {} is accepted, where from is", name, problem::name(view.device), problem::name(device));
}

void check_tensor(std::string_view name, const ConstTensorView& view, const Device& device) {
  problem::check_rows(name, view, 4, "[B, H, rows, D]");
  check_beside_from(name, view, device);
  problem::check_memory(name, view);
}

/// Returns how many rows the list names.
std::int64_t check_list(std::string_view name, const ConstTensorView& list, std::int64_t rows, const Device& device) {
  problem::check_view(name, list);
  check_beside_from(name, list, device);
  if (list.dtype != DType::i32 || list.rank() != 1 || (list.shape[0] > 1 && list.strides[0] != 1)) {
    refuse("{} is {} {} with strides {}; contiguous i32 [n] is accepted", name, heddle::name(list.dtype),
           to_string(list.shape), to_string(list.strides));
  }
  problem::check_memory(name, list);
  if (device.kind != DeviceKind::cpu) return list.shape[0];
  for (std::int64_t i = 0; i < list.shape[0]; ++i) {
    const std::int32_t row = static_cast<const std::int32_t*>(list.data)[i];
    if (row < 0 || row >= rows) refuse("{}[{}] is {}; 0 to {} are accepted", name, i, row, rows - 1);
  }
  return list.shape[0];
}

/// Returns the rows of each head that move.
std::int64_t check_moves(const ConstTensorView& from, const TensorView& to, const RowMoves& how) {
  check_tensor("from", from, from.device);
  check_tensor("to", to, from.device);
  for (const int axis : {0, 1, 3}) {
    if (from.shape[axis] == to.shape[axis]) continue;
    refuse("from has shape {} and to {}; the same B, H and D are accepted", to_string(from.shape), to_string(to.shape));
  }
  const std::int64_t left =
      how.from_rows ? check_list("from_rows", *how.from_rows, from.shape[2], from.device) : from.shape[2];
  const std::int64_t come = how.to_rows ? check_list("to_rows", *how.to_rows, to.shape[2], from.device) : to.shape[2];
  if (left != come) {
    refuse("{} rows leave from and {} come to to, by their shapes or lists; as many are accepted", left, come);
  }
  return left;
}

}  // namespace

void move_rows(const ConstTensorView& from, const TensorView& to, const RowMoves& how) {
  const std::int64_t rows = check_moves(from, to, how);
  const Device& device = from.device;
  const backend::DeviceInterface& kind = engine::device_kind_of("from", device);
  if (device.kind != DeviceKind::cpu) {
    engine::check_pointer("from", from, device);
    engine::check_pointer("to", to, device);
    if (how.from_rows) engine::check_pointer("from_rows", *how.from_rows, device);
    if (how.to_rows) engine::check_pointer("to_rows", *how.to_rows, device);
  }
  const auto list = [](const std::optional<ConstTensorView>& view) {
    return view ? static_cast<const std::int32_t*>(view->data) : nullptr;
  };
  kind.move_rows({.from = from,
                  .to = to,
                  .rows = rows,
                  .from_rows = list(how.from_rows),
                  .to_rows = list(how.to_rows),
                  .adds = how.adds,
                  .stream = how.stream});
}

}  // namespace heddle
