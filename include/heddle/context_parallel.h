// Attention over a sequence that several ranks hold (context parallelism), with any mask and mod, on CPUs. Queries stay
// where they are. A rank receives the rows of keys and values that its queries' blocks list, computes its own rows of o
// over all of their keys, and after a backward sends the gradients of received rows back, in f32 (f64 for f64). So no
// partial results are merged.
//
//   partition.h ── queries, keys of each rank ──► ContextAttention ── Communicator ──► o, lse, dq, dk, dv of own rows
//
// heddle.torch.context_parallel has the same for GPUs over torch.distributed (docs/guide/context_parallel.md).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "heddle/attention.h"
#include "heddle/backward.h"
#include "heddle/partition.h"

namespace heddle {

/// How ranks talk: two functions, over MPI, sockets or threads. Both are collective: all ranks call them in one order,
/// and they return when this rank's part is done. What they throw passes through.
class Communicator {
 public:
  virtual ~Communicator() = default;
  /// This rank, from 0, and how many there are.
  virtual std::int64_t rank() const = 0;
  virtual std::int64_t size() const = 0;
  /// Gives each rank r send_bytes[r] bytes of `send`, where they stand one rank's after the other's, and writes what
  /// comes into `receive` likewise. Counts have an entry a rank, and both sides of a pair name the same; any may be 0,
  /// and this rank's own are.
  virtual void exchange(const void* send, std::span<const std::int64_t> send_bytes, void* receive,
                        std::span<const std::int64_t> receive_bytes) = 0;
  /// Whether all ranks give the same number.
  virtual bool agree(std::uint64_t number) = 0;
};

/// One mask's attention over all ranks of a communicator, which must outlive it. Making one, forward() and backward()
/// are collective.
///
/// An error on one rank is an error on all, before anything is sent: that rank's own there, and invalid_argument on the
/// others; so is a call in which ranks differ in shapes, dtypes, mods or gradients. The content of captures and params
/// is not compared. A call plans as attention() does, and its plan is kept.
class ContextAttention {
 public:
  /// `partition`: of as many ranks as the communicator has, the same on each. `mask`: over the whole sequence, as the
  /// partition was made for; not of lists. Its content is copied.
  ///
  /// `options`: mods in the indices of the whole sequence, h and b as ever; values of all that they and the mask read,
  /// whole and the same on all ranks; scale, sinks, normalizer, threads and clamp_reads. Views must stay alive. Refused
  /// by name: what says how sequences lie (lengths, starts, pages, prefixes), q_rest and k_rest, mask_mod and
  /// block_mask, which `mask` is, and other backends than the CPU's. Two captures are added, context_queries and
  /// context_keys. Refused is, too, a sequence of fewer queries or keys than there are ranks.
  ContextAttention(const MadePartition& partition, const BlockMask& mask, const AttentionOptions& options,
                   Communicator& communicator);

  /// q, o, lse, max_scores and lse_rest have this rank's rows of the partition's queries, k and v those of its keys;
  /// else all is as attention_into() has it. o and lse are whole.
  void forward(const AttentionTensors& own) const;
  /// As attention_backward_into(). dk and dv have the terms of all ranks, added in f32 (f64 for f64), the own one
  /// first, then in the order of the ranks. d_sinks, d_captures and d_params are this rank's terms: add them over the
  /// ranks.
  void backward(const BackwardTensors& own) const;

  /// The rows that each rank receives.
  const ExchangePlan& exchange_plan() const { return exchange_; }

 private:
  void check(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v) const;

  Communicator& communicator_;
  ExchangePlan exchange_;
  std::vector<std::int64_t> queries_, keys_;  // positions of own queries; of own keys, then of received ones
  std::vector<std::int64_t> sent_;            // own rows of keys, receiver by receiver
  std::int64_t own_keys_ = 0;
  std::uint64_t word_ = 0;  // of the partition and the exchange
  AttentionOptions options_;
  Tensor query_positions_, key_positions_;
};

}  // namespace heddle
