// Heddle from C, and from every language that calls C: fused attention and its backward, with score, mask and weight
// functions as text. Plain C11.
//
//   o = softmax(score_mod(scale * q k^T)) v        mask_mod says which keys each query attends to
//
//   heddle_attention_options options = {.struct_size = sizeof options, .mask_mod = "q_idx >= kv_idx"};
//   heddle_attention_tensors tensors = {sizeof tensors, &q, &k, &v, &o, NULL, NULL};
//   if (heddle_attention_into(&tensors, &options) != HEDDLE_OK) puts(heddle_last_error());
//
// attention.h and backward.h describe the arguments, their shapes and dtypes; expr.h describes the language of mods.
//
// Structs that may grow begin with struct_size: set it to their sizeof and everything you do not use to zero, which is
// the default. Programs that were compiled against an older version keep working; fields that a library does not know
// yet are accepted while they are zero. The other structs (heddle_tensor, heddle_param, ...) never change.
//
// All functions may be called from several threads. Returned strings belong to the library and stay valid until the
// same thread calls the next function. No C++ exception leaves a function.
#ifndef HEDDLE_C_H_
#define HEDDLE_C_H_

#include <stdint.h>

// The version of this interface and of the text form of mods. It grows when something is added.
//
// 2: page_table, max_q_len and max_kv_len, lengths on a GPU, heddle_merge_states_on.
// 3: kv_start, of options and of heddle_sequence; heddle_block_mask_options.sequence_size. 4: clamp_reads.
// 5: backward: heddle_backward_tensors and the functions that take it; heddle_attention_options.deterministic.
// 6: heddle_attention_tensors.max_scores. 7: heddle_attention_options.tuning.
// 8: lse_rest, of heddle_attention_tensors and of heddle_backward_tensors. 9: heddle_append_kv.
// 10: heddle_attention_options.batch_invariant and fresh_tokens; page_starts, of it and of heddle_append.
// 11: heddle_attention_options.prefix_group and prefix_len. 12: heddle_attention_options.allow_tf32.
// 13: q_rest and k_rest, of heddle_attention_options and of heddle_run_options.
// 14: heddle_attention_options.partial_keys, heddle_set_event_listener, heddle_counts_json.
// 15: ranks: heddle_partition, heddle_communicator, heddle_context, heddle_nccl and the functions that take them.
// 16: heddle_use_archive; "from_archive" of heddle_counts_json.
// 17: heddle_context_set_head_groups, heddle_partition_options.host_steps. 18: heddle_context_backward_adding.
#define HEDDLE_C_VERSION 19

#if defined(__GNUC__)
#define HEDDLE_API __attribute__((visibility("default")))
#else
#define HEDDLE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/// Result of a function: HEDDLE_OK, or why it did nothing. heddle_last_error() returns the message.
typedef int32_t heddle_status;
enum {
  HEDDLE_OK = 0,
  HEDDLE_ERROR_INVALID_ARGUMENT = 1,  // the caller's arguments are wrong
  HEDDLE_ERROR_UNSUPPORTED = 2,       // well-formed, but this build, machine or backend does not do it
  HEDDLE_ERROR_OUT_OF_MEMORY = 3,     // an allocation failed, or a size overflows
  HEDDLE_ERROR_IO = 4,                // a file cannot be read or written, or its bytes are damaged
  HEDDLE_ERROR_DEVICE = 5,            // the device or its driver failed
  HEDDLE_ERROR_COMPILE = 6,           // a kernel could not be built; the compiler's log is in the sentence
  HEDDLE_ERROR_INTERNAL = 7           // a bug in the library
};

/// Element types, for heddle_tensor.dtype. Attention computes on the first six; captures may be any.
enum {
  HEDDLE_F64 = 0,
  HEDDLE_F32 = 1,
  HEDDLE_F16 = 2,
  HEDDLE_BF16 = 3,
  HEDDLE_E4M3 = 4,
  HEDDLE_E5M2 = 5,
  HEDDLE_I64 = 6,
  HEDDLE_I32 = 7,
  HEDDLE_I16 = 8,
  HEDDLE_I8 = 9,
  HEDDLE_U64 = 10,
  HEDDLE_U32 = 11,
  HEDDLE_U16 = 12,
  HEDDLE_U8 = 13,
  HEDDLE_BOOL = 14
};

/// Where memory is, for heddle_tensor.device_kind.
enum { HEDDLE_DEVICE_CPU = 0, HEDDLE_DEVICE_CUDA = 1, HEDDLE_DEVICE_ROCM = 2 };

