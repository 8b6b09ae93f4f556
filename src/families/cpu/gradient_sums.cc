#include "families/cpu/gradient_sums.h"

#include <algorithm>

#include "base/store.h"
#include "families/cpu/cpu_backward_plans.h"

namespace heddle::cpu {

template <class T>
GradientSums<T>::GradientSums(const plan::CpuBackwardSplit& split, std::byte* memory)
    : split_(split),
      lane_bytes_(plan::cpu_backward_lane_bytes(split)),
      lanes_(memory),
      owned_(memory + split.lanes * lane_bytes_) {}

template <class T>
void GradientSums<T>::clear() const {
  std::fill(lanes_, owned_, std::byte{0});
  for (std::size_t i = 0; i < split_.sums.size(); ++i) {
    if (split_.owners[i] == plan::SumOwner::task) std::fill_n(view(i, 0).task, split_.sums[i].count, T(0));
  }
}

/// Among the sums with the same kind of owner.
template <class T>
std::int64_t GradientSums<T>::offset_of(std::size_t sum) const {
  const plan::SumOwner owner = split_.owners[sum];
  const std::int64_t size = owner == plan::SumOwner::lane ? 8 : static_cast<std::int64_t>(sizeof(T));
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < sum; ++i) {
    if (split_.owners[i] == owner) offset += plan::round_up(split_.sums[i].count * size, plan::kAlignment);
  }
  return offset;
}

template <class T>
GradientSumView<T> GradientSums<T>::view(std::size_t sum, std::int64_t lane) const {
  GradientSumView<T> view;
  view.shape = split_.sums[sum].shape;
  if (split_.owners[sum] == plan::SumOwner::lane) {
    view.lane = reinterpret_cast<double*>(lanes_ + lane * lane_bytes_ + offset_of(sum));
  } else {
    view.task = reinterpret_cast<T*>(owned_ + offset_of(sum));
  }
  return view;
}

template <class T>
void GradientSums<T>::store(const BackwardTensors& tensors) const {
  for (std::size_t i = 0; i < split_.sums.size(); ++i) {
    const plan::CaptureSum& sum = split_.sums[i];
    const NamedViews& views = sum.param ? tensors.d_params : tensors.d_captures;
    const TensorView& to = views.find(sum.name)->second;
    if (split_.owners[i] == plan::SumOwner::task) {
      base::store_row_major(view(i, 0).task, to);
      continue;
    }
    double* total = view(i, 0).lane;
    for (std::int64_t lane = 1; lane < split_.lanes; ++lane) {
      const double* part = view(i, lane).lane;
      for (std::int64_t e = 0; e < sum.count; ++e) total[e] += part[e];
    }
    base::store_row_major(total, to);
  }
}

template class GradientSums<float>;
template class GradientSums<double>;

}  // namespace heddle::cpu
