// The plans of the one-call functions, kept for calls with the same problem.
#pragma once

#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "engine/plan_key.h"
#include "heddle/attention.h"

namespace heddle::engine {

/// Keeps the plans that were used last, by their keys. Safe from several threads: two that miss the same key both plan,
/// and the later one's plan is dropped.
class PlanCache {
 public:
  /// Plans unless a plan is kept for this problem, whose mask then has the values of `options`. Throws as
  /// AttentionPlan. A hit allocates nothing.
  /// Tensors: AttentionTensors, or BackwardTensors for a backward.
  template <class Tensors>
  AttentionPlan plan(const Tensors& tensors, const AttentionOptions& options);
  /// Runs a plan that plan() has just given for these arguments: what its mask reads is not compared once more.
  template <class Tensors>
  static void run(const AttentionPlan& plan, const Tensors& tensors, const RunOptions& options);

  PlanCacheCounts counts() const;
  void clear();

 private:
  struct Entry {
    PlanKey key;
    std::uint64_t hash;
    AttentionPlan plan;
    std::vector<std::pair<std::string, const void*>> mask_memory;  // on GPUs, where the mask's captures are
    std::int64_t bytes;
  };
  using Entries = std::list<Entry>;

  static bool serves(const Entry& entry, const Bindings& bindings);
  static Entry entry_of(PlanKey key, std::uint64_t hash, AttentionPlan plan);
  const AttentionPlan* find(const PlanKey& key, std::uint64_t hash, const Bindings& bindings);
  void drop(Entries::iterator entry, Entries& dropped);
  Entries keep(Entry entry);

  mutable std::mutex mutex_;
  Entries entries_;  // the last used first
  std::unordered_multimap<std::uint64_t, Entries::iterator> by_hash_;
  PlanCacheCounts counts_;
};

/// The one of this process.
PlanCache& plan_cache();

}  // namespace heddle::engine