enum { HEDDLE_MAX_RANK = 8 };

/// A view of the caller's memory: never owned, never freed. Inputs are only read.
typedef struct heddle_tensor {
  void* data;
  int32_t dtype;                     // HEDDLE_F64 ...
  int32_t device_kind;               // HEDDLE_DEVICE_CPU ...
  int32_t device_index;              // 0 for the CPU
  int32_t rank;                      // 0 to HEDDLE_MAX_RANK
  int64_t shape[HEDDLE_MAX_RANK];    // the first `rank` count
  int64_t strides[HEDDLE_MAX_RANK];  // in elements; zero broadcasts
} heddle_tensor;

/// The type of a param's value, for heddle_param.type.
enum { HEDDLE_PARAM_F32 = 0, HEDDLE_PARAM_I32 = 1, HEDDLE_PARAM_BOOL = 2 };

/// The value of a scalar that mods read by its name.
typedef struct heddle_param {
  const char* name;
  int32_t type;     // HEDDLE_PARAM_F32 ...
  int32_t integer;  // of HEDDLE_PARAM_I32; of HEDDLE_PARAM_BOOL, 0 or 1
  double real;      // of HEDDLE_PARAM_F32
} heddle_param;

/// A tensor that mods read by its name, at computed indices.
typedef struct heddle_capture {
  const char* name;
  const heddle_tensor* tensor;
} heddle_capture;

/// Values of the names in mods. Each name once.
typedef struct heddle_bindings {
  uint64_t struct_size;
  const heddle_param* params;
  int64_t param_count;
  const heddle_capture* captures;
  int64_t capture_count;
} heddle_bindings;

/// Which blocks of the score matrices are empty, full or partial, found once for many plans.
typedef struct heddle_block_mask heddle_block_mask;

enum { HEDDLE_NORMALIZER_SOFTMAX = 0, HEDDLE_NORMALIZER_NONE = 1, HEDDLE_NORMALIZER_SIGMOID = 2 };

/// Automatic: that of the device on which the tensors are.
enum {
  HEDDLE_BACKEND_AUTOMATIC = 0,
  HEDDLE_BACKEND_CPU = 1,
  HEDDLE_BACKEND_REFERENCE = 2,
  HEDDLE_BACKEND_CUDA = 3,
  HEDDLE_BACKEND_AMD = 4
};

/// Automatic: the environment variable HEDDLE_TUNING decides; without it, recorded.
enum {
  HEDDLE_TUNING_AUTOMATIC = 0,
  HEDDLE_TUNING_OFF = 1,
  HEDDLE_TUNING_RECORDED = 2,
  HEDDLE_TUNING_MEASURE = 3,
  HEDDLE_TUNING_AGAIN = 4
};

