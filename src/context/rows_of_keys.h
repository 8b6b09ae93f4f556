// All rows of keys and values that a rank reads, in one piece of memory, [rows, B, H, D + Dv], so that what travels
// between two ranks is one piece too: its own, those that it receives, those that cross to it from other hosts. Or the
// gradients of such rows.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "context/route.h"
#include "heddle/context_parallel.h"

namespace heddle::context {

/// Memory on one device that is kept between calls, and grows.
class KeptMemory {
 public:
  /// At least `count` bytes. With `zeros` they are all 0, provided that earlier users left them so. Other contents may
  /// be lost. Growing frees and fills memory; both wait for a GPU.
  void* bytes(const Device& device, std::int64_t count, bool zeros = false);

 private:
  Tensor memory_;
};

/// The memory of a ContextAttention's calls, one call at a time. Groups of heads take turns: keys of two groups are on
/// their way beside the attention of a third, and gradients of one group leave while those of the next are computed.
struct CallMemory {
  std::array<KeptMemory, 3> rows;
  std::array<KeptMemory, 2> gradients;
  KeptMemory moving, zeros;
  KeptMemory queries;  // dq of a group, which is added
};

class RowsOfKeys {
 public:
  RowsOfKeys() = default;
  /// Rows with the extents of k and v, in their dtype or in another one, uninitialised, on their device.
  RowsOfKeys(const ConstTensorView& k, const ConstTensorView& v, const Route& route, KeptMemory& rows,
             CallMemory& memory, const std::optional<DType>& dtype = {});

  /// Rows that attention reads, in the order of the route's positions.
  TensorView keys() const { return part(data_, route_->attended(), 0, k_dim_); }
  TensorView values() const { return part(data_, route_->attended(), k_dim_, v_dim_); }

  /// With one step own rows leave from the caller's tensors, so that the exchange waits for no copy of them. With two,
  /// rows that crossed leave beside own ones: these are copied first.
  bool leaves_from_memory() const { return !route_->crossing.is_empty(); }
  /// Copies own rows. On a GPU it enqueues on the stream.
  void copy_own(const ConstTensorView& k, const ConstTensorView& v, void* stream);
  /// Receives the others from their ranks. Collective, likewise.
  void bring(const ConstTensorView& k, const ConstTensorView& v, Communicator& communicator, void* stream);
  /// Sends gradients of received rows back, adds the incoming ones to those of own rows, and stores these, or adds them
  /// to dk and dv. Collective, likewise.
  void give_back(const std::optional<TensorView>& dk, const std::optional<TensorView>& dv, const AddedGradients& added,
                 Communicator& communicator, void* stream);

 private:
  /// Columns [first, first + dim) of rows in memory, [B, H, rows, dim].
  TensorView part(void* data, std::int64_t rows, std::int64_t first, std::int64_t dim) const;
  /// Rows as one axis: [1, 1, rows, elements of a row].
  TensorView flat(void* data, std::int64_t rows) const;
  /// Elements, and bytes, of a row.
  std::int64_t row_count() const { return batch_ * heads_ * (k_dim_ + v_dim_); }
  std::int64_t row_bytes() const { return row_count() * size_of(dtype_); }
  std::byte* row(std::int64_t i) const { return static_cast<std::byte*>(data_) + i * row_bytes(); }
  std::vector<std::int64_t> in_bytes(const std::vector<std::int64_t>& rows) const;

  void send(const Step& step, std::int64_t first_received, Communicator& communicator, void* stream);
  void send_own(const ConstTensorView& k, const ConstTensorView& v, Communicator& communicator, void* stream);
  void add_back(const Step& step, std::int64_t first_received, Communicator& communicator, void* stream);

  const Route* route_ = nullptr;
  CallMemory* memory_ = nullptr;
  void* data_ = nullptr;
  DType dtype_ = DType::f32;
  Device device_{};
  std::int64_t batch_ = 0, heads_ = 0, k_dim_ = 0, v_dim_ = 0;
};

}  // namespace heddle::context
