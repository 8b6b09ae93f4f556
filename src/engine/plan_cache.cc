#include "engine/plan_cache.h"

#include <algorithm>

#include "base/environment.h"
#include "base/hash.h"
#include "base/per_thread.h"
#include "engine/state.h"
#include "engine/workspaces.h"

namespace heddle {
namespace engine {
namespace {

/// The most plans that are kept, and the most bytes of them and their masks. The latest plan is kept whatever its size.
constexpr std::int64_t kMostPlans = 256;
constexpr std::int64_t kMostBytes = std::int64_t{1} << 30;

std::int64_t most_bytes() { return base::bytes_of(base::Option::plan_cache_bytes, kMostBytes); }

}  // namespace

bool PlanCache::serves(const Entry& entry, const Bindings& bindings) {
  for (const auto& [name, memory] : entry.mask_memory) {
    const auto given = bindings.captures.find(name);
    if (given == bindings.captures.end() || given->second.data != memory) return false;
  }
  const BlockMask* mask = entry.plan.block_mask();
  return mask == nullptr || mask->is_current(bindings);
}

const AttentionPlan* PlanCache::find(const PlanKey& key, std::uint64_t hash, const Bindings& bindings) {
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto found = first; found != last; ++found) {
    const Entries::iterator entry = found->second;
    if (entry->key != key || !serves(*entry, bindings)) continue;
    entries_.splice(entries_.begin(), entries_, entry);
    return &entry->plan;
  }
  return nullptr;
}

PlanCache::Entry PlanCache::entry_of(PlanKey key, std::uint64_t hash, AttentionPlan plan) {
  const AttentionPlan::State& state = *plan.state_;
  std::int64_t bytes = state.kernel->held_bytes();
  if (state.block_mask != nullptr) bytes += state.block_mask->statistics().bytes;
  Entry entry = {std::move(key), hash, std::move(plan), {}, bytes};
  const Expr& mask = state.problem.mask_mod;  // the caller's, or the block mask's own
  if (mask.empty()) return entry;
  for (const auto& [name, declared] : symbols_of(mask).captures) {
    const ConstTensorView& view = state.options.bindings.captures.at(name);
    if (view.device.kind != DeviceKind::cpu) entry.mask_memory.emplace_back(name, view.data);
  }
  return entry;
}

void PlanCache::drop(Entries::iterator entry, Entries& dropped) {
  const auto [first, last] = by_hash_.equal_range(entry->hash);
  by_hash_.erase(std::find_if(first, last, [&](const auto& found) { return found.second == entry; }));
  counts_.bytes -= entry->bytes;
  --counts_.plans;
  dropped.splice(dropped.begin(), entries_, entry);
}

/// Returns the plans that gave way, to be freed without the lock: on a GPU that waits. Throws what reading the bound
/// throws, or that there is no memory, before anything has changed.
PlanCache::Entries PlanCache::keep(Entry entry) {
  const std::int64_t most = most_bytes();
  Entries made;
  made.push_front(std::move(entry));
  by_hash_.emplace(made.front().hash, made.begin());
  counts_.bytes += made.front().bytes;
  ++counts_.plans;
  entries_.splice(entries_.begin(), made);
  Entries dropped;
  while (counts_.plans > 1 && (counts_.plans > kMostPlans || counts_.bytes > most)) {
    drop(std::prev(entries_.end()), dropped);
    ++counts_.evictions;
  }
  return dropped;
}

template <class Tensors>
AttentionPlan PlanCache::plan(const Tensors& tensors, const AttentionOptions& options) {
  static base::PerThread<PlanKey> keys;
  PlanKey& key = keys.here();
  write_key(tensors, options, key);
  const std::uint64_t hash = base::hash_bytes(key.data(), key.size() * sizeof(key.front()));
  {
    const std::lock_guard lock(mutex_);
    if (const AttentionPlan* found = find(key, hash, options.bindings)) {
      ++counts_.hits;
      return *found;
    }
    ++counts_.misses;
  }
  AttentionPlan made(tensors, options);
  if (most_bytes() == 0) return made;
  made.state_->cached = true;
  made.state_->options.progress = nullptr;  // the caller's, which may not outlive this call
  Entry entry = entry_of(key, hash, made);
  Entries dropped;
  const std::lock_guard lock(mutex_);
  if (const AttentionPlan* found = find(key, hash, options.bindings)) return *found;
  dropped = keep(std::move(entry));
  return made;
}

template AttentionPlan PlanCache::plan(const AttentionTensors&, const AttentionOptions&);
template AttentionPlan PlanCache::plan(const BackwardTensors&, const AttentionOptions&);

template <class Tensors>
void PlanCache::run(const AttentionPlan& plan, const Tensors& tensors, const RunOptions& options) {
  plan.state_->run(tensors, options, true);
}
template void PlanCache::run(const AttentionPlan&, const AttentionTensors&, const RunOptions&);
template void PlanCache::run(const AttentionPlan&, const BackwardTensors&, const RunOptions&);

PlanCacheCounts PlanCache::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void PlanCache::clear() {
  Entries entries;
  const std::lock_guard lock(mutex_);
  by_hash_.clear();
  entries.swap(entries_);
  counts_.plans = counts_.bytes = 0;
}

PlanCache& plan_cache() {
  // Never destroyed: when statics are, the driver may be gone.
  static auto* cache = new PlanCache;
  return *cache;
}

}  // namespace engine

AttentionPlan cached_plan(const AttentionTensors& tensors, const AttentionOptions& options) {
  return engine::plan_cache().plan(tensors, options);
}

template <std::same_as<BackwardTensors> Tensors>
AttentionPlan cached_plan(const Tensors& tensors, const AttentionOptions& options) {
  return engine::plan_cache().plan(tensors, options);
}
template AttentionPlan cached_plan(const BackwardTensors&, const AttentionOptions&);

PlanCacheCounts plan_cache_counts() { return engine::plan_cache().counts(); }

void clear_plan_cache() {
  engine::plan_cache().clear();
  engine::workspaces().clear();
}

}  // namespace heddle
