// The environment variables that the library reads for itself: all of them, in one table.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace heddle::base {

enum class Option : std::uint8_t {
  nvrtc,
  cuda_driver,
  nccl,
  hip,
  hiprtc,
  archive,
  cache_dir,
  cache_bytes,
  dump,
  host_masks,
  mask_bytes,
  copy_bytes,
  plan_cache_bytes,
  family,
  tuning,
  trace_always,
  cpu_amx,
  d_q_ring,
  log
};

struct OptionRow {
  Option option;
  const char* name;     // "HEDDLE_NVRTC"
  const char* meaning;  // one line
};

/// Every option once, in the order of the enumeration.
std::span<const OptionRow> environment_options();

const char* name_of(Option option);
/// The variable's present value; empty when it is not set.
std::string value_of(Option option);
/// An option that counts bytes: "1048576", "512K", "512M", "2G" (powers of 1024). `fallback` when it is not set. Throws
/// invalid_argument for anything else.
std::int64_t bytes_of(Option option, std::int64_t fallback);

}  // namespace heddle::base
