#include "context/rows_of_keys.h"

#include <cstddef>
#include <cstring>

#include "base/element.h"

namespace heddle::context {
namespace {

/// Bytes that this rank receives from each one, and sends to each one.
struct Counts {
  std::vector<std::int64_t> received, sent;
};
Counts counts_of(const ExchangePlan& plan, const Communicator& communicator, std::int64_t row_bytes) {
  const std::int64_t own = communicator.rank();
  Counts counts;
  for (std::int64_t other = 0; other < communicator.size(); ++other) {
    counts.received.push_back(plan.rows(own, other) * row_bytes);
    counts.sent.push_back(plan.rows(other, own) * row_bytes);
  }
  return counts;
}

std::int64_t offset_of(const ConstTensorView& view, std::int64_t batch, std::int64_t head, std::int64_t row) {
  return batch * view.strides[0] + head * view.strides[1] + row * view.strides[2];
}

}  // namespace

RowsOfKeys::RowsOfKeys(const ConstTensorView& k, const ConstTensorView& v, std::int64_t rows,
                       const std::optional<DType>& dtype)
    : batch_(k.shape[0]), heads_(k.shape[1]), k_dim_(k.shape[3]), v_dim_(v.shape[3]), rows_(rows) {
  memory_ = Tensor::empty(dtype.value_or(k.dtype), {rows, batch_, heads_, k_dim_ + v_dim_});
}

std::int64_t RowsOfKeys::row_bytes() const { return row_count() * size_of(memory_.dtype()); }

TensorView RowsOfKeys::part(std::int64_t first, std::int64_t dim) const {
  const std::int64_t columns = k_dim_ + v_dim_;
  void* data = static_cast<std::byte*>(memory_.data()) + first * size_of(memory_.dtype());
  return {data, memory_.dtype(), Dims{batch_, heads_, rows_, dim},
          Dims{heads_ * columns, columns, batch_ * heads_ * columns, 1}};
}

void RowsOfKeys::bring(const ConstTensorView& k, const ConstTensorView& v, const ExchangePlan& plan,
                       const std::vector<std::int64_t>& sent, Communicator& communicator) {
  const std::int64_t own = k.shape[2], bytes = row_bytes(), size = size_of(memory_.dtype());
  const auto copy = [&](const ConstTensorView& from, const TensorView& to) {
    for (std::int64_t batch = 0; batch < batch_; ++batch) {
      for (std::int64_t head = 0; head < heads_; ++head) {
        for (std::int64_t i = 0; i < own; ++i) {
          std::memcpy(static_cast<std::byte*>(to.data) + offset_of(to, batch, head, i) * size,
                      static_cast<const std::byte*>(from.data) + offset_of(from, batch, head, i) * size,
                      static_cast<std::size_t>(from.shape[3] * size));
        }
      }
    }
  };
  copy(k, keys());
  copy(v, values());
  const Tensor leaving = Tensor::empty(memory_.dtype(), {static_cast<std::int64_t>(sent.size()), row_count()});
  for (std::size_t i = 0; i < sent.size(); ++i) {
    std::memcpy(static_cast<std::byte*>(leaving.data()) + static_cast<std::int64_t>(i) * bytes, row(sent[i]),
                static_cast<std::size_t>(bytes));
  }
  const Counts counts = counts_of(plan, communicator, bytes);
  communicator.exchange(leaving.data(), counts.sent, row(own), counts.received);
}

void RowsOfKeys::give_back(const std::optional<TensorView>& dk, const std::optional<TensorView>& dv,
                           const ExchangePlan& plan, const std::vector<std::int64_t>& sent,
                           Communicator& communicator) const {
  const std::int64_t own = rows_ - plan.rows(communicator.rank());
  const Tensor came = Tensor::empty(memory_.dtype(), {static_cast<std::int64_t>(sent.size()), row_count()});
  const Counts counts = counts_of(plan, communicator, row_bytes());
  communicator.exchange(row(own), counts.received, came.data(), counts.sent);
  base::with_storage_type(memory_.dtype(), [&]<class T>(std::type_identity<T>) {
    if constexpr (std::is_floating_point_v<T>) {
      const T* term = static_cast<const T*>(came.data());
      for (const std::int64_t place : sent) {
        T* sum = reinterpret_cast<T*>(row(place));
        for (std::int64_t i = 0; i < row_count(); ++i) sum[i] += *term++;
      }
    }
  });
  if (dk) store(*dk, 0, own);
  if (dv) store(*dv, k_dim_, own);
}

void RowsOfKeys::store(const TensorView& to, std::int64_t first, std::int64_t rows) const {
  const TensorView from = part(first, to.shape[3]);
  for (std::int64_t batch = 0; batch < batch_; ++batch) {
    for (std::int64_t head = 0; head < heads_; ++head) {
      for (std::int64_t i = 0; i < rows; ++i) {
        for (std::int64_t j = 0; j < to.shape[3]; ++j) {
          base::store_element(to.data, to.dtype, offset_of(to, batch, head, i) + j,
                              base::load_element(from.data, from.dtype, offset_of(from, batch, head, i) + j));
        }
      }
    }
  }
}

}  // namespace heddle::context
