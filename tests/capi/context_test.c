// Ranks from C: threads that talk through two functions, and one sequence that they hold together.
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { kRanks = 4, kHeads = 4, kKvHeads = 2, kRows = 90, kDim = 16 };

// ---- a communicator of threads

typedef struct {
  pthread_barrier_t barrier;
  const char* send[kRanks];
  const int64_t* bytes[kRanks];
  uint64_t numbers[kRanks];
} shared_slots;

typedef struct {
  shared_slots* shared;
  int64_t rank;
  int32_t fails;  // what its functions give
} rank_slots;

static int32_t exchange(void* context, const void* send, const int64_t* send_bytes, void* receive,
                        const int64_t* receive_bytes, void* stream) {
  (void)stream;
  const rank_slots* own = context;
  shared_slots* shared = own->shared;
  shared->send[own->rank] = send;
  shared->bytes[own->rank] = send_bytes;
  pthread_barrier_wait(&shared->barrier);
  char* to = receive;
  for (int64_t other = 0; other < kRanks; ++other) {
    const char* from = shared->send[other];
    for (int64_t i = 0; i < own->rank; ++i) from += shared->bytes[other][i];
    if (receive_bytes[other] > 0) memcpy(to, from, (size_t)receive_bytes[other]);
    to += receive_bytes[other];
  }
  pthread_barrier_wait(&shared->barrier);
  return own->fails;
}

static int32_t agree(void* context, uint64_t number, int32_t* all) {
  const rank_slots* own = context;
  shared_slots* shared = own->shared;
  shared->numbers[own->rank] = number;
  pthread_barrier_wait(&shared->barrier);
  *all = 1;
  for (int64_t other = 0; other < kRanks; ++other) *all = *all && shared->numbers[other] == number;
  pthread_barrier_wait(&shared->barrier);
  return own->fails;
}

static heddle_communicator communicator_of(rank_slots* own) {
  const heddle_communicator made = {.struct_size = sizeof made,
                                    .rank = own->rank,
                                    .size = kRanks,
                                    .context = own,
                                    .exchange = exchange,
                                    .agree = agree};
  return made;
}

// ---- one problem

static const char kMask[] = "kv_idx <= q_idx";
static const char kScore[] = "score - 0.05 * f32(q_idx - kv_idx)";

static heddle_block_mask* causal_mask(void) {
  const heddle_sequence sequence = {.q_len = kRows, .kv_len = kRows};
  const heddle_block_mask_options options = {.struct_size = sizeof options,
                                             .heads = kHeads,
                                             .sequences = &sequence,
                                             .sequence_count = 1,
                                             .q_block = 4,
                                             .kv_block = 4,
                                             .mask_mod = kMask,
                                             .sequence_size = sizeof sequence};
  heddle_block_mask* mask = NULL;
  EXPECT_OK(heddle_block_mask_create(&options, &mask));
  return mask;
}

/// Two steps, because so few rows would cross in one.
static heddle_partition* partition_of(const heddle_block_mask* mask, int64_t ranks_per_host) {
  const heddle_weighted_mask weighted = {mask, 1};
  const heddle_partition_options options = {.struct_size = sizeof options,
                                            .chunk = 4,
                                            .ranks_per_host = ranks_per_host,
                                            .placing = HEDDLE_PLACING_ZIGZAG,
                                            .host_steps = 2};
  heddle_partition* partition = NULL;
  EXPECT_OK(heddle_partition_create(&weighted, 1, kRanks, &options, &partition));
  return partition;
}

enum { kQ, kK, kV, kO, kDO, kDq, kDk, kDv, kTensors };

/// Tensors [1, H, rows, D], and lse.
typedef struct {
  int64_t rows;
  float* data[kTensors];
  float* lse;
} sides;

static int64_t heads_of(int tensor) {
  return tensor == kK || tensor == kV || tensor == kDk || tensor == kDv ? kKvHeads : kHeads;
}

static sides sides_of(int64_t rows, uint32_t seed) {
  sides made = {.rows = rows};
  for (int i = 0; i < kTensors; ++i) made.data[i] = random_floats(heads_of(i) * rows * kDim, seed + (uint32_t)i);
  made.lse = nans(kHeads * rows);
  return made;
}

static void free_sides(sides* of) {
  for (int i = 0; i < kTensors; ++i) free(of->data[i]);
  free(of->lse);
}

