// How tensors are stored, and where o and lse are. Host and device code read this file: no headers, plain integers
// only.
#pragma once

namespace heddle::shared {

/// Storage of 8 bits.
enum class Fp8 : int { none, e4m3, e5m2 };
inline constexpr const char* kFp8Types[] = {"none", "e4m3", "e5m2"};
constexpr const char* name(Fp8 type) { return kFp8Types[static_cast<int>(type)]; }

/// Storage of a tensor's elements. `mixed`: not alike in all tensors of a kind, or none is there. `same`, of outputs:
/// q's type (of 8 bits: bf16), which TMA stores; threads store the others, two neighbours at a time.
enum class StorageType : int { f64, f32, f16, bf16, e4m3, e5m2, mixed, same };
inline constexpr const char* kStorageTypes[] = {"f64", "f32", "f16", "bf16", "e4m3", "e5m2", "mixed", "same"};
constexpr const char* name(StorageType type) { return kStorageTypes[static_cast<int>(type)]; }

/// A factor for each sequence and head; null: 1. A stride is 0 where all share one.
struct Descale {
  const float* factors;
  long long stride[2];  // batch, head
};
struct Descales {
  Descale q, k, v;
};

/// Factors of a head's products, where storage has 8 bits: scores by q's and k's factor, o by v's.
struct HeadFactors {
  float scores, values;
};
inline constexpr unsigned kFactorOfScores = 0, kFactorOfValues = 4;  // offsets in bytes

/// The sink of query head h is data[h * stride].
struct Sinks {
  const float* data;
  long long stride;
};

/// o and lse, in element strides of batch, head and row.
struct Outputs {
  void* o;
  long long o_stride[3];
  float* lse;  // null: not asked for
  long long lse_stride[3];
};

/// A number of each row beside them, likewise.
struct RowNumbers {
  float* data;
  long long stride[3];
};

}  // namespace heddle::shared
