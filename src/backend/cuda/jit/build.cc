// build(): from memory, from disk, or compiled; each kernel once, however many threads ask for it.
#include <fmt/format.h>

#include <atomic>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "backend/cuda/jit/compiler_log.h"
#include "backend/cuda/jit/cubin_elf.h"
#include "backend/cuda/jit/disk_cache.h"
#include "backend/cuda/jit/dump.h"
#include "backend/cuda/jit/jit.h"
#include "backend/cuda/jit/key.h"
#include "backend/cuda/jit/nvrtc.h"
#include "base/environment.h"

namespace heddle::cuda::jit {
namespace {

/// How one build ended, as a value: every thread that waited for it throws an exception of its own.
struct Outcome {
  std::shared_ptr<const Cubin> cubin;  // null: an error
  ErrorCode code = ErrorCode::internal;
  std::string sentence;
  bool rejected = false;

  bool lasting() const { return cubin != nullptr || rejected; }
};

/// A kernel that is made, or being made.
struct Entry {
  std::promise<Outcome> promise;
  std::shared_future<Outcome> outcome = promise.get_future().share();
};

struct State {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Entry>> kernels;
  std::shared_ptr<DiskCache> disk;
  std::atomic<std::int64_t> compiled{0}, from_memory{0}, from_disk{0}, rejected{0};
};

/// Lives as long as the process: threads may still build while it ends.
State& state() {
  static State* const state = new State;
  return *state;
}

std::shared_ptr<DiskCache> disk() {
  State& s = state();
  const std::scoped_lock lock(s.mutex);
  if (s.disk == nullptr) s.disk = std::make_shared<DiskCache>();
  return s.disk;
}

/// The log's figures; where it lacks one, the cubin's.
Resources figures_of(const Compilation& compilation) {
  Resources resources = resources_in(compilation.log);
  if (resources.complete()) return resources;
  const Resources cubin = resources_of(compilation.cubin);
  const auto fill = [](int& figure, int other) { figure = figure >= 0 ? figure : other; };
  fill(resources.registers, cubin.registers);
  fill(resources.spill_bytes, cubin.spill_bytes);
  fill(resources.stack_bytes, cubin.stack_bytes);
  fill(resources.static_shared_bytes, cubin.static_shared_bytes);
  return resources;
}

[[noreturn]] void throw_failure(const Source& source, const Compilation& compilation) {
  const std::string who = fmt::format("NVRTC {} ({})", compiler().version(), compiler().path);
  if (compilation.result == kOutOfMemory) {
    throw Error(ErrorCode::out_of_memory, fmt::format("kernel '{}': {} ran out of memory", source.name, who));
  }
  if (compilation.result == kBuiltinsMissing) {
    throw Error(ErrorCode::unsupported, fmt::format("{} does not find libnvrtc-builtins.so.{}, which belongs beside it",
                                                    who, compiler().version()));
  }
  throw Error(ErrorCode::compile, fmt::format("kernel '{}' does not compile with {}: {}\n{}", source.name, who,
                                              compilation.result_text, compilation.log));
}

/// What is to be kept of a compilation. Throws when there is no kernel to judge.
Record judge(const Source& source, const Compilation& compilation) {
  Record record;
  record.verdict = performance_losses(compilation.log);
  record.cubin.log = compilation.log;
  record.cubin.compile_ms = compilation.milliseconds;
  if (compilation.result != 0) {
    if (record.verdict.empty() || compilation.result == kOutOfMemory) throw_failure(source, compilation);
    return record;
  }
  const Resources resources = figures_of(compilation);
  if (!resources.complete() || compilation.cubin.empty()) {
    throw Error(ErrorCode::compile,
                fmt::format("kernel '{}': neither the log nor the machine code of NVRTC {} says what it takes of the "
                            "machine\n{}",
                            source.name, compiler().version(), compilation.log));
  }
  record.cubin.registers = resources.registers;
  record.cubin.spill_bytes = resources.spill_bytes;
  record.cubin.stack_bytes = resources.stack_bytes;
  record.cubin.static_shared_bytes = resources.static_shared_bytes;
  if (resources.spill_bytes > 0) {
    const char* const words = resources_in(compilation.log).spill_bytes >= 0
                                  ? "{} bytes are spilled"
                                  : "the log does not say what is spilled, and {} bytes of stack may hold it";
    const std::string losses = std::exchange(record.verdict, fmt::format(fmt::runtime(words), resources.spill_bytes));
    if (!losses.empty()) record.verdict += "; " + losses;
  }
  if (record.verdict.empty()) record.cubin.bytes = compilation.cubin;
  return record;
}

/// From disk, else compiled and stored; dumped where the user asks for that.
Record make(const Source& source, const std::string& key) {
  State& s = state();
  const std::string folder = base::value_of(base::Option::dump);
  const bool dumps = !folder.empty();
  const std::shared_ptr<DiskCache> cache = disk();
  std::optional<Record> record = cache->load(key);
  const bool stored = record.has_value();
  if (stored && !dumps) return *record;
  // The disk keeps no PTX: a kernel from there is compiled a second time for its dump.
  const Compilation compilation = compile(source, dumps);
  if (!stored) {
    ++s.compiled;
    try {
      record = judge(source, compilation);
    } catch (const Error&) {
      if (dumps) dump(folder, source, key, compilation, nullptr);
      throw;
    }
    cache->store(key, *record);
  }
  if (dumps) dump(folder, source, key, compilation, &*record);
  return *record;
}

/// `first` is the cubin for the caller that made it; later ones get the outcome's own, which says that it was in
/// memory.
Outcome attempt(const Source& source, const std::string& key, std::shared_ptr<const Cubin>& first) noexcept {
  Outcome outcome;
  try {
    const Record record = make(source, key);
    if (!record.verdict.empty()) {
      outcome.rejected = true;
      outcome.code = ErrorCode::compile;
      outcome.sentence = fmt::format("kernel '{}' is rejected: {}\n{}", source.name, record.verdict, record.cubin.log);
      return outcome;
    }
    auto later = std::make_shared<Cubin>(record.cubin);
    later->from = Cubin::From::memory;
    first = std::make_shared<Cubin>(record.cubin);
    outcome.cubin = std::move(later);
  } catch (const Error& error) {
    outcome.code = error.code();
    outcome.sentence = error.what();
  } catch (const std::bad_alloc&) {
    outcome.code = ErrorCode::out_of_memory;
    outcome.sentence = "out of memory";
  } catch (const std::exception& error) {
    outcome.sentence = error.what();
  }
  return outcome;
}

[[noreturn]] void throw_error(const Outcome& outcome) {
  if (!outcome.rejected) throw Error(outcome.code, outcome.sentence);
  ++state().rejected;
  throw Rejected(outcome.code, outcome.sentence);
}

std::shared_ptr<const Cubin> build_first(const Source& source, const std::string& key, Entry& entry) {
  State& s = state();
  std::shared_ptr<const Cubin> first;
  const Outcome outcome = attempt(source, key, first);
  if (!outcome.lasting()) {
    const std::scoped_lock lock(s.mutex);
    const auto found = s.kernels.find(key);
    if (found != s.kernels.end() && found->second.get() == &entry) s.kernels.erase(found);
  }
  entry.promise.set_value(outcome);
  if (first == nullptr) throw_error(outcome);
  if (first->from == Cubin::From::disk) ++s.from_disk;
  return first;
}

}  // namespace

std::shared_ptr<const Cubin> build(const Source& source) {
  State& s = state();
  const std::string key = key_of(source);
  std::shared_ptr<Entry> entry;
  bool mine = false;
  {
    const std::scoped_lock lock(s.mutex);
    std::shared_ptr<Entry>& slot = s.kernels[key];
    mine = slot == nullptr;
    if (mine) slot = std::make_shared<Entry>();
    entry = slot;
  }
  if (mine) return build_first(source, key, *entry);
  const Outcome& outcome = entry->outcome.get();
  if (outcome.cubin == nullptr) throw_error(outcome);
  ++s.from_memory;
  return outcome.cubin;
}

std::string key_of(const Source& source) { return key_of(source, compiler().identity); }

std::string compiler_missing() {
  try {
    compiler();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string compiler_version() { return compiler().version(); }

int compiler_number() { return compiler().major * 1000 + compiler().minor * 10; }

std::string cache_notes() { return disk()->notes(); }

Counts counts() {
  const State& s = state();
  return {s.compiled, s.from_memory, s.from_disk, s.rejected};
}

void forget() {
  State& s = state();
  const std::scoped_lock lock(s.mutex);
  s.kernels.clear();
  s.disk = nullptr;
}

}  // namespace heddle::cuda::jit