static void fill_views(const sides* of, heddle_tensor views[kTensors], heddle_tensor* lse) {
  for (int i = 0; i < kTensors; ++i) {
    const int64_t shape[] = {1, heads_of(i), of->rows, kDim};
    views[i] = tensor_of(of->data[i], HEDDLE_F32, 4, shape);
  }
  const int64_t rows[] = {1, kHeads, of->rows};
  *lse = tensor_of(of->lse, HEDDLE_F32, 3, rows);
}

static heddle_attention_tensors forward_of(const heddle_tensor* views, const heddle_tensor* lse) {
  const heddle_attention_tensors tensors = {
      .struct_size = sizeof tensors, .q = &views[kQ], .k = &views[kK], .v = &views[kV], .o = &views[kO], .lse = lse};
  return tensors;
}

static heddle_backward_tensors backward_of(const heddle_tensor* views, const heddle_tensor* lse) {
  const heddle_backward_tensors tensors = {.struct_size = sizeof tensors,
                                           .q = &views[kQ],
                                           .k = &views[kK],
                                           .v = &views[kV],
                                           .o = &views[kO],
                                           .lse = lse,
                                           .d_o = &views[kDO],
                                           .dq = &views[kDq],
                                           .dk = &views[kDk],
                                           .dv = &views[kDv]};
  return tensors;
}

static float* row_of(const sides* of, int tensor, int64_t head, int64_t row) {
  return of->data[tensor] + (head * of->rows + row) * kDim;
}

typedef struct {
  const heddle_partition* partition;
  const heddle_block_mask* mask;
  const sides* whole;
  rank_slots slots;
  int64_t head_groups;
  double largest;  // difference from one rank
} rank_job;

static void* run_rank(void* argument) {
  rank_job* job = argument;
  const int64_t rank = job->slots.rank;
  int64_t rows = 0;
  EXPECT_OK(heddle_partition_rows(job->partition, 0, rank, &rows));
  int64_t* positions = malloc((size_t)(rows + 1) * sizeof *positions);
  EXPECT_OK(heddle_partition_positions(job->partition, 1, rank, positions));
  sides own = sides_of(rows, 77);
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    for (int64_t head = 0; head < heads_of(tensor); ++head) {
      for (int64_t i = 0; i < rows; ++i) {
        const float* from = row_of(job->whole, tensor, head, positions[i]);
        const bool is_input = tensor == kQ || tensor == kK || tensor == kV || tensor == kDO;
        if (is_input) memcpy(row_of(&own, tensor, head, i), from, kDim * sizeof *from);
      }
    }
  }
  heddle_tensor views[kTensors], lse;
  fill_views(&own, views, &lse);
  const heddle_attention_options options = {.struct_size = sizeof options, .score_mod = kScore, .threads = 1};
  const heddle_communicator communicator = communicator_of(&job->slots);
  heddle_context* context = NULL;
  EXPECT_OK(
      heddle_context_create(job->partition, job->mask, &options, &communicator, HEDDLE_CHECKS_AUTOMATIC, &context));
  EXPECT_OK(heddle_context_set_head_groups(context, job->head_groups));
  const heddle_attention_tensors forward = forward_of(views, &lse);
  const heddle_backward_tensors backward = backward_of(views, &lse);
  EXPECT_OK(heddle_context_forward(context, &forward));
  EXPECT_OK(heddle_context_backward(context, &backward));
  // A second backward that adds doubles dq and dv.
  EXPECT_OK(heddle_context_backward_adding(context, &backward, HEDDLE_ADDS_DQ | HEDDLE_ADDS_DV));
  for (int64_t i = 0; i < kHeads * rows * kDim; ++i) own.data[kDq][i] /= 2;
  for (int64_t i = 0; i < kKvHeads * rows * kDim; ++i) own.data[kDv][i] /= 2;
  EXPECT_ERROR(heddle_context_backward_adding(context, &backward, 8), HEDDLE_ERROR_INVALID_ARGUMENT,
               "added is 8; sums of HEDDLE_ADDS_DQ, HEDDLE_ADDS_DK and HEDDLE_ADDS_DV, 0 to 7, are accepted");
  heddle_context_destroy(context);
  const int outputs[] = {kO, kDq, kDk, kDv};
  for (size_t n = 0; n < sizeof outputs / sizeof *outputs; ++n) {
    for (int64_t head = 0; head < heads_of(outputs[n]); ++head) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t d = 0; d < kDim; ++d) {
          const double difference = fabs((double)row_of(&own, outputs[n], head, i)[d] -
                                         (double)row_of(job->whole, outputs[n], head, positions[i])[d]);
          if (!(difference <= job->largest)) job->largest = difference;
        }
      }
    }
  }
  free_sides(&own);
  free(positions);
  return NULL;
}

