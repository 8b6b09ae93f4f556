// Block masks from C: found from a mask, taken from PyTorch's lists, given to attention, refused.
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "harness.h"

enum { kRows = 64, kBlock = 16, kBlocks = kRows / kBlock };

static const heddle_sequence kSequence = {.q_len = kRows, .kv_len = kRows};

static heddle_block_mask_options base_options(void) {
  const heddle_block_mask_options options = {.struct_size = sizeof options,
                                             .heads = 2,
                                             .sequences = &kSequence,
                                             .sequence_count = 1,
                                             .sequence_size = sizeof kSequence,
                                             .q_block = kBlock,
                                             .kv_block = kBlock};
  return options;
}

static bool is_causal(int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx) {
  (void)b, (void)h;
  return q_idx >= kv_idx;
}

static attention_case small_case(void) {
  attention_case c = {
      .batch = 1, .q_heads = 2, .kv_heads = 1, .q_rows = kRows, .kv_rows = kRows, .qk_dim = 8, .v_dim = 8};
  fill_case(&c, 3);
  return c;
}

static void expect_text(const heddle_block_mask* mask, const char* expected) {
  const char* text = NULL;
  EXPECT_OK(heddle_block_mask_text(mask, 0, 1, &text));
  EXPECT(text != NULL && strcmp(text, expected) == 0);
}

// The mask may go once the plan is made.
static void expect_attention(heddle_block_mask* mask, const char* mask_mod,
                             bool (*attends)(int64_t, int64_t, int64_t, int64_t)) {
  attention_case c = small_case();
  c.attends = attends;
  const heddle_attention_tensors tensors = tensors_of(&c, true);
  const heddle_attention_options options = {.struct_size = sizeof options, .mask_mod = mask_mod, .block_mask = mask};
  heddle_plan* plan = NULL;
  EXPECT_OK(heddle_plan_create(&tensors, &options, &plan));
  heddle_block_mask_destroy(mask);
  EXPECT_OK(heddle_plan_run(plan, &tensors, NULL));
  EXPECT(largest_error(&c, true) < 2e-5);
  heddle_plan_destroy(plan);
  free_case(&c);
}

static void test_build(void) {
  heddle_block_mask_options options = base_options();
  const heddle_param params[] = {{.name = "window", .type = HEDDLE_PARAM_I32, .integer = kBlock}};
  const heddle_bindings bindings = {sizeof bindings, params, 1, NULL, 0};
  options.mask_mod = "q_idx >= kv_idx and q_idx - kv_idx < window";
  options.bindings = &bindings;
  heddle_block_mask* mask = NULL;
  EXPECT_OK(heddle_block_mask_create(&options, &mask));
  expect_text(mask, "+...\n++..\n.++.\n..++\n");
  heddle_block_mask_destroy(mask);
  heddle_block_mask_destroy(NULL);

  options = base_options();
  options.mask_mod = "q_idx >= kv_idx";
  options.f64_inputs = 1;
  options.threads = 1;
  EXPECT_OK(heddle_block_mask_create(&options, &mask));
  expect_text(mask, "+...\n#+..\n##+.\n###+\n");
  heddle_block_mask_destroy(mask);

  options.f64_inputs = 0;
  options.q_block = options.kv_block = 0;  // 128
  EXPECT_OK(heddle_block_mask_create(&options, &mask));
  expect_text(mask, "+\n");
  expect_attention(mask, "q_idx >= kv_idx", is_causal);
}

static bool block_1_or_own(int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx) {
  (void)b, (void)h;
  return kv_idx / kBlock == 1 || (kv_idx / kBlock == q_idx / kBlock && q_idx >= kv_idx);
}

// Block 1 is full for every row, the row's own one partial.
static void test_lists(void) {
  int32_t partial_count[kBlocks], partial[kBlocks][kBlocks] = {{0}}, full_count[kBlocks],
                                  full[kBlocks][kBlocks] = {{0}};
  for (int row = 0; row < kBlocks; ++row) {
    partial_count[row] = row != 1;
    partial[row][0] = row;
    full_count[row] = 1;
    full[row][0] = 1;
  }
  const int64_t shape[] = {1, 1, kBlocks, kBlocks};
  const heddle_tensor partial_count_view = tensor_of(partial_count, HEDDLE_I32, 3, shape);
  const heddle_tensor partial_view = tensor_of(partial, HEDDLE_I32, 4, shape);
  const heddle_tensor full_count_view = tensor_of(full_count, HEDDLE_I32, 3, shape);
  const heddle_tensor full_view = tensor_of(full, HEDDLE_I32, 4, shape);
  heddle_block_mask_options options = base_options();
  options.mask_mod = "q_idx >= kv_idx";
  options.kv_num_blocks = &partial_count_view;
  options.kv_indices = &partial_view;
  options.full_kv_num_blocks = &full_count_view;
  options.full_kv_indices = &full_view;
  heddle_block_mask* mask = NULL;
  EXPECT_OK(heddle_block_mask_create(&options, &mask));
  memset(partial, 0xff, sizeof partial);  // not needed any more
  expect_text(mask, "+#..\n.#..\n.#+.\n.#.+\n");
  expect_attention(mask, NULL, block_1_or_own);
}