/// All options of an attention. If all fields except struct_size are zero, it is plain attention: softmax over all
/// keys, scale 1 / sqrt(Dqk). Memory of tensors must live while a call or plan uses it; structs and texts need not.
typedef struct heddle_attention_options {
  uint64_t struct_size;

  const char* score_mod;   // text in UTF-8, f32; NULL: score
  const char* mask_mod;    // boolean; NULL: everything attends
  const char* weight_mod;  // f32; NULL: 1
  const heddle_bindings* bindings;

  const double* scale;         // NULL: 1 / sqrt(Dqk)
  const heddle_tensor* sinks;  // NULL: none. f32 [Hq] (f64 for f64 inputs)

  // NULL: full sequences from position 0. Lengths and q_start i32 or i64 [B], cu_seqlens (both or none) [N + 1]. All on
  // the CPU, or all where q is: then each run reads them (attention.h). kv_lengths beside cu_seqlens: how many keys of
  // each sequence count.
  const heddle_tensor* q_lengths;
  const heddle_tensor* kv_lengths;
  const heddle_tensor* cu_seqlens_q;
  const heddle_tensor* cu_seqlens_kv;
  const heddle_tensor* q_start;

  // NULL: 1. Factors of fp8 inputs, f32, q's [B, Hq], k's and v's [B, Hkv].
  const heddle_tensor* q_descale;
  const heddle_tensor* k_descale;
  const heddle_tensor* v_descale;

  int32_t normalizer;  // HEDDLE_NORMALIZER_SOFTMAX ...
  int32_t backend;     // HEDDLE_BACKEND_AUTOMATIC ...
  int32_t threads;     // of the CPU, up to 65536; 0: all cores. The result does not depend on it.
  int32_t reserved;    // 0

  // CUDA: the stream (a CUstream or cudaStream_t) of heddle_attention_into, which no graph may be capturing. NULL: the
  // legacy default stream. A call that makes a plan waits for the device.
  void* stream;

  // Called during a run on the CPU with the fraction done, by one thread at a time. It may make calls, but not throw.
  void (*progress)(double fraction, void* context);
  void* progress_context;

  // NULL: built from mask_mod. Else its mask must be mask_mod, or mask_mod is NULL; its heads and sequences must be
  // those of this attention. It may be destroyed after the call or heddle_plan_create returns.
  const heddle_block_mask* block_mask;

  // NULL: k and v are [B, Hkv, Skv, D]. Else i32 [B, max_pages] (packed queries: [N, max_pages]), where q is, and k and
  // v are [pages, Hkv, page_size, D]: page page_table[b, n] holds keys n * page_size to (n + 1) * page_size of sequence
  // b. Packed queries then come with cu_seqlens_q and kv_lengths. Since version 2, like later fields.
  const heddle_tensor* page_table;

  // Bounds of q_len and kv_len, which may exceed the padded sizes; 0: those. With cu_seqlens on a GPU both must be
  // given, with cu_seqlens_q and pages there max_q_len.
  int64_t max_q_len;
  int64_t max_kv_len;

  // NULL: 0. i32 or i64 [B], added to kv_idx as q_start is to q_idx, and where the lengths are. Since version 3.
  const heddle_tensor* kv_start;

  // 0: a read whose index is not proven inside its tensor is refused. 1: it gives the nearest element. Since version 4.
  int32_t clamp_reads;
  int32_t reserved_2;  // 0

  // Backward. 1: the same bits in each run, on one machine, or an error that names the gradient that has no such way;
  // on the CPU they always are. Since version 5.
  int32_t deterministic;

  // How the kernel is chosen: by the planner, or by measurements on this machine (attention.h). Since version 7.
  int32_t tuning;  // HEDDLE_TUNING_AUTOMATIC ...

  // 0: no promise. n: when the previous kernel on a run's stream began, everything that the run reads was complete,
  // except q and the last n keys and values of each sequence (attention.h). Since version 10.
  int64_t fresh_tokens;

  // 1: bits of a row of o and lse do not depend on other sequences of the batch. A forward's. Since version 10.
  int32_t batch_invariant;

  // 1: products of f32 tensors may be those of tf32 on a GPU (attention.h). Since version 12; before it had to be 0.
  int32_t allow_tf32;

  // NULL: page_table has a row a sequence. Else i32 [B + 1] (packed: [N + 1]), where the lengths are, and page_table is
  // a list [entries]: entries page_starts[b] to page_starts[b + 1] are the pages of sequence b. Since version 10.
  const heddle_tensor* page_starts;

  // Both or NULL. i32 or i64 [B] (packed: [N]), where the lengths are: the caller promises that two sequences with the
  // same prefix_group (0 or more) have equal keys and values up to the smaller of their prefix_len (attention.h). Since
  // version 11.
  const heddle_tensor* prefix_group;
  const heddle_tensor* prefix_len;

  // NULL: q and k have all columns. Else the last columns of every query [B, Hq, Sq, R], and of every key [B, Hkv, Skv,
  // R] (pages where k is), of q's and k's dtype; Dqk is the sum of both. A backward refuses them. Since version 13.
  const heddle_tensor* q_rest;
  const heddle_tensor* k_rest;

  // Backward. 1: k and v are a part of the keys; o, lse, lse_rest and d_lse belong to all keys; dq and gradients of
  // captures and params are this part's terms (attention.h). Since version 14.
  int32_t partial_keys;
  int32_t reserved_3;  // 0
} heddle_attention_options;

/// The tensors of an attention: q [B, Hq, Sq, Dqk], k [B, Hkv, Skv, Dqk], v [B, Hkv, Skv, Dv], o [B, Hq, Sq, Dv],
/// lse [B, Hq, Sq] or NULL, max_scores and lse_rest likewise. Any strides with a unit last one.
typedef struct heddle_attention_tensors {
  uint64_t struct_size;
  const heddle_tensor* q;
  const heddle_tensor* k;
  const heddle_tensor* v;
  const heddle_tensor* o;
  const heddle_tensor* lse;
  const heddle_tensor* max_scores;  // each row's largest score, as attention.h says; lse's dtype. Since version 6
  const heddle_tensor* lse_rest;    // the rounding error of lse (attention.h); only with lse. Since version 8
} heddle_attention_tensors;

/// Where the gradient of a capture or param goes.
typedef struct heddle_gradient {
  const char* name;  // of the capture or param
  const heddle_tensor* tensor;
} heddle_gradient;

