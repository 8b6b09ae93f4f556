// Fused attention, o = softmax(mod(scale * q k^T)) v, with your own score, mask and weight functions.
//
//   q [B, Hq, Sq, Dqk]   k [B, Hkv, Skv, Dqk]   v [B, Hkv, Skv, Dv]   o [B, Hq, Sq, Dv]   lse [B, Hq, Sq] f32 (f64 for
//   f64 inputs)
//
//   s = scale * q.k      t = score_mod(s, b, h, q_idx, kv_idx), -inf where mask_mod is false      m = max(max t, sink)
//   p = exp(t - m)       l = sum p (+ exp(sink - m))      o = sum(p w v) / l, w = weight_mod      lse = m + ln l
//
// max_scores [B, Hq, Sq], lse's type: max t, without the sink. -inf if no key attends, NaN if a t is NaN or +inf.
//
// lse_rest [B, Hq, Sq], lse's type: the rounding error of lse, (m - lse) + ln l. It is 0 if no key attends. The
// backward takes it: lse alone loses digits of ln l if |m| is large, and all of them near 1e9.
//
// The last stride is 1, the others are free ([B, S, H, D] is permute(x, {0, 2, 1, 3})). Strides of an axis of extent 1,
// and of a tensor without elements, do not matter. Hq is a multiple of Hkv. q, k, v with batch 1 are read by every
// batch entry. A row without an attending key gets o = 0 and lse = -inf; with sinks its lse is sink[h]. Batch, heads,
// Sq and Skv may be 0, Dqk and Dv not; each extent and each q_idx fits i32.
//
// q, k, v share one of f64, f32, f16, bf16, e4m3, e5m2; or k and v are each e4m3 or e5m2 and q is f16, bf16, e4m3 or
// e5m2. o has any floating dtype. Reals, lse and sinks are f32, or f64 when q, k, v are f64.
//
// Keys and values that a row does not attend to (masked, padding, another sequence) never affect that row, whatever
// they hold. On the CPU this holds without exception. On a GPU there is one: if a value (v) is not finite, is masked
// for one row and is attended by another row of the same tile of queries, the first row may become NaN.
//
// On the CPU o is right if it is in range itself, also beyond 3.4e38 if o is f64. Two limits: sum |p w v| is below
// 2^224 (f64 inputs: 2^1536); with normalizer none each t w is in the range of the reals. On a GPU sum(p w v) is
// accumulated in f32 before it is divided by l: if it passes 3.4e38, as 10 equally weighted values of 1e38 do, o is
// infinite or NaN.
//
// backward.h has the gradients.
#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "heddle/block_mask.h"
#include "heddle/expr.h"
#include "heddle/tensor.h"

namespace heddle {
struct BackwardTensors;  // backward.h
namespace engine {
class PlanCache;
}

/// softmax: as above. An unmasked t of +inf or NaN makes its row NaN.
/// none: o = sum(t w v).
/// sigmoid: o = sum(w v / (1 + exp(-t))).
///
/// With none and sigmoid, masked elements and t = -inf contribute 0; every other t follows the formula. Neither has
/// sinks, lse, lse_rest or max_scores.
enum class Normalizer : std::uint8_t { softmax, none, sigmoid };

/// automatic: the backend of the device that holds q, k, v, o and lse.
enum class BackendChoice : std::uint8_t { automatic, cpu, reference, cuda, amd };
std::string_view name(BackendChoice backend);

/// How a plan chooses among the kernels that can compute it.
/// automatic: the value of HEDDLE_TUNING, else recorded.
/// off: the planner's model chooses.
/// recorded: the fastest kernel in this machine's record of a problem of the same class (in HEDDLE_CACHE_DIR); without
/// a record, as off.
/// measure: as recorded; without a record, planning measures the kernels, which takes up to some seconds, and keeps
/// their times.
/// again: measures even if there is a record.
///
/// Problems are of one class if they need the same kernels (dtypes, head dims, group, mods, values of the mask's
/// params, kinds of lengths) and their extents have the same power of two above them. Measuring allocates as much as
/// all tensors of the problem, frees it, and reads no memory of the caller's that planning does not read. If that
/// fails, the plan is as with off, and explain() says why. Results of another kernel may differ in their last bits.
enum class Tuning : std::uint8_t { automatic, off, recorded, measure, again };
std::string_view name(Tuning tuning);

/// All options of an attention. Views are not owned and must stay alive while the call or the plan uses them. Lengths,
/// cu_seqlens, q_start, kv_start, page_starts, prefix_group and prefix_len are all on the CPU, or all where q is;
/// sinks, descales and captures where q, k, v and o are.
struct AttentionOptions {
  Expr score_mod{};     // f32; empty: s
  Expr mask_mod{};      // boolean; empty: everything attends
  Expr weight_mod{};    // f32; empty: 1
  Bindings bindings{};  // values of the params and captures that the mods read
  /// For reads (not `at`) with an index that is not proven inside the tensor. False: the call is refused. True: the
  /// read gives the element at the nearest index inside, axis by axis; an empty tensor reads as 0, or False.
  bool clamp_reads = false;

