#include "base/store.h"

#include "base/element.h"
#include "base/rows.h"

namespace heddle::base {
namespace {

template <class Real>
void store(const Real* from, const TensorView& to) {
  const Walk walk = coalesce(to.shape, to.strides);
  const std::int64_t length = walk.row_length(), stride = walk.row_stride();
  with_storage_type(to.dtype, [&]<class T>(std::type_identity<T>) {
    for_each_row(walk, [&](std::int64_t offset) {
      for (std::int64_t i = 0; i < length; ++i) {
        store_raw(to.data, offset + i * stride, encode<T>(static_cast<double>(*from++)));
      }
    });
  });
}

}  // namespace

void store_row_major(const double* from, const TensorView& to) { store(from, to); }
void store_row_major(const float* from, const TensorView& to) { store(from, to); }

}  // namespace heddle::base
