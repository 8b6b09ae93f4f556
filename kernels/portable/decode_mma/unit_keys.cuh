// The keys of a sequence's units on the line (line.cuh), and where on the line a unit is.
#pragma once

#include "backend/portable/shared/forward_mma_config.h"
#include "shared/key_runs.h"
#include "shared/sequence_span.h"

namespace heddle::portable {

using shared::SequenceSpan;

/// The keys of a sequence's units.
template <auto kConfig, bool kRuns = kConfig.has_runs()>
struct UnitKeys {
  __device__ __forceinline__ static int begin(int unit) { return unit * kConfig.kv_block; }
  /// The run that a unit has keys of.
  __device__ __forceinline__ static shared::KeyRun run(int, int kv_len) { return {0, kv_len}; }
  /// A sequence without keys has a unit, too: its rows are stored there.
  __device__ __forceinline__ static int units(int kv_len) {
    const int units = (kv_len + kConfig.kv_block - 1) / kConfig.kv_block;
    return units > 0 ? units : 1;
  }
};
/// Two runs, one behind the other: the second one begins behind the last unit of the first.
template <auto kConfig>
struct UnitKeys<kConfig, true> {
  shared::KeyRun first, second;
  int first_units;
  int leading_keys;  // unless shares_beside_own(): before runs are joined, so that kernels of other units agree

  __device__ __forceinline__ void set(const shared::KeyRuns& runs) {
    first = runs.first.empty() ? shared::KeyRun{0, 0} : runs.first;
    second = runs.second.empty() ? shared::KeyRun{0, 0} : runs.second;
    if constexpr (kConfig.prefixed() && !kConfig.shares_beside_own()) leading_keys = first.begin == 0 ? first.end : 0;
    if (second.end > 0 && aligned(second.begin) < aligned(first.begin) + units_in(first) * kConfig.kv_block) {
      first.end = second.end;
      second = {0, 0};
    }
    first_units = units_in(first);
  }
  __device__ __forceinline__ int begin(int unit) const {
    return unit < first_units ? aligned(first.begin) + unit * kConfig.kv_block
                              : aligned(second.begin) + (unit - first_units) * kConfig.kv_block;
  }
  __device__ __forceinline__ shared::KeyRun run(int unit, int) const { return unit < first_units ? first : second; }
  /// Keys from the first one on that are all in a run.
  __device__ __forceinline__ int leading() const {
    if constexpr (kConfig.prefixed() && !kConfig.shares_beside_own()) return leading_keys;
    return first.begin == 0 ? first.end : 0;
  }
  /// Without the first ones of these, which are whole units.
  __device__ __forceinline__ void leave_out(int keys) {
    if (keys == 0) return;
    first.begin = keys;
    first_units = units_in(first);
  }
  __device__ __forceinline__ int units(int) const {
    const int units = first_units + units_in(second);
    return units > 0 ? units : 1;
  }

 private:
  /// Where units begin.
  __device__ __forceinline__ static int aligned(int key) { return key / kConfig.run_step() * kConfig.run_step(); }
  __device__ __forceinline__ static int units_in(const shared::KeyRun& run) {
    return run.end > run.begin ? (run.end - aligned(run.begin) + kConfig.kv_block - 1) / kConfig.kv_block : 0;
  }
};

/// Where on the line: a unit of a sequence.
template <auto kConfig>
struct LinePlace {
  int batch, unit, units;  // units: of the sequence, at least 1
  SequenceSpan span;       // where sequences differ
  int kv_end;              // packed keys on the device: where the sequence ends, though not all its keys be used
  int first_entry;         // of listed pages
  UnitKeys<kConfig> keys;
  // prefixed: the sequence shares its first keys with others near it, so many; the units are those of the shared keys,
  // and the sequence is the first that has them.
  int shared_keys;
  bool is_shared;
};

}  // namespace heddle::portable