  std::optional<double> scale{};           // default 1 / sqrt(Dqk)
  std::optional<ConstTensorView> sinks{};  // f32 [Hq] (f64 for f64 inputs)
  Normalizer normalizer = Normalizer::softmax;

  /// Lengths of the sequences: i32 or i64 [B], at most the padded sizes. Rows of q past the end get o = 0, lse = -inf,
  /// with sinks too.
  std::optional<ConstTensorView> q_lengths{}, kv_lengths{};
  /// Packed batches, both or none: i32 or i64 [N+1], the first row of each sequence, then the end of the last one. B is
  /// then 1: q is [1, Hq, total_q, Dqk], k and v are [1, Hkv, total_kv, D], lse is [1, Hq, total_q]. kv_lengths [N] may
  /// then give the number of valid keys of each sequence; the rows after them are not read. Rows after the last
  /// sequence belong to no sequence: o = 0, lse = -inf, and gradients of 0. (With lengths from the host a GPU refuses
  /// such rows.)
  std::optional<ConstTensorView> cu_seqlens_q{}, cu_seqlens_kv{};
  /// Paged keys and values: i32 [B, max_pages] (packed queries: [N, max_pages]), on q's device. k and v are then
  /// [pages, Hkv, page_size, D]: page page_table[b, n] holds keys n * page_size to (n + 1) * page_size of sequence b,
  /// and Skv is max_pages * page_size.
  ///
  /// kv_lengths gives the number of keys of each sequence. Table entries and rows of pages past that length are
  /// ignored. For packed queries give cu_seqlens_q and kv_lengths, not cu_seqlens_kv. Each run reads the current
  /// content of the table. If a needed entry is not a valid page number, the CPU throws, and a GPU takes the nearest
  /// page.
  std::optional<ConstTensorView> page_table{};
  /// Pages in a list instead of a table: i32 [B + 1] (packed: [N + 1]), on the CPU or where q is, as the lengths are.
  /// page_table is then i32 [entries], and entries page_starts[b] to page_starts[b + 1] are the pages of sequence b, in
  /// the order of its keys. Other entries are ignored. Without kv_lengths a sequence has all rows of its pages.
  ///
  /// The CPU refuses starts that decrease or lie outside the list, and lengths larger than the rows of a sequence's
  /// pages. A GPU clamps starts to the list, and lengths to the rows of the sequence's pages. There max_kv_len bounds a
  /// sequence's length; without it, the plan is made for a sequence that has all entries.
  std::optional<ConstTensorView> page_starts{};
  /// Sequences with a common prefix, both or none: i32 or i64 [B] (packed: [N]), on the CPU or where q is, as the
  /// lengths are. Two sequences with the same prefix_group (0 or more) have equal keys and values up to the smaller of
  /// their prefix_len; -1: the sequence is in no group. The caller promises this, and no run compares keys: if they
  /// differ, a result may come from either sequence's keys. prefix_len is clamped to the range 0 to kv_len.
  ///
  /// A GPU's kernel for few queries reads such keys once for several neighbouring sequences (explain() says how many),
  /// in one launch; other kernels ignore the groups. If the arrays are on the GPU, each run reads their current
  /// content. find_prefixes() (kv_cache.h) finds groups in a table of pages.
  std::optional<ConstTensorView> prefix_group{}, prefix_len{};
  /// i32 or i64 [B] (packed: [N]), added to q_idx. May be negative: kv_len - q_len makes causal() lower-right.
  std::optional<ConstTensorView> q_start{};
  /// i32 or i64 [B] (packed: [N]), added to kv_idx: the keys of a shard then have their positions in the whole
  /// sequence. merge_states() merges the shards' results. May be negative. kv_token does not change.
  std::optional<ConstTensorView> kv_start{};
  /// Upper bounds of q_len and kv_len. A bound above the rows of the tensors counts as that number of rows. Default:
  /// the padded sizes. With cu_seqlens on a GPU both are required; with cu_seqlens_q and pages there, max_q_len is.
  ///
  /// If lengths, cu_seqlens, q_start and kv_start are on a GPU, only runs read them, on their stream. A run after a
  /// change of their content uses the new values, also in a CUDA graph. The plan is made for the bounds. Values that
  /// the host cannot check are clamped instead of refused:
  /// - lengths: to 0 and the bounds;
  /// - cumulative lengths: to the totals, to their predecessors (the first counts as 0) and to the bounds;
  /// - q_start: so that each q_idx fits i32;
  /// - kv_start: its low 32 bits count, and kv_idx wraps.
  /// Rows of q that belong to no sequence get o = 0, lse = -inf, also after the last sequence of a packed batch.
  ///
  /// A mask may read a value that only the device knows: q_len and kv_len; q_idx with q_start on the GPU, kv_idx with
  /// kv_start on the GPU; in packed batches q_token and kv_token. It is then applied to every block of keys before
  /// kv_len, and explain() says so. A value that is not finite may then reach rows for which it is masked.
  std::optional<std::int64_t> max_q_len{}, max_kv_len{};

