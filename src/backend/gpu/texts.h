// Sources of kernels beside attention, the same for every vendor: what follows the vendor's own first lines.
#pragma once

#include <compare>
#include <string>

#include "shared/storage.h"

namespace heddle::gpu {

struct KernelText {
  std::string name, text;
};

/// `parts`: what all parts' o are stored as, or mixed.
KernelText merge_states_text(shared::StorageType parts, shared::StorageType output);

/// How append_kv's tensors are stored. `mixed`: no queries, and no angles.
struct AppendTypes {
  shared::StorageType rows, keys, values, queries, angles;
  auto operator<=>(const AppendTypes&) const = default;
};
KernelText append_kv_text(const AppendTypes& types);

/// How move_rows' tensors are stored, and whether it adds.
struct MoveTypes {
  shared::StorageType from, to;
  bool adds;
  auto operator<=>(const MoveTypes&) const = default;
};
KernelText move_rows_text(const MoveTypes& types);

/// The kernels that run before an attention kernel where lengths are on the device: text that depends on nothing.
KernelText sequences_text();

}  // namespace heddle::gpu