static void expect_refused(const heddle_block_mask_options* options, heddle_status code, const char* sentence,
                           int line) {
  heddle_block_mask* mask = (heddle_block_mask*)&sentence;
  expect_error(heddle_block_mask_create(options, &mask), code, sentence, "heddle_block_mask_create", __FILE__, line);
  EXPECT(mask == NULL);
}
#define EXPECT_INVALID(sentence) expect_refused(&options, HEDDLE_ERROR_INVALID_ARGUMENT, (sentence), __LINE__)

// An array of structs of an older caller, of this version, and of a newer one.
static void test_sequences_of_other_versions(void) {
  const int64_t old[2][5] = {{0, kRows, 0, kRows, 0}, {0, kRows, 0, kRows, kBlock}};
  const heddle_sequence own[2] = {{.q_len = kRows, .kv_len = kRows},
                                  {.q_len = kRows, .kv_len = kRows, .kv_start = kBlock}};
  int64_t newer[2][8] = {{0, kRows, 0, kRows, 0, 0, 0, 0}, {0, kRows, 0, kRows, 0, kBlock, 0, 0}};
  heddle_block_mask_options options = base_options();
  options.heads = 1;
  options.mask_mod = "q_idx >= kv_idx";
  options.sequence_count = 2;
  const struct {
    const void* sequences;
    int64_t size;
    const char* second;
  } given[] = {{old, sizeof old[0], "#+..\n##+.\n###+\n####\n"},
               {own, sizeof own[0], "....\n+...\n#+..\n##+.\n"},
               {newer, sizeof newer[0], "....\n+...\n#+..\n##+.\n"}};
  for (int i = 0; i < 3; ++i) {
    options.sequences = given[i].sequences;
    options.sequence_size = given[i].size;
    heddle_block_mask* mask = NULL;
    const char* text = NULL;
    EXPECT_OK(heddle_block_mask_create(&options, &mask));
    EXPECT_OK(heddle_block_mask_text(mask, 0, 0, &text));
    EXPECT(text != NULL && strcmp(text, "+...\n#+..\n##+.\n###+\n") == 0);
    EXPECT_OK(heddle_block_mask_text(mask, 1, 0, &text));
    EXPECT(text != NULL && strcmp(text, given[i].second) == 0);
    heddle_block_mask_destroy(mask);
  }
  newer[1][7] = 1;
  expect_refused(&options, HEDDLE_ERROR_UNSUPPORTED, "options.sequences[1] sets fields past the 48 bytes", __LINE__);

  // Callers of before sequence_size: their struct ends before it.
  options.struct_size = offsetof(heddle_block_mask_options, sequence_size);
  options.sequences = given[0].sequences;
  heddle_block_mask* mask = NULL;
  const char* text = NULL;
  EXPECT_OK(heddle_block_mask_create(&options, &mask));
  EXPECT_OK(heddle_block_mask_text(mask, 1, 0, &text));
  EXPECT(text != NULL && strcmp(text, given[0].second) == 0);
  heddle_block_mask_destroy(mask);
  options.struct_size = sizeof options;
  options.sequence_size = 0;
  EXPECT_INVALID("options.sequence_size is 0; sizeof(heddle_sequence), 48 here, is accepted");
  options.sequence_size = 44;
  EXPECT_INVALID("options.sequence_size is 44");
  options.sequence_size = -48;
  EXPECT_INVALID("options.sequence_size is -48");
}