/// The tensors of a backward (backward.h). Since version 5.
typedef struct heddle_backward_tensors {
  uint64_t struct_size;
  const heddle_tensor* q;
  const heddle_tensor* k;
  const heddle_tensor* v;
  const heddle_tensor* o;      // as the forward stored it
  const heddle_tensor* lse;    // as the forward stored it; NULL with normalizers none and sigmoid
  const heddle_tensor* d_o;    // [B, Hq, Sq, Dv], o's dtype or q's
  const heddle_tensor* d_lse;  // [B, Hq, Sq], lse's dtype; NULL: 0. Softmax only

  // Outputs, at least one. Each has the shape of its input (dq that of q), and any floating dtype. dq, dk and dv have a
  // unit last stride; the others any strides.
  const heddle_tensor* dq;
  const heddle_tensor* dk;
  const heddle_tensor* dv;
  const heddle_tensor* d_sinks;
  const heddle_gradient* d_captures;  // of floating captures that score_mod or weight_mod reads, each once
  int64_t d_capture_count;
  const heddle_gradient* d_params;  // of f32 params that they read: tensors of rank 0, each once
  int64_t d_param_count;

  const heddle_tensor* lse_rest;  // as the forward stored it; NULL: 0. Only with lse. Since version 8
} heddle_backward_tensors;

/// One sequence of a batch: its first rows in the tensors (0 in a padded batch), its lengths, and the numbers added to
/// q_idx and kv_idx. Fields may follow in later versions: heddle_block_mask_options.sequence_size tells the library
/// which it has.
typedef struct heddle_sequence {
  int64_t q_begin;
  int64_t q_len;
  int64_t kv_begin;
  int64_t kv_len;
  int64_t q_start;
  int64_t kv_start;  // since version 3
} heddle_sequence;

/// The sequences that a block mask covers, and the mask it is made from.
typedef struct heddle_block_mask_options {
  uint64_t struct_size;
  int64_t heads;                     // of the queries
  const heddle_sequence* sequences;  // one per batch entry
  int64_t sequence_count;
  int64_t q_block;  // queries and keys of one block; 0: 128
  int64_t kv_block;
  const char* mask_mod;             // NULL: everything attends
  const heddle_bindings* bindings;  // what mask_mod reads
  // NULL: the blocks are found from mask_mod. Else PyTorch's lists, i32 on the CPU: kv_num_blocks [B, H, Q], kv_indices
  // [B, H, Q, KV], and the same for full blocks (both or none); B and H may be 1. Keys of unlisted blocks do not
  // attend; mask_mod applies inside partial blocks.
  const heddle_tensor* kv_num_blocks;
  const heddle_tensor* kv_indices;
  const heddle_tensor* full_kv_num_blocks;
  const heddle_tensor* full_kv_indices;
  int32_t threads;        // up to 65536; 0: all cores
  int32_t f64_inputs;     // 1 for an attention on f64 inputs, whose mask computes in f64; else 0
  int64_t sequence_size;  // sizeof(heddle_sequence), unless there are no sequences. Since version 3
  int32_t clamp_reads;    // as heddle_attention_options.clamp_reads. Since version 4
  int32_t reserved;       // 0
} heddle_block_mask_options;

/// Arguments of one run of a plan.
typedef struct heddle_run_options {
  uint64_t struct_size;
  // 64-byte aligned, heddle_plan_workspace_bytes long, on the plan's device, of any content. NULL: the CPU allocates it
  // for this run; on a GPU NULL is an error unless that length is 0. It belongs to one run at a time; a CUDA graph that
  // captured a run is such a run.
  void* workspace;
  // NULL: the planned ones. What the mask reads must have the planned values.
  const heddle_bindings* bindings;
  void* stream;  // CUDA: as heddle_attention_options.stream
  // NULL: the planned ones. Else this run's, as the plan has them but for the address. Since version 13.
  const heddle_tensor* q_rest;
  const heddle_tensor* k_rest;
} heddle_run_options;

/// An attention, or its backward, planned once and run many times.
///
/// These wait on a GPU:
/// - heddle_plan_create and heddle_plan_update. They allocate on the device, copy to it, and copy the mask's captures
///   from it, on the legacy stream, and wait for these copies. So they wait for the work of all streams of the device,
///   except streams made non-blocking.
/// - heddle_plan_destroy and heddle_plan_update. They free device memory; the driver waits for this until the device is
///   idle.
/// - heddle_attention_into, if it makes a plan: all of the above.
/// heddle_plan_run and the functions that only ask a plan never wait.
typedef struct heddle_plan heddle_plan;