static void expect_ranks_equal_one(int64_t ranks_per_host, int64_t head_groups) {
  sides whole = sides_of(kRows, 5);
  heddle_tensor views[kTensors], lse;
  fill_views(&whole, views, &lse);
  const heddle_attention_options options = {.struct_size = sizeof options, .score_mod = kScore, .mask_mod = kMask};
  const heddle_attention_tensors forward = forward_of(views, &lse);
  const heddle_backward_tensors backward = backward_of(views, &lse);
  EXPECT_OK(heddle_attention_into(&forward, &options));
  EXPECT_OK(heddle_attention_backward_into(&backward, &options));

  heddle_block_mask* mask = causal_mask();
  heddle_partition* partition = partition_of(mask, ranks_per_host);
  shared_slots shared;
  pthread_barrier_init(&shared.barrier, NULL, kRanks);
  rank_job jobs[kRanks];
  pthread_t threads[kRanks];
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    jobs[rank] = (rank_job){partition, mask, &whole, {&shared, rank, 0}, head_groups, 0};
    pthread_create(&threads[rank], NULL, run_rank, &jobs[rank]);
  }
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    pthread_join(threads[rank], NULL);
    EXPECT(jobs[rank].largest < 2e-5);
  }
  pthread_barrier_destroy(&shared.barrier);
  heddle_partition_destroy(partition);
  heddle_block_mask_destroy(mask);
  free_sides(&whole);
}

static void test_what_travels(void) {
  heddle_block_mask* mask = causal_mask();
  heddle_partition* partition = partition_of(mask, 2);
  int64_t received[kRanks * kRanks], crossing[kRanks * kRanks];
  EXPECT_OK(heddle_exchange_rows(partition, mask, received, crossing));
  int64_t across = 0;
  for (int64_t receiver = 0; receiver < kRanks; ++receiver) {
    for (int64_t sender = 0; sender < kRanks; ++sender) {
      const int64_t entry = receiver * kRanks + sender;
      if (crossing[entry] != 0) EXPECT(receiver % 2 == sender % 2 && receiver != sender);
      if (received[entry] != 0) EXPECT(receiver / 2 == sender / 2);
      across += crossing[entry];
    }
  }
  EXPECT(across > 0);
  const char* text = NULL;
  EXPECT_OK(heddle_exchange_text(partition, mask, 0, &text));
  EXPECT(strstr(text, "rows across hosts: ") != NULL);
  EXPECT_OK(heddle_exchange_text(partition, mask, 512, &text));
  EXPECT(strstr(text, "bytes across hosts: ") != NULL);
  EXPECT_OK(heddle_partition_text(partition, &text));
  EXPECT(strstr(text, "90 queries and 90 keys over 4 ranks, chunks of 4") != NULL);
  uint64_t hash = 0, other_hash = 0;
  EXPECT_OK(heddle_partition_hash(partition, &hash));
  heddle_partition* again = partition_of(mask, 2);
  EXPECT_OK(heddle_partition_hash(again, &other_hash));
  EXPECT(hash == other_hash && hash != 0);
  heddle_partition_destroy(again);
  heddle_partition_destroy(partition);
  heddle_block_mask_destroy(mask);
}

