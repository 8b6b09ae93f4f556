// Kernels that exchange values between the lanes of a wave.
#include "device.h"

#define DPP(x, control) (u32) __builtin_amdgcn_update_dpp(0, (int)(x), control, 0xf, 0xf, false)

KERNEL GROUP_SIZE(64) void exchanges(u32* out, const u32* in) {
  u32 i = thread_x(), x = in[i];
  u32* row = out + i * 16;
  row[0] = DPP(x, 0x1b);   // quad_perm:[3,2,1,0]
  row[1] = DPP(x, 0x101);  // row_shl:1
  row[2] = DPP(x, 0x113);  // row_shr:3
  row[3] = DPP(x, 0x125);  // row_ror:5
  row[4] = DPP(x, 0x140);  // row_mirror
  row[5] = DPP(x, 0x141);  // row_half_mirror
  row[6] = (u32)__builtin_amdgcn_ds_bpermute((int)((lane_id() ^ 5) * 4), (int)x);
  row[7] = (u32)__builtin_amdgcn_ds_permute((int)((lane_id() ^ 9) * 4), (int)x);
  row[8] = (u32)__builtin_amdgcn_ds_swizzle((int)x, 0x401f);  // lane ^ 16
  row[9] = (u32)__builtin_amdgcn_readlane((int)x, 3);
  row[10] = (u32)__builtin_amdgcn_readfirstlane((int)x);
#if __AMDGCN_WAVEFRONT_SIZE == 32
  row[11] = (u32)__builtin_amdgcn_permlanex16(x, x, 0x76543210, 0xfedcba98, false, false);
  row[12] = (u32)__builtin_amdgcn_permlane16(x, x, 0x01234567, 0x89abcdef, false, false);
  row[13] = DPP(x, 0x155);  // row_share:5
  row[14] = DPP(x, 0x166);  // row_xmask:6
#else
  row[11] = DPP(x, 0x142);  // row_bcast:15
  row[12] = DPP(x, 0x143);  // row_bcast:31
  row[13] = row[14] = 0;
#endif
  row[15] = lane_id();
}

// Sums and maxima over a wave: exchanges as sources of arithmetic.
KERNEL GROUP_SIZE(64) void wave_sums(float* out, const float* in) {
  float sum = in[group_x() * 64 + thread_x()], top = sum;
  for (int mask = 1; mask < __AMDGCN_WAVEFRONT_SIZE; mask *= 2) {
    int lane = (int)(lane_id() ^ (u32)mask) * 4;
    sum += __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(lane, __builtin_bit_cast(int, sum)));
    top = __builtin_fmaxf(top,
                          __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute(lane, __builtin_bit_cast(int, top))));
  }
  float quad = in[group_x() * 64 + thread_x()];
  quad += __builtin_bit_cast(float, __builtin_amdgcn_mov_dpp(__builtin_bit_cast(int, quad), 0xb1, 0xf, 0xf, true));
  quad += __builtin_bit_cast(float, __builtin_amdgcn_mov_dpp(__builtin_bit_cast(int, quad), 0x4e, 0xf, 0xf, true));
  float* row = out + (group_x() * 64 + thread_x()) * 3;
  row[0] = sum;
  row[1] = top;
  row[2] = quad;
}

// How many lanes of the wave hold less, and who they are; lanes that left take no part.
KERNEL GROUP_SIZE(64) void votes(u32* out, const u32* in, u32 n) {
  u32 i = thread_x();
  if (i >= n) return;
  u32 x = in[i];
#if __AMDGCN_WAVEFRONT_SIZE == 64
  u64 odd = __builtin_amdgcn_ballot_w64(x & 1);
#else
  u64 odd = __builtin_amdgcn_ballot_w32(x & 1);
#endif
  out[i * 3] = (u32)odd;
  out[i * 3 + 1] = (u32)(odd >> 32);
  u32 left = x;
  while (left > 100) left -= 50;
  out[i * 3 + 2] = left;
}