/// HEDDLE_C_VERSION of the library that runs. It serves programs compiled against that version and all before.
HEDDLE_API int32_t heddle_c_version(void);
/// "major.minor.patch". Never NULL; lives for ever.
HEDDLE_API const char* heddle_version(void);
/// The error message of this thread's last call; "" if it succeeded. Never NULL; valid until the thread's next call.
/// This function, heddle_version and heddle_c_version do not change it.
HEDDLE_API const char* heddle_last_error(void);

/// The devices that the library can compute on, as JSON:
/// {"heddle": "major.minor.patch", "devices": [{"kind": "cpu", "name": "...", "detail": "...", "memory_bytes": 1}]}
/// and, where there is no CUDA device, "cuda_missing": why; where there is no ROCm device, "rocm_missing".
HEDDLE_API heddle_status heddle_devices_json(const char** json);

/// Plans and computes in one call. `options` may be NULL. The plan is cached and serves later calls with the same
/// problem (defined in attention.h): these plan nothing, wait for nothing and allocate no workspace. Captures of the
/// mask on a GPU are compared by address: after a change in place, call heddle_clear_plan_cache first.
HEDDLE_API heddle_status heddle_attention_into(const heddle_attention_tensors* tensors,
                                               const heddle_attention_options* options);
/// Computes the gradients that `tensors` has, in one call. The rules of heddle_attention_into apply. Since version 5.
HEDDLE_API heddle_status heddle_attention_backward_into(const heddle_backward_tensors* tensors,
                                                        const heddle_attention_options* options);
/// Drops the plans that the one-call functions cache, and frees their workspaces. On a GPU it waits until the device is
/// idle. Since version 2.
HEDDLE_API heddle_status heddle_clear_plan_cache(void);

/// Gets an event, a line of JSON without its line end, valid during the call. events.h lists events and their keys. It
/// is called on the thread of the call, possibly on several threads at a time, and may call the library.
typedef void (*heddle_event_listener)(const char* event, void* context);
/// Replaces the process's listener. NULL: none. Calls in progress may still use the old one. Since version 14.
HEDDLE_API heddle_status heddle_set_event_listener(heddle_event_listener listener, void* context);

/// Counts of the caches since the process began, as JSON: {"plans": {"hits", "misses", "evictions", "plans", "bytes"},
/// "kernels": {"compiled", "from_memory", "from_disk", "from_archive", "rejected"}}. Since version 14.
HEDDLE_API heddle_status heddle_counts_json(const char** json);
/// heddle/archive.h: use_archive(). Since version 16.
HEDDLE_API heddle_status heddle_use_archive(const char* path);

/// Plans for tensors of these shapes, strides, dtypes and devices; their data may be NULL. Lengths, cu_seqlens, q_start
/// and kv_start on the CPU and the captures of the mask are read now; score params, descales, sinks, score captures,
/// and lengths on a GPU are read by each run. `options` may be NULL. *plan is NULL after a failure.
HEDDLE_API heddle_status heddle_plan_create(const heddle_attention_tensors* tensors,
                                            const heddle_attention_options* options, heddle_plan** plan);
/// Plans a backward, for the gradients that are set. The plan is destroyed, updated and asked as one of a forward.
/// Since version 5.
HEDDLE_API heddle_status heddle_plan_create_backward(const heddle_backward_tensors* tensors,
                                                     const heddle_attention_options* options, heddle_plan** plan);
/// NULL is accepted. Not during a run, nor, on a GPU, while one is enqueued: it frees lists that runs read, and waits.
HEDDLE_API void heddle_plan_destroy(heddle_plan* plan);

/// Runs. Shapes, strides, dtypes and devices must be the planned ones. On a GPU it enqueues on the stream and returns;
/// it allocates, compiles and waits for nothing, and copies nothing from or to the host, so a CUDA graph may capture
/// it. On the CPU it returns when o and lse are written. One plan may run on several threads and streams at once, each
/// run with its own workspace. `options` may be NULL.
HEDDLE_API heddle_status heddle_plan_run(const heddle_plan* plan, const heddle_attention_tensors* tensors,
                                         const heddle_run_options* options);
/// Runs a plan of heddle_plan_create_backward, as heddle_plan_run runs the others. The same gradients must be set as
/// planned. A forward plan is an error. Since version 5.
HEDDLE_API heddle_status heddle_plan_run_backward(const heddle_plan* plan, const heddle_backward_tensors* tensors,
                                                  const heddle_run_options* options);