static void test_errors(void) {
  heddle_block_mask* mask = NULL;
  const char* text = NULL;
  heddle_block_mask_options options = base_options();
  expect_refused(NULL, HEDDLE_ERROR_INVALID_ARGUMENT, "options is null", __LINE__);
  EXPECT_ERROR(heddle_block_mask_create(&options, NULL), HEDDLE_ERROR_INVALID_ARGUMENT, "mask is null");
  EXPECT_ERROR(heddle_block_mask_text(NULL, 0, 0, &text), HEDDLE_ERROR_INVALID_ARGUMENT, "mask is null");
  options.struct_size = 103;
  EXPECT_INVALID("options.struct_size is 103; the sizeof of the struct, 120 here, is accepted");
  options = base_options();
  options.sequence_count = -1;
  EXPECT_INVALID("options.sequence_count is -1");
  options.sequence_count = INT64_C(1) << 40;
  EXPECT_INVALID("options.sequence_count is 1099511627776; 0 to 16777216 are accepted");
  options.sequence_count = 1;
  options.sequences = NULL;
  EXPECT_INVALID("options.sequences is null");
  options = base_options();
  options.q_block = -1;
  EXPECT_INVALID("-1");
  options = base_options();
  options.f64_inputs = 2;
  EXPECT_INVALID("options.f64_inputs is 2");
  options = base_options();
  options.mask_mod = "score > 0";
  EXPECT_INVALID("score");
  options.mask_mod = "window > 0";
  EXPECT_INVALID("mask_mod: ");
  options = base_options();
  int32_t number = 9;
  const heddle_tensor numbers = tensor_of(&number, HEDDLE_I32, 3, (const int64_t[]){1, 1, 1});
  const heddle_tensor indices = tensor_of(&number, HEDDLE_I32, 4, (const int64_t[]){1, 1, 1, 1});
  options.kv_indices = &indices;
  EXPECT_INVALID("kv_indices is given without kv_num_blocks");
  options = base_options();
  options.kv_num_blocks = &numbers;
  options.q_block = options.kv_block = kRows;
  EXPECT_INVALID("kv_indices");
  options.kv_indices = &indices;
  EXPECT_INVALID("9");  // entries in a row of one block
  options.kv_indices = NULL;
  EXPECT_INVALID("kv_indices is not given");
  heddle_tensor wrong = indices;
  options.kv_indices = &wrong;
  wrong.data = NULL;
  EXPECT_INVALID("kv_indices is i32 [1, 1, 1, 1] but its data is null");
  wrong.data = (char*)&number + 1;
  EXPECT_INVALID("kv_indices is i32 [1, 1, 1, 1] but its data is not aligned to 4 bytes");
  wrong = indices;
  wrong.shape[3] = 2;
  wrong.strides[3] = INT64_MAX;
  expect_refused(&options, HEDDLE_ERROR_OUT_OF_MEMORY, "kv_indices of shape [1, 1, 1, 2]", __LINE__);
  wrong = indices;
  wrong.device_index = 5;
  EXPECT_INVALID("kv_indices has device index 5; of the CPU 0 is accepted");

  options = base_options();
  options.threads = -3;
  EXPECT_INVALID("threads is -3; 0 to 65536 are accepted, 0 for all cores");
  options.threads = INT32_MAX;
  EXPECT_INVALID("threads is 2147483647; 0 to 65536 are accepted");
  options = base_options();
  options.heads = INT64_MAX;
  EXPECT_INVALID("heads is 9223372036854775807; 0 to 2147483647 are accepted");
  options.heads = INT32_MAX;
  options.mask_mod = "h == 0";
  expect_refused(&options, HEDDLE_ERROR_OUT_OF_MEMORY, "2147483647 heads with 4 rows of blocks each", __LINE__);
  options = base_options();
  options.mask_mod = "x[q_idx] == 0";
  const heddle_tensor no_memory = tensor_of(NULL, HEDDLE_I32, 1, (const int64_t[]){kRows});
  const heddle_capture captures[] = {{.name = "x", .tensor = &no_memory}};
  const heddle_bindings bindings = {sizeof bindings, NULL, 0, captures, 1};
  options.bindings = &bindings;
  EXPECT_INVALID("capture 'x' was given a null pointer");

  EXPECT_OK(heddle_block_mask_create(&(heddle_block_mask_options){.struct_size = sizeof options, .heads = 1}, &mask));
  EXPECT_ERROR(heddle_block_mask_text(mask, 0, 0, NULL), HEDDLE_ERROR_INVALID_ARGUMENT, "text is null");
  heddle_block_mask_destroy(mask);

  attention_case c = small_case();
  const heddle_attention_tensors tensors = tensors_of(&c, true);
  options = base_options();
  options.heads = 3;
  options.mask_mod = "q_idx >= kv_idx + h";
  EXPECT_OK(heddle_block_mask_create(&options, &mask));
  const heddle_attention_options other = {.struct_size = sizeof other, .block_mask = mask};
  EXPECT_ERROR(heddle_attention_into(&tensors, &other), HEDDLE_ERROR_INVALID_ARGUMENT, "block_mask");
  EXPECT(isnan(c.o[0]));
  heddle_block_mask_destroy(mask);
  free_case(&c);
}

int main(void) {
  test_build();
  test_lists();
  test_sequences_of_other_versions();
  test_errors();
  return failures();
}
