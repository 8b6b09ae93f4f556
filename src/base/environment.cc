#include "base/environment.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "heddle/error.h"

namespace heddle::base {
namespace {

constexpr std::array kOptions{
    OptionRow{Option::nvrtc, "HEDDLE_NVRTC", "the NVRTC to use: its file, or the folder that holds it"},
    OptionRow{Option::cuda_driver, "HEDDLE_CUDA_DRIVER",
              "the CUDA driver to use: its file, or the folder that holds it"},
    OptionRow{Option::nccl, "HEDDLE_NCCL", "the NCCL to use: its file, or the folder that holds it"},
    OptionRow{Option::hip, "HEDDLE_HIP", "the libamdhip64 to use: its file, or the folder that holds it"},
    OptionRow{Option::hiprtc, "HEDDLE_HIPRTC", "the libhiprtc to use: its file, or the folder that holds it"},
    OptionRow{Option::archive, "HEDDLE_ARCHIVE",
              "archives of kernels that `heddle aot` wrote, with colons between them: a kernel that one of them has is "
              "taken from there, and needs no compiler"},
    OptionRow{Option::cache_dir, "HEDDLE_CACHE_DIR",
              "the folder of compiled kernels and of records of tuning; default: heddle in the XDG cache"},
    OptionRow{Option::cache_bytes, "HEDDLE_CACHE_BYTES", "how large that folder may grow: 512M, 2G"},
    OptionRow{Option::dump, "HEDDLE_DUMP",
              "a folder that gets source, PTX, log, resource usage and machine code of every compiled kernel"},
    OptionRow{Option::host_masks, "HEDDLE_HOST_MASKS",
              "not empty: block masks are built on the host, also where a GPU holds what they read"},
    OptionRow{Option::mask_bytes, "HEDDLE_MASK_BYTES",
              "what a plan on a GPU may take to store the bits of a mask that reads: 64M; default: 256M; 0: nothing"},
    OptionRow{Option::copy_bytes, "HEDDLE_COPY_BYTES",
              "what a plan on a GPU may add to its workspace for copies of pages and captures that could be read where "
              "they are: 64M; default: 1G; 0: nothing"},
    OptionRow{Option::plan_cache_bytes, "HEDDLE_PLAN_CACHE_BYTES",
              "what the plans that attention() keeps may hold in all: 64M; default: 1G; 0: no plan is kept"},
    OptionRow{Option::family, "HEDDLE_FAMILY",
              "the only kernel family that plans on a GPU may take, to compare; an unknown name's error lists the "
              "names"},
    OptionRow{
        Option::tuning, "HEDDLE_TUNING",
        "which kernel plans take where the options do not say: off, the planner's own choice; recorded (default), "
        "the fastest one measured before; measure, that one, measured first where none was; again, measured "
        "anew"},
    OptionRow{
        Option::trace_always, "HEDDLE_TRACE_ALWAYS",
        "not empty: mods that are Python functions are traced at every call, and no expression of theirs is kept"},
    OptionRow{
        Option::cpu_amx, "HEDDLE_CPU_AMX",
        "whether bf16 on the CPU takes AMX, read once a process: auto (default), where the processor has it; off; "
        "emulated, the same kernel over a slow stand-in, for tests. Without AVX-512 all are as off"},
    OptionRow{Option::d_q_ring, "HEDDLE_DQ_RING",
              "whether the Hopper backward to head dimension 128 keeps dQ's sums in a ring: not set, where that was "
              "measured to be faster; on, wherever it can; off, nowhere"},
    OptionRow{Option::log, "HEDDLE_LOG",
              "a file to which each plan, each kernel that is brought and each refusal is appended as a line of JSON "
              "(events.h); - or 1: stderr; 0: none. Read once a process"},
};

constexpr bool in_order() {
  for (std::size_t i = 0; i < kOptions.size(); ++i) {
    if (static_cast<std::size_t>(kOptions[i].option) != i) return false;
  }
  return true;
}
static_assert(in_order(), "a row stands at its option's number");

}  // namespace

std::span<const OptionRow> environment_options() { return kOptions; }

const char* name_of(Option option) { return kOptions[static_cast<std::size_t>(option)].name; }

std::string value_of(Option option) {
  const char* value = std::getenv(name_of(option));
  return value == nullptr ? std::string() : std::string(value);
}

std::int64_t bytes_of(Option option, std::int64_t fallback) {
  const std::string text = value_of(option);
  if (text.empty()) return fallback;
  std::int64_t bytes = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), bytes);
  const std::string_view unit(rest, text.data() + text.size());
  const bool known = unit.empty() || unit == "K" || unit == "M" || unit == "G";
  const std::int64_t factor = unit == "K" ? 1LL << 10 : unit == "M" ? 1LL << 20 : unit == "G" ? 1LL << 30 : 1;
  if (error != std::errc() || !known || bytes < 0 || __builtin_mul_overflow(bytes, factor, &bytes)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{} is '{}'; accepted is a number of bytes below 2^63, which may end in K, M or G",
                            name_of(option), text));
  }
  return bytes;
}

}  // namespace heddle::base