static void test_errors(void) {
  heddle_block_mask* mask = causal_mask();
  heddle_partition *partition = partition_of(mask, 0), *none = partition;
  const heddle_weighted_mask weighted = {mask, 1}, empty = {NULL, 1};
  heddle_partition_options options = {.struct_size = sizeof options};
  EXPECT_ERROR(heddle_partition_create(&weighted, 1, 0, NULL, &none), HEDDLE_ERROR_INVALID_ARGUMENT, "ranks is 0");
  EXPECT(none == NULL);
  EXPECT_ERROR(heddle_partition_create(&empty, 1, 2, NULL, &none), HEDDLE_ERROR_INVALID_ARGUMENT,
               "masks[0].mask is null");
  EXPECT_ERROR(heddle_partition_create(NULL, 0, 2, NULL, &none), HEDDLE_ERROR_INVALID_ARGUMENT, "masks is empty");
  EXPECT_ERROR(heddle_partition_create(&weighted, -1, 2, NULL, &none), HEDDLE_ERROR_INVALID_ARGUMENT,
               "mask_count is -1");
  options.placing = 9;
  EXPECT_ERROR(heddle_partition_create(&weighted, 1, 2, &options, &none), HEDDLE_ERROR_INVALID_ARGUMENT,
               "options.placing is 9");
  options.placing = HEDDLE_PLACING_HEAP, options.ranks_per_host = 3;
  EXPECT_ERROR(heddle_partition_create(&weighted, 1, 4, &options, &none), HEDDLE_ERROR_INVALID_ARGUMENT,
               "ranks_per_host is 3, and there are 4 ranks");
  options.ranks_per_host = 2, options.host_steps = 3;
  EXPECT_ERROR(heddle_partition_create(&weighted, 1, 4, &options, &none), HEDDLE_ERROR_INVALID_ARGUMENT,
               "options.host_steps is 3; 0, 1 and 2 are accepted");
  options.struct_size = 8;
  EXPECT_ERROR(heddle_partition_create(&weighted, 1, 4, &options, &none), HEDDLE_ERROR_INVALID_ARGUMENT, "struct_size");
  int64_t rows = 0;
  EXPECT_ERROR(heddle_partition_rows(partition, 0, kRanks, &rows), HEDDLE_ERROR_INVALID_ARGUMENT, "rank is 4");
  EXPECT_ERROR(heddle_partition_rows(partition, 2, 0, &rows), HEDDLE_ERROR_INVALID_ARGUMENT, "of_keys is 2");
  EXPECT_ERROR(heddle_partition_positions(partition, 0, 0, NULL), HEDDLE_ERROR_INVALID_ARGUMENT, "positions is null");

  heddle_context* context = NULL;
  rank_slots slots = {NULL, 0, 0};
  heddle_communicator communicator = communicator_of(&slots);
  communicator.agree = NULL;
  EXPECT_ERROR(heddle_context_create(partition, mask, NULL, &communicator, 0, &context), HEDDLE_ERROR_INVALID_ARGUMENT,
               "communicator.agree is null");
  communicator = communicator_of(&slots);
  communicator.rank = 4;
  EXPECT_ERROR(heddle_context_create(partition, mask, NULL, &communicator, 0, &context), HEDDLE_ERROR_INVALID_ARGUMENT,
               "communicator.rank is 4; 0 to 3 are accepted");
  communicator = communicator_of(&slots);
  communicator.device_kind = 7;
  EXPECT_ERROR(heddle_context_create(partition, mask, NULL, &communicator, 0, &context), HEDDLE_ERROR_INVALID_ARGUMENT,
               "communicator.device_kind is 7");
  communicator = communicator_of(&slots);
  EXPECT_ERROR(heddle_context_create(partition, mask, NULL, &communicator, 3, &context), HEDDLE_ERROR_INVALID_ARGUMENT,
               "checks is 3");
  EXPECT_ERROR(heddle_context_create(partition, mask, NULL, NULL, 0, &context), HEDDLE_ERROR_INVALID_ARGUMENT,
               "communicator is null");
  EXPECT_ERROR(heddle_context_forward(NULL, NULL), HEDDLE_ERROR_INVALID_ARGUMENT, "context is null");
  char id[HEDDLE_NCCL_ID_BYTES] = {0};
  heddle_nccl* nccl = NULL;
  EXPECT_ERROR(heddle_nccl_create(id, 0, 1, 0, -1, &nccl), HEDDLE_ERROR_INVALID_ARGUMENT, "timeout_ms is -1");
  EXPECT_ERROR(heddle_nccl_create(id, 1, 1, 0, 0, &nccl), HEDDLE_ERROR_INVALID_ARGUMENT, "rank is 1");
  EXPECT(nccl == NULL);
  EXPECT_ERROR(heddle_nccl_communicator(NULL, &communicator), HEDDLE_ERROR_INVALID_ARGUMENT, "nccl is null");
  heddle_partition_destroy(partition);
  heddle_block_mask_destroy(mask);
}

static int32_t agree_alone(void* context, uint64_t number, int32_t* all) {
  (void)number;
  *all = 1;
  return ((const rank_slots*)context)->fails;
}

