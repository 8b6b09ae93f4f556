// Shared by the simulator's test kernels: HIP's keywords, indices and barriers, without any header of HIP.
#pragma once

#define KERNEL extern "C" __attribute__((global))
#define GROUP_SIZE(n) __attribute__((amdgpu_flat_work_group_size(n, n)))
#define DEVICE static __attribute__((device, always_inline))
#define SHARED __attribute__((shared))

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

DEVICE u32 thread_x() { return __builtin_amdgcn_workitem_id_x(); }
DEVICE u32 group_x() { return __builtin_amdgcn_workgroup_id_x(); }
DEVICE u32 group_y() { return __builtin_amdgcn_workgroup_id_y(); }
DEVICE u32 group_z() { return __builtin_amdgcn_workgroup_id_z(); }

// All threads of the workgroup arrive, and see what the others wrote before.
DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// The number of the thread in its wave.
DEVICE u32 lane_id() {
#if __AMDGCN_WAVEFRONT_SIZE == 64
  return __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
#else
  return __builtin_amdgcn_mbcnt_lo(~0u, 0);
#endif
}
