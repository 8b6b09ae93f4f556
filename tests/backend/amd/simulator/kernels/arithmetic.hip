// Kernels of arithmetic alone: a thread reads one element of each input and writes a row of results.
#include "device.h"

typedef _Float16 half;
typedef half half2 __attribute__((ext_vector_type(2)));

KERNEL GROUP_SIZE(64) void transcendental(float* out, const float* in) {
  u32 i = group_x() * 64 + thread_x();
  float x = in[i];
  float* row = out + i * 10;
  row[0] = __builtin_amdgcn_exp2f(x);
  row[1] = __builtin_amdgcn_logf(x);
  row[2] = __builtin_amdgcn_rcpf(x);
  row[3] = __builtin_amdgcn_rsqf(x);
  row[4] = __builtin_amdgcn_sqrtf(x);
  row[5] = __builtin_amdgcn_sinf(x);
  row[6] = __builtin_amdgcn_cosf(x);
  row[7] = __builtin_amdgcn_fractf(x);
  row[8] = __builtin_exp2f(x);
  row[9] = __builtin_amdgcn_ldexpf(x, (int)i % 5);
}

KERNEL GROUP_SIZE(64) void floats(float* out, const float* a, const float* b, const float* c) {
  u32 i = group_x() * 64 + thread_x();
  float x = a[i], y = b[i], z = c[i];
  float* row = out + i * 20;
  row[0] = x + y;
  row[1] = x - y;
  row[2] = x * y;
  row[3] = x / y;
  row[4] = __builtin_fmaf(x, y, z);
  row[5] = __builtin_fmaf(-x, y, -__builtin_fabsf(z));
  row[6] = __builtin_fminf(x, y);
  row[7] = __builtin_fmaxf(x, __builtin_fmaxf(y, z));
  row[8] = __builtin_amdgcn_fmed3f(x, y, z);
  row[9] = __builtin_floorf(x);
  row[10] = __builtin_ceilf(x);
  row[11] = __builtin_truncf(x);
  row[12] = __builtin_rintf(x);
  row[13] = __builtin_sqrtf(__builtin_fabsf(x));
  row[14] = __builtin_copysignf(x, y);
  row[15] = x < y ? x : z;
  row[16] = x >= z && y != z ? y : -x;
  row[17] = __builtin_isnan(x) || __builtin_isinf(y) ? 1.0f : 2.0f;
  row[18] = __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f);
  row[19] = __builtin_fmaf(x, 0.5f, 4.0f) * 2.0f;
}

KERNEL GROUP_SIZE(64) void conversions(u32* out, const float* in, const int* integers) {
  u32 i = group_x() * 64 + thread_x();
  float x = in[i];
  u32* row = out + i * 14;
  half h = (half)x;
  row[0] = __builtin_bit_cast(u16, h);
  row[1] = __builtin_bit_cast(u32, (float)h);
  u32 bits = __builtin_bit_cast(u32, x);
  row[2] = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  row[3] = __builtin_bit_cast(u32, (float)integers[i]);
  row[4] = __builtin_bit_cast(u32, (float)(u32)integers[i]);
  float small = __builtin_fminf(__builtin_fmaxf(x, -1e9f), 1e9f);
  row[5] = (u32)(int)small;
  row[6] = (u32)__builtin_fmaxf(small, 0.0f);
  row[7] = __builtin_bit_cast(u32, __builtin_amdgcn_cvt_pkrtz(x, -x));
  half2 packed = {h, (half)(x + 1.0f)};
  row[8] = __builtin_bit_cast(u32, packed);
  row[9] = __builtin_bit_cast(u32, (float)(u8)integers[i]);
  row[10] = __builtin_bit_cast(u32, (float)(integers[i] >> 8 & 255));
  row[11] = __builtin_bit_cast(u32, (float)(short)integers[i]);
  row[12] = __builtin_bit_cast(u32, (float)((double)x * 3.0));
  row[13] = (u32)(u16)(half)(float)(integers[i] & 1023);
}

KERNEL GROUP_SIZE(64) void halves(u32* out, const u32* a, const u32* b, const u32* c) {
  u32 i = group_x() * 64 + thread_x();
  half2 x = __builtin_bit_cast(half2, a[i]), y = __builtin_bit_cast(half2, b[i]), z = __builtin_bit_cast(half2, c[i]);
  u32* row = out + i * 12;
  row[0] = __builtin_bit_cast(u32, x + y);
  row[1] = __builtin_bit_cast(u32, x * y);
  row[2] = __builtin_bit_cast(u32, __builtin_elementwise_fma(x, y, z));
  row[3] = __builtin_bit_cast(u32, __builtin_elementwise_max(x, y));
  row[4] = __builtin_bit_cast(u32, __builtin_elementwise_min(x, -y));
  row[5] = __builtin_bit_cast(u32, (half2){y.y, x.x});
  row[6] = __builtin_bit_cast(u16, (half)(x.x + y.y));
  row[7] = __builtin_bit_cast(u16, (half)(x.y * y.x));
  row[8] = __builtin_bit_cast(u32, (float)x.x * (float)y.y + (float)z.y);
  row[9] = __builtin_bit_cast(u32, __builtin_fmaf((float)x.y, (float)y.x, (float)z.x));
  row[10] = __builtin_bit_cast(u32, x - z * (half)2.0f);
  row[11] = x.x < y.x ? 1 : x.y >= y.y ? 2 : 3;
}