  /// Factors of stored fp8 values: f32, q's [B, Hq], k's and v's [B, Hkv] (packed: B is N); an extent may be 1. A
  /// factor for a tensor of another dtype is an error.
  std::optional<ConstTensorView> q_descale{}, k_descale{}, v_descale{};

  /// Queries or keys split into two tensors: q and k have the first columns of every row, q_rest [B, Hq, Sq, R] and
  /// k_rest [B, Hkv, Skv, R] (with a page_table [pages, Hkv, page_size, R]) the last ones, with q's and k's dtype and
  /// other extents. Dqk is the sum of both head dimensions. You may give one without the other, and split k at another
  /// column than q. Multi-head latent attention then needs no copy that joins its parts: v is k. A backward refuses
  /// both.
  std::optional<ConstTensorView> q_rest{}, k_rest{};

  /// A block mask made before. Its mask must be mask_mod, unless mask_mod is empty. Its shape (heads, sequences) must
  /// be this problem's; one head is enough if its mask does not read h. If it was made by from_lists, keys of unlisted
  /// blocks do not attend. Default: it is built from mask_mod.
  std::shared_ptr<const BlockMask> block_mask{};
  /// attention() and cached_plan() compare a mask's captures on a GPU by address and by this number. Change the number
  /// when their content changes.
  std::uint64_t mask_version = 0;

  /// A promise that lets a run read early: when the previous kernel on its stream began, everything that the run reads
  /// was complete in memory, except q and the last `fresh_tokens` keys and values of each sequence. "Everything"
  /// includes lengths, starts, the page table, and the captures of a mask. At least 1. A GPU that can begin the run
  /// before that kernel has ended then reads the older keys and values at once (explain() shows it); elsewhere nothing
  /// changes. Not given: no promise.
  std::optional<std::int64_t> fresh_tokens{};

  /// The bits of a row of o and lse depend only on the row's own sequence: not on the other sequences, their lengths,
  /// number or order, or on the bounds of lengths. The kernel and its split of the keys then follow from the heads,
  /// head dimensions, dtypes, mods, page size and the chip; no times are predicted or measured. Lengths may be on the
  /// host or on the device, in graphs too. On a GPU, bits are equal only between calls of one class: up to 64 queries
  /// in the longest sequence, or more (docs/guide/sequences.md). A backward refuses it.
  bool batch_invariant = false;

  /// Permits tf32 for products of f32 q, k and v, and of dO in a backward: the operands, including the weights, are
  /// rounded to 11 bits; sums stay f32. An NVIDIA GPU uses tf32 if a call has more than a few queries (explain() shows
  /// it). Other backends multiply exactly. Other types do not change.
  bool allow_tf32 = false;

  /// Backward: the same bits in each run, on one machine. The CPU always gives the same bits. On a GPU this may cost
  /// time, most for gradients of captures and params: explain() says how each is summed.
  bool deterministic = false;

  /// Backward: k and v are a part of the keys; o, lse, lse_rest and d_lse belong to all keys. dk and dv are then
  /// complete. dq, and gradients of captures and params, are this part's terms: add them over the parts. d_sinks does
  /// not depend on the parts, and is refused: request it once, in a separate call without partial_keys.
  bool partial_keys = false;

  BackendChoice backend = BackendChoice::automatic;
  Tuning tuning = Tuning::automatic;
  int threads = 0;  // CPU threads, up to 65536; 0: all cores. The result does not depend on it.

  /// GPU: the stream (a CUstream or cudaStream_t, or a hipStream_t) on which attention() and attention_into() compute.
  /// Wait for it before you read o. A call that makes a plan waits for the GPU. Null: the legacy default stream.
  void* stream = nullptr;