static void test_a_function_that_fails(void) {
  heddle_block_mask* mask = causal_mask();
  const heddle_weighted_mask weighted = {mask, 1};
  heddle_partition* alone = NULL;
  EXPECT_OK(heddle_partition_create(&weighted, 1, 1, NULL, &alone));
  rank_slots slots = {NULL, 0, 5};
  heddle_communicator communicator = communicator_of(&slots);
  communicator.size = 1;
  communicator.agree = agree_alone;
  heddle_context* context = NULL;
  EXPECT_ERROR(heddle_context_create(alone, mask, NULL, &communicator, 0, &context), HEDDLE_ERROR_DEVICE,
               "the communicator's agree gave 5 on rank 0");
  EXPECT(context == NULL);
  heddle_partition_destroy(alone);
  heddle_block_mask_destroy(mask);
}

/// Tensors and masks that do not fit the ranks are refused before anything is sent: here no exchange works.
static void test_what_does_not_fit_the_ranks(void) {
  rank_slots slots = {NULL, 0, 0};
  heddle_communicator communicator = communicator_of(&slots);
  communicator.agree = agree_alone;
  heddle_context* context = NULL;

  const heddle_sequence three = {.q_len = 3, .kv_len = 3};
  const heddle_block_mask_options short_options = {.struct_size = sizeof short_options,
                                                   .heads = kHeads,
                                                   .sequences = &three,
                                                   .sequence_count = 1,
                                                   .q_block = 4,
                                                   .kv_block = 4,
                                                   .mask_mod = kMask,
                                                   .sequence_size = sizeof three};
  heddle_block_mask *mask = causal_mask(), *short_mask = NULL;
  EXPECT_OK(heddle_block_mask_create(&short_options, &short_mask));
  heddle_partition *partition = partition_of(mask, 0), *short_partition = partition_of(short_mask, 0);
  EXPECT_ERROR(heddle_context_create(short_partition, short_mask, NULL, &communicator, 0, &context),
               HEDDLE_ERROR_INVALID_ARGUMENT, "the sequence has 3 queries, and there are 4 ranks");
  EXPECT_ERROR(heddle_context_create(partition, short_mask, NULL, &communicator, 0, &context),
               HEDDLE_ERROR_INVALID_ARGUMENT, "the mask covers 3 and 3");
  communicator.size = 3;
  EXPECT_ERROR(heddle_context_create(partition, mask, NULL, &communicator, 0, &context), HEDDLE_ERROR_INVALID_ARGUMENT,
               "the partition is of 4 ranks, and the communicator of 3");
  EXPECT(context == NULL);

  // Tensors of a GPU, and a communicator that carries rows of the CPU.
  communicator.size = kRanks;
  EXPECT_OK(heddle_context_create(partition, mask, NULL, &communicator, 0, &context));
  int64_t rows = 0;
  EXPECT_OK(heddle_partition_rows(partition, 0, 0, &rows));
  sides own = sides_of(rows, 3);
  heddle_tensor views[kTensors], lse;
  fill_views(&own, views, &lse);
  for (int i = 0; i < kTensors; ++i) views[i].device_kind = HEDDLE_DEVICE_CUDA;
  const heddle_attention_tensors forward = forward_of(views, &lse);
  const heddle_backward_tensors backward = backward_of(views, &lse);
  static const char kWhere[] =
      "q is on cuda:0, and the communicator carries rows of the CPU; tensors there are accepted";
  EXPECT_ERROR(heddle_context_forward(context, &forward), HEDDLE_ERROR_INVALID_ARGUMENT, kWhere);
  EXPECT_ERROR(heddle_context_backward(context, &backward), HEDDLE_ERROR_INVALID_ARGUMENT, kWhere);
  EXPECT_ERROR(heddle_context_set_head_groups(context, -1), HEDDLE_ERROR_INVALID_ARGUMENT, "groups is -1");
  EXPECT_ERROR(heddle_context_set_head_groups(NULL, 1), HEDDLE_ERROR_INVALID_ARGUMENT, "context is null");
  heddle_context_destroy(context);
  free_sides(&own);
  heddle_partition_destroy(short_partition);
  heddle_partition_destroy(partition);
  heddle_block_mask_destroy(short_mask);
  heddle_block_mask_destroy(mask);
}

int main(void) {
  expect_ranks_equal_one(0, 0);
  expect_ranks_equal_one(2, 2);
  test_what_travels();
  test_errors();
  test_a_function_that_fails();
  test_what_does_not_fit_the_ranks();
  return failures() != 0;
}