KERNEL GROUP_SIZE(64) void integers(u32* out, const u32* a, const u32* b) {
  u32 i = group_x() * 64 + thread_x(), x = a[i], y = b[i];
  u32* row = out + i * 28;
  row[0] = x + y;
  row[1] = x - y;
  row[2] = x * y;
  row[3] = (u32)((int)x * (int)y + (int)x);
  row[4] = x / (y | 1);
  row[5] = (u32)((int)x / (int)(y | 1));
  row[6] = x % (y | 1);
  row[7] = (u32)(((u64)x * y) >> 32);
  row[8] = (u32)(((i64)(int)x * (int)y) >> 32);
  row[9] = x << (y & 31);
  row[10] = x >> (y & 31);
  row[11] = (u32)((int)x >> (y & 31));
  row[12] = (x & y) | (~x & 0xff00ff00);
  row[13] = x ^ y;
  row[14] = (u32)__builtin_popcount(x) + (u32)__builtin_popcount(y);
  row[15] = x ? (u32)__builtin_clz(x) : 32u;
  row[16] = x ? (u32)__builtin_ctz(x) : 32u;
  row[17] = __builtin_bitreverse32(x);
  row[18] = __builtin_bswap32(x);
  row[19] = x < y ? x : y;
  row[20] = (u32)((int)x > (int)y ? (int)x : (int)y);
  row[21] = x >> 5 & 0x7ff;
  row[22] = (u32)((int)(x << 9) >> 20);
  row[23] = (x << 7) | (x >> 25);
  row[24] = (x << 3) + y;
  row[25] = x + y + 17u;
  row[26] = __builtin_amdgcn_perm(x, y, 0x07020501);
  row[27] = x * 24 + (y & 0xffffff) * (x & 0xffffff);
}

KERNEL GROUP_SIZE(64) void wide_integers(u64* out, const u64* a, const u64* b) {
  u32 i = group_x() * 64 + thread_x();
  u64 x = a[i], y = b[i];
  u64* row = out + i * 14;
  row[0] = x + y;
  row[1] = x - y;
  row[2] = x * y;
  row[3] = x << (y & 63);
  row[4] = x >> (y & 63);
  row[5] = (u64)((i64)x >> (y & 63));
  row[6] = x < y ? x : y;
  row[7] = (u64)((i64)x > (i64)y ? 1 : 0);
  row[8] = (x & y) ^ ~y;
  row[9] = x ? (u64)__builtin_clzll(x) : 64;
  row[10] = (u64)(u32)x * (u32)y + (x >> 32);
  row[11] = x == y ? 5 : x;
  row[12] = (u64)((i64)(int)x * (int)y);
  row[13] = x / (y | 1);
}

// Ten rounds that multiply, exchange halves and add to a key: a counter-based generator's work.
KERNEL GROUP_SIZE(64) void rounds(u32* out, u32 key0, u32 key1) {
  u32 i = group_x() * 64 + thread_x();
  u32 c0 = i, c1 = i * 7, c2 = 3, c3 = ~i;
  for (u32 round = 0; round < 10; ++round) {
    u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
    c0 = (u32)(p1 >> 32) ^ c1 ^ key0;
    c2 = (u32)(p0 >> 32) ^ c3 ^ key1;
    c1 = (u32)p1;
    c3 = (u32)p0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  out[i * 4] = c0;
  out[i * 4 + 1] = c1;
  out[i * 4 + 2] = c2;
  out[i * 4 + 3] = c3;
}

KERNEL GROUP_SIZE(64) void doubles(double* out, const double* a, const double* b, const double* c) {
  u32 i = group_x() * 64 + thread_x();
  double x = a[i], y = b[i], z = c[i];
  double* row = out + i * 14;
  row[0] = x + y;
  row[1] = x * y - z;
  row[2] = __builtin_fma(x, y, z);
  row[3] = x / y;
  row[4] = __builtin_sqrt(__builtin_fabs(x));
  row[5] = __builtin_fmax(x, y);
  row[6] = __builtin_fmin(-x, z);
  row[7] = __builtin_floor(x);
  row[8] = x < y ? z : y;
  row[9] = (double)(float)x;
  row[10] = (double)(int)z + (double)(u32)i;
  row[11] = __builtin_rint(y);
  row[12] = __builtin_ldexp(x, 3);
  row[13] = (double)(i64)(z * 1000.0);
}

// Branches that lanes take apart, loops of lengths that differ by lane, and a switch.
KERNEL GROUP_SIZE(64) void branches(u32* out, const u32* in) {
  u32 i = group_x() * 64 + thread_x(), x = in[i], sum = 0;
  for (u32 k = 0; k < x % 13; ++k) {
    if ((x >> k) & 1) {
      if (k % 3 == 2) continue;
      sum += k * x;
      if (sum % 7 == 3) break;
    } else {
      sum ^= x >> k;
    }
  }
  switch (x % 5) {
    case 0:
      sum += 100;
      break;
    case 1:
      sum *= 3;
      break;
    case 2:
      sum -= x;
      break;
    case 3:
      sum = ~sum;
      break;
    default:
      break;
  }
  while (sum > 1000) sum = sum / 3 + 1;
  out[i] = sum;
}
