// build(): from memory, from disk, or compiled; each kernel once, however many threads ask for it.
#include "backend/jit/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <future>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <utility>

#include "backend/jit/archives.h"
#include "backend/jit/disk_cache.h"
#include "backend/jit/dump.h"
#include "backend/jit/key.h"
#include "backend/jit/recording.h"
#include "base/environment.h"
#include "base/profiler_range.h"
#include "base/report.h"

namespace heddle::jit {
namespace {

/// How one build ended, as a value: every thread that waited for it throws an exception of its own.
struct Outcome {
  std::shared_ptr<const MachineCode> code;  // null: an error
  ErrorCode error = ErrorCode::internal;
  std::string sentence;
  bool rejected = false;
  std::optional<Record> refused{};  // the record of a rejected kernel, for archives

  bool lasting() const { return code != nullptr || rejected; }
  std::int64_t bytes() const {
    std::size_t all = sentence.size();
    if (code != nullptr) all += code->bytes.size() + code->log.size();
    if (refused) all += refused->code.log.size() + refused->verdict.size();
    return static_cast<std::int64_t>(all);
  }
};

/// A kernel that is made, or being made. The outcome may be read once `ended` is ready, which takes no memory: a kernel
/// whose end could not be told would be waited for without end.
struct Entry {
  Outcome outcome;
  std::int64_t bytes = 0;      // of the outcome; 0 while the kernel is being made
  std::uint64_t last_use = 0;  // builds counted over all kernels
  std::promise<void> promise;
  std::shared_future<void> ended = promise.get_future().share();
};

struct Counters {
  std::atomic<std::int64_t> compiled{0}, from_memory{0}, from_disk{0}, from_archive{0}, rejected{0};
};

std::string maker_of(const Compiler& compiler) { return fmt::format("{} {}", compiler.name(), compiler.version()); }

/// The kernel's name in the disk cache. Throws Error(unsupported) where there is no compiler: with archives in use, the
/// sentence says first that the kernel is in none of them.
std::string disk_key_of(const Compiler& compiler, const Source& source) {
  try {
    return key_of(source, compiler.options_of(source), compiler.identity());
  } catch (const Error& error) {
    const std::string lack = Archives::of_process().lack_of(source);
    if (lack.empty() || error.code() != ErrorCode::unsupported) throw;
    throw Error(ErrorCode::unsupported, fmt::format("{}. It cannot be compiled here: {}", lack, error.what()));
  }
}

/// From disk, else compiled and stored; dumped where the user asks for that.
Record make_here(const Compiler& compiler, Counters& counters, DiskCache& cache, const Source& source) {
  const std::string key = disk_key_of(compiler, source);
  const std::string folder = base::value_of(base::Option::dump);
  const bool dumps = !folder.empty();
  std::optional<Record> record = cache.load(key);
  const bool stored = record.has_value();
  if (stored && !dumps) return *record;
  // The disk keeps no assembly: a kernel from there is compiled a second time for its dump.
  const base::ProfilerRange range("heddle compile");
  const Compilation compilation = compiler.compile(source, dumps);
  if (!stored) {
    ++counters.compiled, ++base::kernel_counters().compiled;
    try {
      record = compiler.judge(source, compilation);
    } catch (const Error&) {
      if (dumps) dump(compiler, folder, source, key, compilation, nullptr);
      throw;
    }
    cache.store(key, *record);
  }
  if (dumps) dump(compiler, folder, source, key, compilation, &*record);
  return *record;
}

/// From an archive, else made here.
Record make(const Compiler& compiler, Counters& counters, DiskCache& cache, const Source& source,
            const std::string& key) {
  if (std::optional<Record> archived = Archives::of_process().find(key)) return std::move(*archived);
  Record record = make_here(compiler, counters, cache, source);
  record.code.compiler = maker_of(compiler);
  return record;
}

void out_of_memory(Outcome& outcome) {
  outcome.error = ErrorCode::out_of_memory;
  outcome.sentence = "out of memory";  // so short that the string holds it without allocating
}

void fail(Outcome& outcome, ErrorCode code, const char* sentence) {
  try {
    outcome.sentence = sentence;
    outcome.error = code;
  } catch (const std::bad_alloc&) {
    out_of_memory(outcome);
  }
}

/// `first` is the code for the caller that made it. Later callers get the outcome's own copy, which says that it was in
/// memory.
template <class Make>
void attempt(const Source& source, Make&& make, Outcome& outcome, std::shared_ptr<const MachineCode>& first) noexcept {
  try {
    const Record record = make();
    if (!record.verdict.empty()) {
      outcome.sentence = fmt::format("kernel '{}' is rejected: {}\n{}", source.name, record.verdict, record.code.log);
      outcome.refused = record;
      outcome.rejected = true;
      outcome.error = ErrorCode::compile;
      return;
    }
    auto later = std::make_shared<MachineCode>(record.code);
    later->from = MachineCode::From::memory;
    first = std::make_shared<MachineCode>(record.code);
    outcome.code = std::move(later);
  } catch (const Error& error) {
    fail(outcome, error.code(), error.what());
  } catch (const std::bad_alloc&) {
    out_of_memory(outcome);
  } catch (const std::exception& error) {
    fail(outcome, ErrorCode::internal, error.what());
  }
}

/// Adds a kernel to what this thread records, if it does.
void record_kernel(const Source& source, const std::string& key, const Outcome& outcome) {
  Recording* const recording = Recording::current();
  if (recording == nullptr || !outcome.lasting()) return;
  Record record = outcome.refused ? *outcome.refused : Record{.verdict = {}, .code = *outcome.code};
  record.code.compile_ms = 0;  // equal calls give equal archives
  recording->add({.key = key,
                  .name = source.name,
                  .architecture = source.architecture,
                  .compiler = record.code.compiler,
                  .record = record});
}

/// `code` is null if there is none.
void report(const Source& source, const MachineCode* code, const Outcome& outcome) {
  if (!base::hears_events()) return;
  if (code == nullptr) {
    base::report("kernel", base::JsonObject().add("name", source.name).add("error", outcome.sentence));
    return;
  }
  base::report("kernel", base::JsonObject()
                             .add("name", source.name)
                             .add("from", name(code->from))
                             .add("compile_ms", code->compile_ms)
                             .add("bytes", code->bytes.size())
                             .add("registers", code->registers)
                             .add("spill_bytes", code->spill_bytes));
}

}  // namespace

struct Builder::State {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<Entry>> kernels;
  std::shared_ptr<DiskCache> disk;
  Counters counters;
  const std::int64_t most_bytes;
  std::int64_t bytes = 0;  // of all kernels
  std::uint64_t builds = 0;

