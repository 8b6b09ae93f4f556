// The few types and prototypes of the CUDA driver API that the library uses, as the driver's ABI has them.
#pragma once

namespace heddle::cuda {

using CUresult = int;
using CUdevice = int;
using CUcontext = struct CUctx_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUstream = struct CUstream_st*;
using CUdeviceptr = unsigned long long;

struct Driver;

}  // namespace heddle::cuda
