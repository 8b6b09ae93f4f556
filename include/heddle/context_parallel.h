// Attention over a sequence that is spread over several ranks (context parallelism), with any mask and mod, on CPUs and
// GPUs. Queries stay on their rank. A rank receives the rows of keys and values that the blocks of its queries list,
// and computes its own rows of o over all their keys, so no partial results are merged. After a backward it sends the
// gradients of received rows back, in f32 (f64 for f64). With several hosts, a row is sent once to each host that reads
// it, unless one step is predicted to be faster because few bytes cross.
//
//   partition.h ── queries, keys of each rank ──► ContextAttention ── Communicator ──► o, lse, dq, dk, dv of own rows
//
// nccl_communicator.h has a Communicator for NVIDIA's GPUs. heddle.torch.context_parallel has the same over
// torch.distributed (docs/guide/context_parallel.md).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "heddle/attention.h"
#include "heddle/backward.h"
#include "heddle/partition.h"

namespace heddle {

/// Communication between ranks: two functions, over MPI, sockets, threads or NCCL. Both are collective: all ranks call
/// them in the same order, one at a time. Their exceptions are passed on. On the CPU a call in several groups of heads
/// calls exchange() from a thread of its own; else only the thread calls them that calls a ContextAttention.
class Communicator {
 public:
  virtual ~Communicator() = default;
  /// This rank, from 0, and how many there are.
  virtual std::int64_t rank() const = 0;
  virtual std::int64_t size() const = 0;
  /// The device whose memory exchange() takes on this rank: that of all tensors of a ContextAttention.
  virtual Device device() const { return {}; }
  /// Sends each rank r send_bytes[r] bytes of `send`, which holds the bytes for rank 0 first, then those for rank 1,
  /// and so on. Writes the received bytes to `receive` in the same order. Counts have an entry for each rank, including
  /// this one. Both sides of a pair give the same count; any may be 0. On the CPU it returns when this rank's part is
  /// done. On a GPU it runs on the stream (null: the default one), behind the work that is enqueued there.
  virtual void exchange(const void* send, std::span<const std::int64_t> send_bytes, void* receive,
                        std::span<const std::int64_t> receive_bytes, void* stream) = 0;
  /// Whether all ranks give the same number. It waits for all ranks.
  virtual bool agree(std::uint64_t number) = 0;
};

/// Which calls check that all ranks pass the same arguments. calls: each one. An error on one rank is then an error on
/// all. first: the first forward and the first backward of a ContextAttention. An error of one rank alone in a later
/// call leaves the others in their exchange, so end that rank or its communicator. automatic: calls on CPUs; first on
/// GPUs, where comparing waits for the device.
enum class ContextChecks : std::uint8_t { automatic, calls, first };

/// In how many groups heads are exchanged on GPUs, each beside the attention of those before: the divisor of kv_heads
/// with the least predicted time of a forward. More groups hide more of the exchange; but each call of attention ends
/// with SMs that have no tile left. The rates are those of H100s on NVLink.
/// `exchanged_bytes`: the most that a rank receives, of all heads. `tiles`: the most that it has of 128 queries of a
/// head. `flop`: of its attention, likewise the most. `own_share`: the share of that which reads the rank's own keys,
/// if they have an attention of their own, beside the first exchange; else 0. Throws invalid_argument for numbers below
/// 0, no heads, and a share above 1.
std::int64_t default_head_groups(std::int64_t kv_heads, std::int64_t exchanged_bytes, std::int64_t tiles, double flop,
                                 double own_share = 0);

/// Gradients that a backward adds to what their tensors hold, where it writes the others.
struct AddedGradients {
  bool q = false, k = false, v = false;
};

/// One mask's attention over all ranks of a communicator, which must outlive it. Making one, forward() and backward()
/// are collective. Calls come one at a time, on a GPU on one stream: the memory of received rows and of gradients is
/// kept between them, which is rows * B * Hkv * (D + Dv) elements of k's type, and after a backward of f32 (f64) too;
/// in several groups of heads the rows of at most three groups, and the gradients of two.
///
/// An error on one rank is an error on all, before anything is sent; the other ranks throw invalid_argument. A call in
/// which ranks differ in shapes, dtypes, mods or gradients is an error, too (`checks`). The content of captures and
/// params is not compared. A call plans as attention() does, and its plan is kept. On a GPU forward() and backward()
/// enqueue; the first ones, and those whose tensors are larger than before, also wait and compile.
class ContextAttention {
 public:
  /// `partition`: has the communicator's number of ranks, and is equal on each. `mask`: over the whole sequence, one
  /// that the partition was made for; not of lists. Its content is copied.
  ///
  /// `options`: mods in the indices of the whole sequence, h and b as ever; values of all that they and the mask read,
  /// whole and the same on all ranks, on the communicator's device; scale, sinks, normalizer, threads, clamp_reads, and
  /// the stream of all calls. Views must stay alive. Refused by name: options of sequences (lengths, starts, pages,
  /// prefixes), q_rest and k_rest, mask_mod and block_mask (`mask` stands for both), and backends of another device.
  /// Two captures may be added, context_queries and context_keys, and a param, context_first_head. A sequence with
  /// fewer queries or keys than ranks is refused, too.
  ContextAttention(const MadePartition& partition, const BlockMask& mask, const AttentionOptions& options,
                   Communicator& communicator, ContextChecks checks = ContextChecks::automatic);
  ~ContextAttention();
  ContextAttention(ContextAttention&&) noexcept;

  /// q, o, lse, max_scores and lse_rest have this rank's rows of the partition's queries, k and v those of its keys, on
  /// the communicator's device; else all is as attention_into() has it. o and lse are whole.
  void forward(const AttentionTensors& own) const;
  /// Like attention_backward_into(). dk and dv have the terms of all ranks, added in f32 (f64 for f64), the own one
  /// first, then in the order of the ranks (over several hosts: first within each host). d_sinks, d_captures and
  /// d_params are this rank's terms: add them over the ranks.
  ///
  /// `added`: those of dq, dk and dv to which the gradient is added. They must be there and hold numbers, each element
  /// in memory of its own. The terms of a gradient are summed first, as above, in f32 (f64 for f64 inputs); then the
  /// sum is added to the number in the tensor in f32 (f64 if either is f64), and stored in the tensor's dtype. So each
  /// call rounds: sums of many calls belong in f32. Each rank chooses for itself. dq then takes memory of B * (Hq /
  /// groups of heads) * rows * D elements of f32 (f64) that is kept between calls; dk and dv take none. d_sinks,
  /// d_captures and d_params are written, always. A call that throws once it has begun to send may have added some rows
  /// and not others: begin again from tensors whose content is known.
  void backward(const BackwardTensors& own, const AddedGradients& added = {}) const;

  /// In how many groups of heads later calls are exchanged and computed; a divisor of Hkv, the same on all ranks. While
  /// one group is computed, the keys of the next two are on their way, and gradients of the one before leave: on a GPU
  /// on a second stream, on the CPU in a thread (Communicator). 0, the default: default_head_groups() on a GPU, 1 on
  /// the CPU.
  ///
  /// On the CPU results have the same bits for any number of groups. On a GPU kernels are chosen for the heads of a
  /// group, so bits may differ between numbers of groups. A backward with d_captures or d_params, whose sums go over
  /// all heads, takes one group. Throws invalid_argument for numbers below 0; a call does for other than divisors.
  void set_head_groups(std::int64_t groups);

  /// The rows that each rank receives: in the latest call, before the first one in two steps over several hosts, if
  /// calls may take them (HostSteps).
  const ExchangePlan& exchange_plan() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace heddle