  explicit State(std::int64_t most) : most_bytes(most) {}

  /// Counts a kernel that was made. Those used least recently give way: the disk cache has them.
  void keep(const std::string& key, Entry& entry) {
    const std::scoped_lock lock(mutex);
    if (const auto found = kernels.find(key); found == kernels.end() || found->second.get() != &entry)
      return;  // forgotten
    entry.bytes = entry.outcome.bytes();
    bytes += entry.bytes;
    while (bytes > most_bytes) {
      const auto older = [](const auto& a, const auto& b) {  // one that is being made gives way last
        return std::pair(a.second->bytes == 0, a.second->last_use) <
               std::pair(b.second->bytes == 0, b.second->last_use);
      };
      const auto oldest = std::min_element(kernels.begin(), kernels.end(), older);
      if (oldest == kernels.end() || oldest->second->bytes == 0) return;
      bytes -= oldest->second->bytes;
      kernels.erase(oldest);
    }
  }

  std::shared_ptr<DiskCache> disk_now() {
    const std::scoped_lock lock(mutex);
    if (disk == nullptr) disk = std::make_shared<DiskCache>();
    return disk;
  }

  [[noreturn]] void throw_error(const Outcome& outcome) {
    if (!outcome.rejected) throw Error(outcome.error, outcome.sentence);
    ++counters.rejected, ++base::kernel_counters().rejected;
    throw Rejected(outcome.error, outcome.sentence);
  }

  std::shared_ptr<const MachineCode> build_first(const Compiler& compiler, const Source& source, const std::string& key,
                                                 Entry& entry) {
    std::shared_ptr<const MachineCode> first;
    const Outcome& outcome = entry.outcome;
    attempt(
        source, [&] { return make(compiler, counters, *disk_now(), source, key); }, entry.outcome, first);
    if (outcome.lasting()) keep(key, entry);
    if (!outcome.lasting()) {
      const std::scoped_lock lock(mutex);
      const auto found = kernels.find(key);
      if (found != kernels.end() && found->second.get() == &entry) kernels.erase(found);
    }
    entry.promise.set_value();
    record_kernel(source, key, outcome);
    report(source, first.get(), outcome);
    if (first == nullptr) throw_error(outcome);
    if (first->from == MachineCode::From::disk) ++counters.from_disk, ++base::kernel_counters().from_disk;
    if (first->from == MachineCode::From::archive) ++counters.from_archive, ++base::kernel_counters().from_archive;
    return first;
  }
};

Builder::Builder(const Compiler& compiler, std::int64_t most_bytes)
    : compiler_(compiler), state_(std::make_unique<State>(most_bytes)) {}
Builder::~Builder() = default;

std::shared_ptr<const MachineCode> Builder::build(const Source& source) {
  const std::string key = source_key(source, compiler_.options_of(source));
  std::shared_ptr<Entry> entry;
  bool mine = false;
  {
    const std::scoped_lock lock(state_->mutex);
    std::shared_ptr<Entry>& slot = state_->kernels[key];
    mine = slot == nullptr;
    if (mine) slot = std::make_shared<Entry>();
    slot->last_use = ++state_->builds;
    entry = slot;
  }
  if (mine) return state_->build_first(compiler_, source, key, *entry);
  entry->ended.wait();
  const Outcome& outcome = entry->outcome;
  record_kernel(source, key, outcome);
  if (outcome.code == nullptr) state_->throw_error(outcome);
  ++state_->counters.from_memory, ++base::kernel_counters().from_memory;
  return outcome.code;
}

std::string Builder::key_of(const Source& source) const {
  const std::vector<std::string> options = compiler_.options_of(source);
  try {
    return jit::key_of(source, options, compiler_.identity());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return source_key(source, options);
  }
}

std::string Builder::cache_notes() { return Archives::of_process().notes() + state_->disk_now()->notes(); }

Counts Builder::counts() const {
  const Counters& counters = state_->counters;
  return {counters.compiled, counters.from_memory, counters.from_disk, counters.from_archive, counters.rejected};
}

void Builder::forget() {
  const std::scoped_lock lock(state_->mutex);
  state_->kernels.clear();
  state_->bytes = 0;
  state_->disk = nullptr;
  Archives::of_process().forget();
}

const char* name(MachineCode::From from) {
  static constexpr const char* kNames[] = {"compiled", "from memory", "from the disk cache", "from an archive"};
  return kNames[static_cast<std::size_t>(from)];
}

}  // namespace heddle::jit
