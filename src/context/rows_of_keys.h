// All rows of keys and values that a rank reads: its own, then those that it receives, in one piece of memory, [rows,
// B, H, D + Dv], so that what travels between two ranks is one piece too. Or the gradients of such rows.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "heddle/context_parallel.h"

namespace heddle::context {

class RowsOfKeys {
 public:
  RowsOfKeys() = default;
  /// Memory for `rows` rows of the extents of k and v, in their dtype or in another one, uninitialised.
  RowsOfKeys(const ConstTensorView& k, const ConstTensorView& v, std::int64_t rows,
             const std::optional<DType>& dtype = {});

  TensorView keys() const { return part(0, k_dim_); }
  TensorView values() const { return part(k_dim_, v_dim_); }

  /// Copies own rows, and receives the others from their ranks; `sent`: own rows that go, receiver by receiver.
  /// Collective.
  void bring(const ConstTensorView& k, const ConstTensorView& v, const ExchangePlan& plan,
             const std::vector<std::int64_t>& sent, Communicator& communicator);
  /// Sends gradients of received rows to their ranks, adds what comes to those of own rows, and stores these.
  /// Collective.
  void give_back(const std::optional<TensorView>& dk, const std::optional<TensorView>& dv, const ExchangePlan& plan,
                 const std::vector<std::int64_t>& sent, Communicator& communicator) const;

 private:
  TensorView part(std::int64_t first, std::int64_t dim) const;
  /// Elements, and bytes, of a row.
  std::int64_t row_count() const { return batch_ * heads_ * (k_dim_ + v_dim_); }
  std::int64_t row_bytes() const;
  std::byte* row(std::int64_t i) const { return static_cast<std::byte*>(memory_.data()) + i * row_bytes(); }
  void store(const TensorView& to, std::int64_t first, std::int64_t rows) const;

  Tensor memory_;
  std::int64_t batch_ = 0, heads_ = 0, k_dim_ = 0, v_dim_ = 0, rows_ = 0;
};

}  // namespace heddle::context
