#include "families/decode_mma/decode_mma_costs.h"

#include <algorithm>

#include "families/decode_mma/decode_mma.h"

namespace heddle::plan {
namespace {

using problem::AttentionProblem;
using shared::ForwardMmaConfig;

/// A unit of each tile of each sequence: the units of one multiprocessor, at least one.
double units_of_cta(const AttentionProblem& problem, const ForwardMmaConfig& config, const DecodeKeys& keys,
                    int multiprocessors) {
  const double units = static_cast<double>(keys.units * decode_mma_tiles(problem, config));
  return std::max(1.0, units / multiprocessors);
}

/// takes_turns(): the longer one of reading and computing, and what begins and ends a run's last tiles. All fitted to
/// an H100's times.
double turns_seconds(const AttentionProblem& problem, const ForwardMmaConfig& config, const DecodeKeys& keys,
                     int multiprocessors, double reading) {
  constexpr double kReading = 1.04, kEnd = 15.5e-6, kEndOfRow = 0.14e-6;
  const double block = config.boxes ? 2.1e-6 : 2.45e-6;
  const double computing = units_of_cta(problem, config, keys, multiprocessors) * block *
                           static_cast<double>(problem.qk_dim + problem.v_dim) / 1088;
  const double end = (kEnd + kEndOfRow * config.live_rows) * static_cast<double>(problem.v_dim) / 512;
  return std::max(kReading * reading, computing) + end;
}

/// wide(), by mma.sync: half of the shorter one of reading and computing is hidden by the other. Rows cost products.
/// Where more than two CTAs have keys of a tile, its last one merges their rows. All fitted to an H100's times.
double wide_seconds(const AttentionProblem& problem, const ForwardMmaConfig& config, const DecodeKeys& keys,
                    int multiprocessors, double reading) {
  constexpr double kSeen = 0.5, kMerge = 40e-6;
  const double units = units_of_cta(problem, config, keys, multiprocessors);
  const double computing = units * (0.57e-6 + 0.0635e-6 * config.live_rows) * config.kv_block / 64;
  const double seconds = std::max(reading, computing) + kSeen * std::min(reading, computing);
  const double of_sequence = static_cast<double>(keys.units) / static_cast<double>(problem.batch);
  if (of_sequence <= 2 * units) return seconds;
  return seconds + kMerge * static_cast<double>(problem.v_dim) / 512;
}

/// By wgmma, keys and values apart: a unit takes a CTA so long. A guess, of some 1,700 clocks for 128 keys of D 128.
double unit_seconds(const AttentionProblem& problem, const ForwardMmaConfig& config) {
  const double keys = config.kv_block / 128.0;
  return keys * (0.45e-6 + 0.55e-6 * static_cast<double>(problem.qk_dim + problem.v_dim) / 256);
}

/// By wgmma, keys and values apart: reading and computing hide each other, and nothing hides the ends of tiles, whose
/// rows pass through shared memory. The ends are fitted to an H100's times.
double own_rings_seconds(const AttentionProblem& problem, const ForwardMmaConfig& config, const DecodeKeys& keys,
                         int multiprocessors, double reading) {
  constexpr double kSecondsOfElement = 2.7e-9;
  const double computing = units_of_cta(problem, config, keys, multiprocessors) * unit_seconds(problem, config);
  const double tiles = static_cast<double>(problem.batch * decode_mma_tiles(problem, config));
  const double ends = std::max(1.0, tiles / multiprocessors);
  return std::max(reading, computing) +
         ends * kSecondsOfElement * config.live_rows * static_cast<double>(problem.v_dim);
}

/// Tiles of the same keys read them through the L2 cache. From 42 rows of a head of keys on products take longer than
/// memory does, whatever tiles they are in (64 rows of 16 and of 32, H100). A product of 16 bits has as many flops a
/// byte as rows.
double mma_sync_seconds(const AttentionProblem& problem, const ForwardMmaConfig& config, const DecodeKeys& keys,
                        double tiles_of_kv_head, double bytes, double rate) {
  constexpr double kRowsOfMemory = 42;
  const std::int64_t unit_rows =
      (keys.units - keys.shared_units) * config.own_rows() + keys.shared_units * config.live_rows;
  const double products = decode_mma_bytes(problem, config, unit_rows) * tiles_of_kv_head / kRowsOfMemory;
  return std::max(bytes, products) / rate;
}

/// Shared keys by one kernel, own keys by the next one: the longer one of reading and computing the shared keys, then
/// the reading of the own ones. Estimates of what a unit of 64 keys takes a CTA, and of what begins and ends both.
double two_kernels_seconds(const AttentionProblem& problem, const ForwardMmaConfig& config, const DecodeKeys& keys,
                           int multiprocessors, double rate) {
  constexpr double kUnit = 0.75e-6, kEnds = 5e-6;
  const double units = static_cast<double>(keys.shared_units * config.kv_block / shared::kPrefixStep *
                                           decode_mma_tiles(problem, config)),
               computing = units / multiprocessors * kUnit * static_cast<double>(problem.qk_dim + problem.v_dim) / 256;
  const double shared_bytes = decode_mma_bytes(problem, config, keys.shared_units - keys.again),
               own_bytes = decode_mma_bytes(problem, config, keys.units - keys.shared_units);
  return kEnds + std::max(shared_bytes / rate, computing) + own_bytes / rate;
}

}  // namespace

double decode_mma_bytes(const AttentionProblem& problem, const ForwardMmaConfig& config, std::int64_t units) {
  const double dims = static_cast<double>(problem.qk_dim + (config.wide() ? 0 : problem.v_dim));
  return static_cast<double>(units * config.kv_block * problem.kv_heads) * dims * config.kv_element_bytes();
}

Prediction decode_mma_prediction(const AttentionProblem& problem, const ForwardMmaConfig& config,
                                 const DecodeKeys& keys, int multiprocessors, const DecodeMemoryTimes& times) {
  const double bytes = decode_mma_bytes(problem, config, keys.units - keys.again);
  const double tiles_of_kv_head =
      static_cast<double>(decode_mma_tiles(problem, config)) / static_cast<double>(problem.kv_heads);
  const double rate = problem.page_rows > 0 ? times.paged_per_second : times.bytes_per_second;
  const double seconds = config.takes_turns() ? turns_seconds(problem, config, keys, multiprocessors, bytes / rate)
                         : config.wide()      ? wide_seconds(problem, config, keys, multiprocessors, bytes / rate)
                         : config.shares_elsewhere() ? two_kernels_seconds(problem, config, keys, multiprocessors, rate)
                         : config.by_warpgroups()
                             ? own_rings_seconds(problem, config, keys, multiprocessors, bytes / rate)
                             : mma_sync_seconds(problem, config, keys, tiles_of_kv_head, bytes, rate);
  return {.seconds = times.launch + seconds,
          .flops = decode_mma_bytes(problem, config, keys.units) * tiles_of_kv_head * config.rows(),
          .bytes = bytes};
}

}  // namespace heddle::plan