/// Rebuilds the block mask for new values of the mask's params and captures, which are then the planned ones. Names
/// that are not given keep their values; a name that no mod reads is an error. An update during a run is an error, and
/// so is a run during an update. On a GPU it waits; do not call it while a run is enqueued, and capture graphs again.
HEDDLE_API heddle_status heddle_plan_update(heddle_plan* plan, const heddle_bindings* bindings);

/// Bytes of workspace that one run needs. On a GPU: 64 bytes if there are more tiles than SMs, more if lengths are on
/// the device, and room for copies of tensors that TMA does not take and of small pages (attention.h has the sum).
/// explain names the copies.
HEDDLE_API heddle_status heddle_plan_workspace_bytes(const heddle_plan* plan, int64_t* bytes);
/// The backend that was chosen: HEDDLE_BACKEND_CPU ...
HEDDLE_API heddle_status heddle_plan_backend(const heddle_plan* plan, int32_t* backend);
/// Every decision, stage by stage: problem, simplified mods, mask summary, plan, rejected alternatives, predicted
/// bytes, flops and time, kernel.
HEDDLE_API heddle_status heddle_plan_explain(const heddle_plan* plan, const char** text);
/// heddle_plan_explain as a JSON object with those stages as keys.
HEDDLE_API heddle_status heddle_plan_explain_json(const heddle_plan* plan, const char** json);

/// Finds the blocks, or copies them from the lists. *mask is NULL after a failure.
HEDDLE_API heddle_status heddle_block_mask_create(const heddle_block_mask_options* options, heddle_block_mask** mask);
/// NULL is accepted. Plans made with it stay.
HEDDLE_API void heddle_block_mask_destroy(heddle_block_mask* mask);
/// One score matrix, a character a block and a line a row of blocks: '#' full, '+' partial, '.' empty.
HEDDLE_API heddle_status heddle_block_mask_text(const heddle_block_mask* mask, int64_t sequence, int64_t head,
                                                const char** text);

/// Merges `count` partial results over disjoint sets of keys: o = sum(o_n exp(lse_n - lse)), lse = ln sum exp(lse_n).
/// Writes `o` and, unless it is NULL, `lse`; either may be one of the inputs' memory. All on one device; on a GPU up to
/// 64, on the legacy default stream.
HEDDLE_API heddle_status heddle_merge_states(const heddle_tensor* o_parts, const heddle_tensor* lse_parts,
                                             int64_t count, const heddle_tensor* o, const heddle_tensor* lse);
/// Merges on a stream of the GPU (CUstream) and returns when the work is enqueued. The first call of a process with
/// these dtypes on a device also compiles and loads the kernel, and must not be captured in a graph. Since version 2.
HEDDLE_API heddle_status heddle_merge_states_on(const heddle_tensor* o_parts, const heddle_tensor* lse_parts,
                                                int64_t count, const heddle_tensor* o, const heddle_tensor* lse,
                                                void* stream);

/// New rows for a cache of keys and values (kv_cache.h). Since version 9.
typedef struct heddle_append {
  uint64_t struct_size;
  const heddle_tensor* k;        // [B, Hkv, n, Dqk]; packed: [1, Hkv, T, Dqk]
  const heddle_tensor* v;        // NULL, like v_cache: keys alone
  const heddle_tensor* k_cache;  // [B, Hkv, rows, Dqk], or pages [pages, Hkv, size, Dqk]
  const heddle_tensor* v_cache;
  const heddle_tensor* q;      // [B, Hq, Sq, Dqk], to be rotated; NULL: none. Only with q_out and a rotary embedding
  const heddle_tensor* q_out;  // q's shape
  const heddle_tensor* kv_lengths;  // i32 or i64 [B]: valid rows before the call
  const heddle_tensor* cu_seqlens;  // i32 or i64 [N + 1]: where sequences begin in a packed batch; NULL: padded
  const heddle_tensor* page_table;  // i32 [B, max_pages]; NULL: the cache has a row a sequence
  const heddle_tensor* k_descale;   // f32 [B, Hkv], of an 8-bit cache, which stores x / descale; NULL: 1
  const heddle_tensor* v_descale;
  const heddle_tensor* rotary_cos;  // [positions, R / 2]; NULL, like rotary_sin: no rotary embedding
  const heddle_tensor* rotary_sin;
  const heddle_tensor* rotary_positions;  // i32 or i64 [B]: of the first new rows; NULL: kv_lengths
  int32_t rotary_interleaved;             // 1: pairs are neighbours; 0: halves of R columns apart
  int32_t rotary_queries_at_first;        // 1: all queries of a sequence have its first new row's position
  void* stream;                           // of a GPU; NULL: the legacy default stream
  const heddle_tensor* page_starts;       // i32 [B + 1]; NULL: a table. As heddle_attention_options'. Since version 10
} heddle_append;
/// Writes new rows into the caches, and rotated queries to q_out. On a GPU it returns when the work is enqueued; the
/// first call of a process with these dtypes on a device also compiles and loads the kernel, and must not be captured
/// in a graph. Since version 9.
HEDDLE_API heddle_status heddle_append_kv(const heddle_append* append);