  /// Called during a run on the CPU with the fraction done, by one thread at a time. It may call heddle. Empty: never.
  std::function<void(double)> progress{};
};

struct AttentionResult {
  Tensor o;    // dtype of q (bf16 for fp8)
  Tensor lse;  // empty unless asked for
};

/// The tensors of one run of a plan.
struct AttentionTensors {
  ConstTensorView q, k, v;
  TensorView o;
  std::optional<TensorView> lse{};
  std::optional<TensorView> max_scores{};
  std::optional<TensorView> lse_rest{};  // only with lse
};

/// One call: plans, allocates, runs. Throws Error before anything is written.
///
/// The plan is cached, and serves later calls with the same problem: shapes, strides, dtypes, devices, on a GPU the
/// alignment of addresses up to 16 bytes, mods, scale, the content of lengths and starts on the CPU, and the mask's
/// captures and params. Params of the mask and its captures on the CPU are compared by content. Captures of the mask on
/// a GPU are compared by their addresses: if you change one in place, call clear_plan_cache() first, or keep an
/// AttentionPlan and update() it. A call that finds its plan plans nothing, waits for nothing and allocates no
/// workspace. On a GPU, calls on one stream share a workspace that stays allocated, so wait for the calls on a stream
/// before you destroy it. A stream that is being captured is refused, because the plan must outlive the graph.
AttentionResult attention(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                          const AttentionOptions& options = {}, bool with_lse = false);
/// Writes into the caller's tensors. o: any floating dtype, unit last stride, not overlapping an input. lse,
/// max_scores and lse_rest: may be absent.
void attention_into(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v, const TensorView& o,
                    const std::optional<TensorView>& lse, const AttentionOptions& options = {});
void attention_into(const AttentionTensors& tensors, const AttentionOptions& options = {});

/// Counts of the plan cache, which the one-call functions and cached_plan() use, since the process began.
struct PlanCacheCounts {
  std::int64_t hits = 0, misses = 0, evictions = 0;
  std::int64_t plans = 0, bytes = 0;  // bytes: of the kept plans' block masks, and of their lists on GPUs
};
PlanCacheCounts plan_cache_counts();
/// Drops all plans and frees the kept workspaces, except those in use. On a GPU it waits until the device is idle.
void clear_plan_cache();

/// Arguments of one run of a plan.
struct RunOptions {
  /// workspace_bytes() of memory on the plan's device, 64-byte aligned, with any content. Only one run at a time may
  /// use it; a CUDA graph that captured a run counts as a run. If it is null, the CPU allocates it for this run; on a
  /// GPU null is an error unless workspace_bytes() is 0.
  void* workspace = nullptr;
  /// Null: the planned ones. These are errors, which name the param or capture:
  /// - a param or capture of the mask whose content differs from the planned one;
  /// - on a GPU, a capture that the plan streams, if its strides or its address do not allow that;
  /// - on a GPU, a capture that the plan copies, if its copy takes more room than the planned one's.
  const Bindings* bindings = nullptr;
  void* stream = nullptr;  // CUDA: as AttentionOptions::stream
  /// Null: the planned ones. Else this run takes from it sinks, descales, page_table, lengths on a GPU and progress,
  /// and bindings if `bindings` is null. Each must be present or absent as planned, with the planned shape, strides,
  /// dtype and device. Its other members are ignored.
  const AttentionOptions* options = nullptr;
};

/// An attention, or its backward, planned once and run many times. Planning validates, analyses the mods, builds the
/// block mask and picks the kernel; run() only computes. Copies share the plan. All functions may be called from
/// several threads; one plan may run on several threads or streams at once, if each run has its own workspace. On a GPU
/// the plan must outlive the work that its runs enqueued, and the graphs that captured them: destroying or updating it
/// frees lists that they read.
///
/// These wait on a GPU:
/// - Making a plan and update(). They allocate on the plan's device, copy to it and from it, and find the rows of a
///   mask that reads its memory (on the device, or on the host from copies: explain() says which). All of this goes
///   through the legacy stream, and they wait for it. So they wait for the work of all streams of the device, except
///   streams made non-blocking: if a mask reads results of such a stream, wait for that stream first.
/// - Destroying the last copy of a plan, and update(). They free device memory and unload kernels; the driver waits for
///   this until the device is idle.
/// - run(), workspace_bytes(), block_mask(), backend() and explain() never wait.
class AttentionPlan {
 public:
  /// Plans for tensors of these shapes, strides and dtypes; their memory is not read. On a GPU the plan also depends on
  /// how far their addresses are aligned, up to 16 bytes (null counts as 16): a run's may be better aligned, not worse.
  /// Planning reads lengths, cu_seqlens, q_start and kv_start on the CPU, and the captures of the mask; each run reads
  /// score params, descales, sinks, score captures, and lengths on a GPU. On a GPU it waits, as above, and compiles the
  /// kernel unless it is in memory or on disk.
  AttentionPlan(const AttentionTensors& tensors, const AttentionOptions& options);
  /// Plans the backward, for the gradients that `tensors` has. All rules for plans hold for it. (A template, so that
  /// tensors in braces are AttentionTensors.)
  template <std::same_as<BackwardTensors> Tensors>
  AttentionPlan(const Tensors& tensors, const AttentionOptions& options);

