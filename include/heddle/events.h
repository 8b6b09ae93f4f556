// Events report each plan, each kernel that is compiled or loaded, and each refused call. They are off unless a
// listener is set or HEDDLE_LOG names a file ("-", "1": stderr), which gets each event as a line. If they are off, a
// plan and a refusal cost one more load. A call with a cached plan costs nothing more in either case.
//
// An event is one line of JSON. All have "event", "time" (seconds since 1970) and "process".
//   plan     "ms" that planning took, compilation included; "pass" (forward, backward); "device"; "problem", as
//            explain() has it; "family"; "tile" [queries, keys]; "workspace_bytes"; "rejected": kernels that the
//            compiler did not make well, and why; "call": the call, as `heddle aot` reads it
//            (docs/guide/archives.md)
//   call     "call", likewise: of the first merge_states or append_kv of its dtypes on a GPU
//   kernel   "name"; "from" (compiled, from the disk cache, from an archive); "compile_ms" (0 from an archive);
//            "bytes"; "registers" and "spill_bytes" a thread; or, if it failed, "error"
//   refusal  "of" (call, plan, run); "code", as in error.h; "reason": the sentence that is thrown
// More events and keys may come.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace heddle {

/// Gets one line without its line end. It is called on the thread of the call, possibly on several threads at a time,
/// and may call the library. Its exceptions are dropped.
using EventListener = std::function<void(const std::string& event)>;

/// Replaces the process's listener. Empty: none. Calls in progress may still use the old one.
void set_event_listener(EventListener listener);

/// Counts of the kernels of all GPUs since the process began. They count with and without a listener.
struct KernelCounts {
  std::int64_t compiled = 0, from_memory = 0, from_disk = 0, from_archive = 0;  // how a kernel was got
  std::int64_t rejected = 0;  // by the judgement of the compiler's log
};
KernelCounts kernel_counts();

}  // namespace heddle
