// Masks to partition, and their partitions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "heddle/expr.h"
#include "heddle/partition.h"

namespace heddle::test {

inline BlockMask built(const std::string& mask, std::int64_t q_len, std::int64_t kv_len, std::int64_t block = 128,
                       const Bindings& bindings = {}, std::int64_t heads = 1, std::int64_t batch = 1) {
  const Expr expr = mask.empty() ? Expr() : parse(mask, Symbols(bindings));
  return BlockMask::build(expr, MaskShape::uniform(batch, heads, q_len, kv_len), {block, block}, bindings, 1);
}

inline MadePartition made(const BlockMask& mask, std::int64_t ranks, const PartitionOptions& options = {}) {
  const WeightedMask one{&mask, 1};
  return make_partition({&one, 1}, ranks, options);
}

/// Lengths of documents that fill `tokens`, log-normal about a median.
inline std::vector<std::int32_t> documents(std::int64_t tokens, double median, std::int64_t longest,
                                           std::uint32_t seed) {
  std::mt19937 rng(seed);
  const auto uniform = [&] { return (static_cast<double>(rng()) + 0.5) / 4294967296.0; };
  std::vector<std::int32_t> ids;
  for (std::int32_t id = 0; std::ssize(ids) < tokens; ++id) {
    const double normal = std::sqrt(-2 * std::log(uniform())) * std::cos(6.283185307179586 * uniform());
    const auto length = std::clamp<std::int64_t>(static_cast<std::int64_t>(median * std::exp(normal)), 64, longest);
    ids.insert(ids.end(), static_cast<std::size_t>(std::min(length, tokens - std::ssize(ids))), id);
  }
  return ids;
}

}  // namespace heddle::test