  /// Bytes of workspace that one run needs. On a GPU it is the sum of these:
  /// - 64 bytes, if there are more tiles than SMs. If lengths are on the device, instead
  ///   128 + 32 * (sequences + 1) + 48 * tiles bytes.
  /// - Copies of q, k and v that TMA does not take in place: strides or addresses that 16 bytes do not divide, or
  ///   negative strides. Rows of a copy are filled up to a multiple of 16 bytes.
  /// - If it is faster: copies of such captures, and of k and v from their pages, up to HEDDLE_COPY_BYTES each.
  /// explain() names the copies.
  std::int64_t workspace_bytes() const;

  /// Runs. Shapes, strides, dtypes and device must be the planned ones. On a GPU it enqueues on the stream and returns:
  /// it allocates, compiles and waits for nothing, and copies nothing from or to the host, so a CUDA graph may capture
  /// it. On the CPU it returns when o and lse are written.
  ///
  /// A run does not compare the content of a mask's captures on a GPU with what the mask was built from, and a kernel
  /// may have stored the mask's answers. After a change of such a capture, call update().
  void run(const AttentionTensors& tensors, const RunOptions& options = {}) const;
  /// Runs a backward. A forward plan is an error. The same gradients must be present as planned.
  template <std::same_as<BackwardTensors> Tensors>
  void run(const Tensors& tensors, const RunOptions& options = {}) const;

  /// Rebuilds the block mask for new values of the mask's params and captures, which are then the planned ones. Names
  /// that are not given keep their values; a name that no mod reads is an error. An update during a run is an error,
  /// and so is a run during an update; on a GPU do not call it while a run is enqueued. Graphs must be captured again.
  /// On a GPU it waits, as above.
  void update(const Bindings& bindings);

  const BlockMask* block_mask() const;  // null when everything attends
  BackendChoice backend() const;
  /// Every decision, stage by stage: problem, simplified mods, mask summary, plan, rejected alternatives with their
  /// reasons, predicted bytes, flops and time, kernel.
  std::string explain() const;
  /// explain() as a JSON object with those stages as keys.
  std::string explain_json() const;

 private:
  friend class engine::PlanCache;
  struct State;
  std::shared_ptr<State> state_;
};

/// The plan that attention() would run: a cached one, or a new one that is then cached. Other calls share it, so its
/// update() is an error. Pass each run a workspace, and your own bindings and views in RunOptions::options: those of
/// the plan may belong to another caller, and be gone.
AttentionPlan cached_plan(const AttentionTensors& tensors, const AttentionOptions& options);

/// AttentionPlan's explain() and explain_json().
struct Explanation {
  std::string text, json;
  std::shared_ptr<const BlockMask> block_mask{};  // the blocks that the plan walks; null: everything attends
};
/// explain() for a GPU that this machine need not have ("h200"), without compiling a kernel. The tensors may be on any
/// device. Throws as planning on that GPU would.
Explanation explain_on(std::string_view gpu, const AttentionTensors& tensors, const AttentionOptions& options);

/// Merges partial results over disjoint sets of keys: o = sum(o_n exp(lse_n - lse)), lse = ln sum exp(lse_n). At least
/// one part; o_n [B, Hq, Sq, Dv] of any floating dtypes, lse_n [B, Hq, Sq] f32 or f64, all on one device. Writes `o`
/// and, if it is given, `lse`; either may be the memory of an input.
///
/// On a GPU: up to 64 parts and 2^31 - 1 rows. It enqueues on the stream (as AttentionOptions::stream) and returns. The
/// first call of a process with these dtypes on a device also compiles and loads the kernel, and must not be captured
/// in a graph.
void merge_states(std::span<const ConstTensorView> o_parts, std::span<const ConstTensorView> lse_parts,
                  const TensorView& o, const std::optional<TensorView>& lse = {}, void* stream = nullptr);

}  // namespace heddle