/// A placement of one sequence's rows on ranks (partition.h). Since version 15.
typedef struct heddle_partition heddle_partition;
/// One of a model's masks, and for how many of its layers it counts.
typedef struct heddle_weighted_mask {
  const heddle_block_mask* mask;
  double weight;
} heddle_weighted_mask;
enum {
  HEDDLE_PLACING_AUTOMATIC = 0,  // the one with the lowest predicted time
  HEDDLE_PLACING_CONTIGUOUS = 1,
  HEDDLE_PLACING_ZIGZAG = 2,
  HEDDLE_PLACING_DOCUMENTS = 3,
  HEDDLE_PLACING_HEAP = 4
};

/// How rows are placed (PartitionOptions of partition.h). A time of 0 stands for the default, given in its comment.
typedef struct heddle_partition_options {
  uint64_t struct_size;
  int64_t chunk;                // rows that stay together; 0: 1024, or less for short sequences
  int64_t ranks_per_host;       // ranks h * n to (h + 1) * n - 1 are on host h; 0: all on one
  double exchange_weight;       // 1000
  double host_exchange_weight;  // 6000
  double partial_factor;        // 1
  double row_weight;            // 0
  double exposed;               // 0.25
  uint64_t seed;
  int32_t placing;     // HEDDLE_PLACING_AUTOMATIC ...
  int32_t reserved;    // 0
  int64_t host_steps;  // in which rows come from other hosts: 1 or 2; 0: by predicted time. Since version 17
} heddle_partition_options;

/// Places the sequence of all masks. `options` may be NULL. *partition is NULL after a failure. Since version 15.
HEDDLE_API heddle_status heddle_partition_create(const heddle_weighted_mask* masks, int64_t mask_count, int64_t ranks,
                                                 const heddle_partition_options* options, heddle_partition** partition);
/// NULL is accepted. Contexts that were made with it stay. Since version 15.
HEDDLE_API void heddle_partition_destroy(heddle_partition* partition);
/// How many queries, or with of_keys 1 keys, a rank holds; their rows in the whole sequence, ascending; a number, equal
/// for equal partitions on every machine; a picture, each rank's load, and why other placements lost. Since version 15.
HEDDLE_API heddle_status heddle_partition_rows(const heddle_partition* partition, int32_t of_keys, int64_t rank,
                                               int64_t* rows);
HEDDLE_API heddle_status heddle_partition_positions(const heddle_partition* partition, int32_t of_keys, int64_t rank,
                                                    int64_t* positions);
HEDDLE_API heddle_status heddle_partition_hash(const heddle_partition* partition, uint64_t* hash);
HEDDLE_API heddle_status heddle_partition_text(const heddle_partition* partition, const char** text);
/// Writes the numbers of exchanged rows of keys and values for a mask (ExchangePlan of partition.h), ranks * ranks
/// each: entry receiver * ranks + sender. `crossing` (or NULL): rows that cross hosts first. Since version 15.
HEDDLE_API heddle_status heddle_exchange_rows(const heddle_partition* partition, const heddle_block_mask* mask,
                                              int64_t* received, int64_t* crossing);
/// These numbers as a table; in bytes if row_bytes, the bytes of a row, is above 0. Since version 15.
HEDDLE_API heddle_status heddle_exchange_text(const heddle_partition* partition, const heddle_block_mask* mask,
                                              int64_t row_bytes, const char** text);

/// Sends each rank r, itself too, send_bytes[r] bytes of `send`, rank by rank, and writes received bytes to `receive`
/// likewise. On a GPU: on the stream. Returns 0, or not 0: HEDDLE_ERROR_DEVICE of the call. Since version 15.
typedef int32_t (*heddle_exchange)(void* context, const void* send, const int64_t* send_bytes, void* receive,
                                   const int64_t* receive_bytes, void* stream);
/// Sets *all to 1 if all ranks pass one number, else to 0. Waits for them. Returns 0 or an error. Since version 15.
typedef int32_t (*heddle_agree)(void* context, uint64_t number, int32_t* all);

