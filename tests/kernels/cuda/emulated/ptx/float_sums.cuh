// ptx/float_sums.cuh on the host, as the portable kernels have it there.
#pragma once

#include "../../../portable/host/ptx/float_sums.cuh"
