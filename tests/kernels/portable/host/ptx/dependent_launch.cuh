// Stands in for kernels/nvidia/ptx/dependent_launch.cuh on the host, where kernels run one after the other.
#pragma once

namespace heddle::ptx {

inline void let_next_begin() {}
inline void wait_for_previous() {}

}  // namespace heddle::ptx