/// Communication of ranks (Communicator of context_parallel.h): two functions, called one at a time by a context's
/// caller; with several groups of heads on the CPU, a thread of the library calls `exchange`. Since version 15.
typedef struct heddle_communicator {
  uint64_t struct_size;
  int64_t rank;  // from 0
  int64_t size;
  int32_t device_kind;  // of all tensors: HEDDLE_DEVICE_CPU ...
  int32_t device_index;
  void* context;  // handed to both functions
  heddle_exchange exchange;
  heddle_agree agree;
} heddle_communicator;

/// Attention with one mask over all ranks of a communicator (ContextAttention of context_parallel.h), and which of its
/// calls check that ranks agree. Since version 15.
typedef struct heddle_context heddle_context;
enum { HEDDLE_CHECKS_AUTOMATIC = 0, HEDDLE_CHECKS_CALLS = 1, HEDDLE_CHECKS_FIRST = 2 };

/// Creating one, forward and backward are collective. `mask` and `options` as context_parallel.h says; memory of
/// tensors of `options`, and the communicator's own, must stay alive. Tensors are this rank's rows; dk and dv have the
/// terms of all ranks. Destroying one, for which NULL is accepted, waits on a GPU. *context is NULL after a failure.
HEDDLE_API heddle_status heddle_context_create(const heddle_partition* partition, const heddle_block_mask* mask,
                                               const heddle_attention_options* options,
                                               const heddle_communicator* communicator, int32_t checks,
                                               heddle_context** context);
HEDDLE_API heddle_status heddle_context_forward(heddle_context* context, const heddle_attention_tensors* tensors);
HEDDLE_API heddle_status heddle_context_backward(heddle_context* context, const heddle_backward_tensors* tensors);
/// Likewise, but adds to the values in some of dq, dk and dv (AddedGradients of context_parallel.h). Since version 18.
enum { HEDDLE_ADDS_DQ = 1, HEDDLE_ADDS_DK = 2, HEDDLE_ADDS_DV = 4 };
HEDDLE_API heddle_status heddle_context_backward_adding(heddle_context* context, const heddle_backward_tensors* tensors,
                                                        int32_t added);
/// The groups of heads of later calls (ContextAttention::set_head_groups); 0: chosen by size. Since version 17.
HEDDLE_API heddle_status heddle_context_set_head_groups(heddle_context* context, int64_t groups);
HEDDLE_API void heddle_context_destroy(heddle_context* context);

/// A rank of an NCCL communicator (nccl_communicator.h). Since version 15.
typedef struct heddle_nccl heddle_nccl;
enum { HEDDLE_NCCL_ID_BYTES = 128 };

/// Writes an id, which one rank makes and gives to all: HEDDLE_NCCL_ID_BYTES bytes. Since version 15.
HEDDLE_API heddle_status heddle_nccl_make_id(char* id);
/// Joins, on a CUDA device, and waits for all ranks. timeout_ms 0: ten minutes. *nccl is NULL after a failure. Contexts
/// over it are destroyed before it is, for which NULL is accepted. heddle_nccl_communicator fills a communicator.
/// heddle_nccl_wait waits for a stream, up to the timeout: a rank that is gone is an error. Since version 15.
HEDDLE_API heddle_status heddle_nccl_create(const char* id, int64_t rank, int64_t size, int32_t device,
                                            int64_t timeout_ms, heddle_nccl** nccl);
HEDDLE_API void heddle_nccl_destroy(heddle_nccl* nccl);
HEDDLE_API heddle_status heddle_nccl_communicator(heddle_nccl* nccl, heddle_communicator* communicator);
HEDDLE_API heddle_status heddle_nccl_wait(heddle_nccl* nccl, void* stream);

/// Checks o and lse of `tensors`, as computed with these options, by the criterion of check.h, against attention in
/// float64 on the CPU. It is slow; first wait for the stream that computed them. *passed becomes 0 or 1: a failed check
/// is not an error. Unless NULL, *report becomes a table of errors and allowed errors. `options` may be NULL.
HEDDLE_API heddle_status heddle_check_attention(const heddle_attention_tensors* tensors,
                                                const heddle_attention_options* options, int32_t* passed,
                                                const char** report);
/// Checks the gradients that `tensors` has in the same way. Since version 5.
HEDDLE_API heddle_status heddle_check_backward(const heddle_backward_tensors* tensors,
                                               const heddle_attention_options* options, int32_t* passed,
                                               const char** report);

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // HEDDLE_C_H_
