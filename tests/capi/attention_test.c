// Attention from C in one call, against plain loops: mods as text, every option, merging, the check of a result.
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static const double kTolerance = 2e-5;  // of f32 sums of some dozen terms near 1

static attention_case small_case(void) {
  attention_case c = {.batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 37, .kv_rows = 41, .qk_dim = 16, .v_dim = 24};
  fill_case(&c, 1);
  return c;
}

static void expect_right(attention_case* c, const heddle_attention_options* options, bool with_lse) {
  const heddle_attention_tensors tensors = tensors_of(c, with_lse);
  clear_outputs(c);
  EXPECT_OK(heddle_attention_into(&tensors, options));
  EXPECT(largest_error(c, with_lse) < kTolerance);
}

static void test_plain(void) {
  attention_case c = small_case();
  expect_right(&c, NULL, true);
  expect_right(&c, NULL, false);
  EXPECT(isnan(c.lse[0]));  // not asked for, not written
  const heddle_attention_options defaults = {.struct_size = sizeof defaults};
  expect_right(&c, &defaults, true);
  free_case(&c);
}

// Since version 6; of an older program's struct it is not read.
static void test_max_scores(void) {
  attention_case c = small_case();
  heddle_attention_tensors tensors = tensors_of(&c, false);
  tensors.max_scores = &c.lse_view;
  clear_outputs(&c);
  EXPECT_OK(heddle_attention_into(&tensors, NULL));
  const double scale = 1 / sqrt((double)c.qk_dim);
  for (int64_t row = 0; row < c.q_rows; ++row) {  // of the first head
    double largest = -INFINITY;
    for (int64_t key = 0; key < c.kv_rows; ++key) {
      double product = 0;
      for (int64_t d = 0; d < c.qk_dim; ++d) {
        product += (double)c.q[row * c.qk_dim + d] * (double)c.k[key * c.qk_dim + d];
      }
      largest = fmax(largest, scale * product);
    }
    EXPECT(fabs((double)c.lse[row] - largest) < kTolerance);
  }
  int32_t passed = 0;
  EXPECT_OK(heddle_check_attention(&tensors, NULL, &passed, NULL));
  EXPECT(passed == 1);
  c.lse[3] += 0.01f;
  EXPECT_OK(heddle_check_attention(&tensors, NULL, &passed, NULL));
  EXPECT(passed == 0);
  clear_outputs(&c);
  tensors.struct_size = offsetof(heddle_attention_tensors, max_scores);
  EXPECT_OK(heddle_attention_into(&tensors, NULL));
  EXPECT(isnan(c.lse[0]));
  free_case(&c);
}

// Since version 8: lse and lse_rest are m and ln l, whatever lse's rounding.
static void test_lse_rest(void) {
  attention_case c = small_case(), of_rest = small_case();
  heddle_attention_tensors tensors = tensors_of(&c, true);
  tensors.lse_rest = &of_rest.lse_view;
  const heddle_attention_options options = {.struct_size = sizeof options, .score_mod = "0.0 * score - 1e9"};
  EXPECT_OK(heddle_attention_into(&tensors, &options));
  for (int64_t row = 0; row < c.q_rows; ++row) {
    EXPECT(c.lse[row] == -1e9f);
    EXPECT(fabs((double)of_rest.lse[row] - log((double)c.kv_rows)) < 1e-6);
  }
  int32_t passed = 0;
  EXPECT_OK(heddle_check_attention(&tensors, &options, &passed, NULL));
  EXPECT(passed == 1);
  clear_outputs(&of_rest);
  tensors.struct_size = offsetof(heddle_attention_tensors, lse_rest);
  EXPECT_OK(heddle_attention_into(&tensors, &options));
  EXPECT(isnan(of_rest.lse[0]));
  tensors.struct_size = sizeof tensors;
  tensors.lse = NULL;
  EXPECT(heddle_attention_into(&tensors, &options) == HEDDLE_ERROR_INVALID_ARGUMENT);
  EXPECT(strstr(heddle_last_error(), "lse_rest is given without lse") != NULL);
  free_case(&c);
  free_case(&of_rest);
}

static bool in_window(int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx) {
  (void)b, (void)h;
  return q_idx >= kv_idx && q_idx - kv_idx <= 5;
}

static const float kSlopes[] = {0.5f, 0.25f, 0.125f, 1};
static double alibi(double s, int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx) {
  (void)b;
  return s + (double)kSlopes[h] * (double)(kv_idx - q_idx);
}

static double halves(int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx) {
  (void)h, (void)q_idx;
  return (b + kv_idx) % 2 == 0 ? 1.5 : 0;
}

static void test_mods(void) {
  attention_case c = small_case();
  float slopes[4];
  memcpy(slopes, kSlopes, sizeof slopes);
  const heddle_tensor slopes_view = tensor_of(slopes, HEDDLE_F32, 1, (const int64_t[]){4});
  const heddle_param params[] = {{.name = "window", .type = HEDDLE_PARAM_I32, .integer = 5},
                                 {.name = "keep", .type = HEDDLE_PARAM_F32, .real = 1.5},
                                 {.name = "always", .type = HEDDLE_PARAM_BOOL, .integer = 1}};
  const heddle_capture captures[] = {{"slopes", &slopes_view}};
  const heddle_bindings bindings = {sizeof bindings, params, 3, captures, 1};
  heddle_attention_options options = {.struct_size = sizeof options, .bindings = &bindings};

  options.mask_mod = "always and q_idx >= kv_idx and q_idx - kv_idx <= window";
  c.attends = in_window;
  expect_right(&c, &options, true);
  options.score_mod = "score + slopes[h] * (kv_idx - q_idx)";
  c.score = alibi;
  expect_right(&c, &options, true);
  options.weight_mod = "keep if (b + kv_idx) % 2 == 0 else 0.0";
  c.weight = halves;
  expect_right(&c, &options, true);
  free_case(&c);
}

static void test_scale_and_sinks(void) {
  attention_case c = small_case();
  const double scale = 0.7;
  float sinks[] = {0.5f, -1, 2, 0};
  const heddle_tensor sinks_view = tensor_of(sinks, HEDDLE_F32, 1, (const int64_t[]){4});
  const heddle_attention_options options = {.struct_size = sizeof options, .scale = &scale, .sinks = &sinks_view};
  c.scale = scale;
  c.sinks = sinks;
  expect_right(&c, &options, true);
  free_case(&c);
}

static void test_normalizers(void) {
  attention_case c = small_case();
  heddle_attention_options options = {.struct_size = sizeof options};
  c.normalizer = options.normalizer = HEDDLE_NORMALIZER_SIGMOID;
  expect_right(&c, &options, false);
  c.normalizer = options.normalizer = HEDDLE_NORMALIZER_NONE;
  expect_right(&c, &options, false);
  free_case(&c);
}

static bool is_causal(int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx) {
  (void)b, (void)h;
  return q_idx >= kv_idx;
}

static void test_sequences(void) {
  attention_case c = small_case();
  int32_t q_lengths[] = {37, 11}, kv_lengths[] = {9, 41}, q_start[] = {3, -2}, kv_start[] = {-4, 5};
  const int64_t shape[] = {2};
  const heddle_tensor q_lengths_view = tensor_of(q_lengths, HEDDLE_I32, 1, shape);
  const heddle_tensor kv_lengths_view = tensor_of(kv_lengths, HEDDLE_I32, 1, shape);
  const heddle_tensor q_start_view = tensor_of(q_start, HEDDLE_I32, 1, shape);
  const heddle_tensor kv_start_view = tensor_of(kv_start, HEDDLE_I32, 1, shape);
  heddle_attention_options options = {.struct_size = sizeof options,
                                      .mask_mod = "q_idx >= kv_idx",
                                      .q_lengths = &q_lengths_view,
                                      .kv_lengths = &kv_lengths_view,
                                      .q_start = &q_start_view};
  c.attends = is_causal;
  c.q_lengths = q_lengths;
  c.kv_lengths = kv_lengths;
  c.q_start = q_start;
  expect_right(&c, &options, true);
  options.kv_start = &kv_start_view;
  c.kv_start = kv_start;
  expect_right(&c, &options, true);
  free_case(&c);
}

// A packed batch of one sequence is the padded one; cu_seqlens that are exchanged would not fit the totals.
static void test_packed(void) {
  attention_case c = {.batch = 1, .q_heads = 2, .kv_heads = 1, .q_rows = 9, .kv_rows = 13, .qk_dim = 8, .v_dim = 8};
  fill_case(&c, 5);
  int32_t q[] = {0, 9}, kv[] = {0, 13};
  const heddle_tensor q_view = tensor_of(q, HEDDLE_I32, 1, (const int64_t[]){2});
  const heddle_tensor kv_view = tensor_of(kv, HEDDLE_I32, 1, (const int64_t[]){2});
  const heddle_attention_options options = {
      .struct_size = sizeof options, .cu_seqlens_q = &q_view, .cu_seqlens_kv = &kv_view};
  expect_right(&c, &options, true);
  heddle_attention_options bounded = options;
  bounded.max_q_len = 9;
  bounded.max_kv_len = 12;
  const heddle_attention_tensors tensors = tensors_of(&c, true);
  EXPECT_ERROR(heddle_attention_into(&tensors, &bounded), HEDDLE_ERROR_INVALID_ARGUMENT,
               "cu_seqlens_kv[1] is 13 after 0; sequences of up to max_kv_len 12 rows are accepted");
  bounded.max_kv_len = 13;
  expect_right(&c, &bounded, true);
  bounded.max_q_len = 1;  // past the end of a program's struct of version 1
  bounded.struct_size = offsetof(heddle_attention_options, max_q_len);
  expect_right(&c, &bounded, true);
  free_case(&c);
}

// fp8: q, k, v all ones, so that s of head h is q_factor[h] * 3 (k's factor) * Dqk * scale, and o = 5 (v's factor).
static void test_descales(void) {
  enum { kHeads = 2, kRows = 4, kDim = 8 };
  uint8_t ones[kHeads * kRows * kDim];
  memset(ones, 0x38, sizeof ones);  // 1.0 as e4m3
  float o[kHeads * kRows * kDim], lse[kHeads * kRows], q_factor[kHeads] = {2, 4}, k_factor = 3, v_factor = 5;
  const int64_t q_shape[] = {1, kHeads, kRows, kDim}, kv_shape[] = {1, 1, kRows, kDim};
  const heddle_tensor q = tensor_of(ones, HEDDLE_E4M3, 4, q_shape), kv = tensor_of(ones, HEDDLE_E4M3, 4, kv_shape);
  const heddle_tensor o_view = tensor_of(o, HEDDLE_F32, 4, q_shape), lse_view = tensor_of(lse, HEDDLE_F32, 3, q_shape);
  const heddle_tensor q_view = tensor_of(q_factor, HEDDLE_F32, 2, (const int64_t[]){1, kHeads});
  const heddle_tensor k_view = tensor_of(&k_factor, HEDDLE_F32, 2, (const int64_t[]){1, 1});
  const heddle_tensor v_view = tensor_of(&v_factor, HEDDLE_F32, 2, (const int64_t[]){1, 1});
  const double scale = 0.125;
  const heddle_attention_tensors tensors = {sizeof tensors, &q, &kv, &kv, &o_view, &lse_view, NULL, NULL};
  const heddle_attention_options options = {
      .struct_size = sizeof options, .scale = &scale, .q_descale = &q_view, .k_descale = &k_view, .v_descale = &v_view};
  EXPECT_OK(heddle_attention_into(&tensors, &options));
  for (int row = 0; row < kHeads * kRows; ++row) {
    EXPECT(fabs(lse[row] - (3 * q_factor[row / kRows] + log(kRows))) < 1e-4);
    EXPECT(fabs(o[row * kDim] - 5) < 1e-4);
  }
}

// [B, S, H, D] memory as a choice of strides.
static void test_strides(void) {
  attention_case c = small_case();
  float* bshd = nans(c.batch * c.q_rows * c.q_heads * c.v_dim);
  heddle_tensor o = c.o_view;
  o.data = bshd;
  o.strides[1] = c.v_dim;
  o.strides[2] = c.q_heads * c.v_dim;
  heddle_attention_tensors tensors = tensors_of(&c, true);
  tensors.o = &o;
  EXPECT_OK(heddle_attention_into(&tensors, NULL));
  for (int64_t row = 0; row < c.batch * c.q_heads * c.q_rows; ++row) {
    const int64_t b = row / (c.q_heads * c.q_rows), h = row / c.q_rows % c.q_heads, i = row % c.q_rows;
    const float* from = bshd + b * o.strides[0] + h * o.strides[1] + i * o.strides[2];
    memcpy(c.o + row * c.v_dim, from, (size_t)c.v_dim * sizeof(float));
  }
  EXPECT(largest_error(&c, true) < kTolerance);
  free(bshd);
  free_case(&c);
}

static void test_merge(void) {
  attention_case all = small_case(), left = small_case(), right = small_case();
  const heddle_param params[] = {{.name = "split", .type = HEDDLE_PARAM_I32, .integer = 17}};
  const heddle_bindings bindings = {sizeof bindings, params, 1, NULL, 0};
  heddle_attention_options options = {.struct_size = sizeof options, .bindings = &bindings};
  const heddle_attention_tensors left_tensors = tensors_of(&left, true), right_tensors = tensors_of(&right, true);
  options.mask_mod = "kv_idx < split";
  EXPECT_OK(heddle_attention_into(&left_tensors, &options));
  options.mask_mod = "kv_idx >= split";
  EXPECT_OK(heddle_attention_into(&right_tensors, &options));
  const heddle_tensor o_parts[] = {left.o_view, right.o_view}, lse_parts[] = {left.lse_view, right.lse_view};
  EXPECT_OK(heddle_merge_states(o_parts, lse_parts, 2, &all.o_view, &all.lse_view));
  EXPECT(largest_error(&all, true) < kTolerance);
  clear_outputs(&all);
  EXPECT_OK(heddle_merge_states(o_parts, lse_parts, 2, &all.o_view, NULL));
  EXPECT(largest_error(&all, false) < kTolerance);
  clear_outputs(&all);
  EXPECT_OK(heddle_merge_states_on(o_parts, lse_parts, 2, &all.o_view, &all.lse_view, NULL));
  EXPECT(largest_error(&all, true) < kTolerance);
  free_case(&all);
  free_case(&left);
  free_case(&right);
}

static void test_check(void) {
  attention_case c = small_case();
  const heddle_attention_tensors tensors = tensors_of(&c, true);
  const heddle_attention_options options = {.struct_size = sizeof options, .mask_mod = "q_idx >= kv_idx"};
  int32_t passed = -1;
  const char* report = NULL;
  EXPECT_OK(heddle_attention_into(&tensors, &options));
  EXPECT_OK(heddle_check_attention(&tensors, &options, &passed, &report));
  EXPECT(passed == 1);
  EXPECT(report != NULL && strstr(report, "passed") != NULL && strstr(report, "FAILED") == NULL);
  EXPECT_OK(heddle_check_attention(&tensors, NULL, &passed, NULL));  // of another attention
  EXPECT(passed == 0);
  c.o[77] += 0.01f;
  EXPECT_OK(heddle_check_attention(&tensors, &options, &passed, &report));
  EXPECT(passed == 0);
  EXPECT(strstr(report, "FAILED") != NULL);
  free_case(&c);
}

typedef struct {
  int calls;
  double last;
  bool rises;
} progress_record;

static void record(double fraction, void* context) {
  progress_record* seen = context;
  ++seen->calls;
  seen->rises = seen->rises && fraction > seen->last && fraction <= 1;
  seen->last = fraction;
}

// A callback may make calls of its own. One of them fails here: the run's own call still has no error.
static void call_within(double fraction, void* context) {
  (void)fraction;
  int* calls = context;
  if (++*calls > 1) return;
  attention_case c = small_case();
  const heddle_attention_options options = {.struct_size = sizeof options, .threads = 2};
  expect_right(&c, &options, true);
  const heddle_attention_options wrong = {.struct_size = sizeof wrong, .mask_mod = "q_idx >="};
  const heddle_attention_tensors tensors = tensors_of(&c, true);
  EXPECT(heddle_attention_into(&tensors, &wrong) == HEDDLE_ERROR_INVALID_ARGUMENT);
  free_case(&c);
}

static void test_calls_within_progress(void) {
  attention_case c = small_case();
  int calls = 0;
  const heddle_attention_options options = {.struct_size = sizeof options,
                                            .backend = HEDDLE_BACKEND_REFERENCE,
                                            .threads = 1,
                                            .progress = call_within,
                                            .progress_context = &calls};
  const heddle_attention_tensors tensors = tensors_of(&c, true);
  EXPECT_OK(heddle_attention_into(&tensors, &options));
  EXPECT(strcmp(heddle_last_error(), "") == 0);
  EXPECT(calls > 1);
  free_case(&c);
}

// The reference reports after each of its tasks; the CPU every 50 ms, for which it is too fast here.
static void test_progress(void) {
  attention_case c = small_case();
  progress_record seen = {.rises = true};
  const heddle_attention_options options = {.struct_size = sizeof options,
                                            .backend = HEDDLE_BACKEND_REFERENCE,
                                            .threads = 1,
                                            .progress = record,
                                            .progress_context = &seen};
  expect_right(&c, &options, true);
  EXPECT(seen.calls > 0);
  EXPECT(seen.rises);
  EXPECT(seen.last == 1);
  free_case(&c);
}

static void test_backends(void) {
  attention_case c = small_case();
  const int32_t backends[] = {HEDDLE_BACKEND_AUTOMATIC, HEDDLE_BACKEND_CPU, HEDDLE_BACKEND_REFERENCE};
  for (int i = 0; i < 3; ++i) {
    const heddle_attention_options options = {.struct_size = sizeof options, .backend = backends[i]};
    const heddle_attention_tensors tensors = tensors_of(&c, true);
    heddle_plan* plan = NULL;
    int32_t chosen = -1;
    EXPECT_OK(heddle_plan_create(&tensors, &options, &plan));
    EXPECT_OK(heddle_plan_backend(plan, &chosen));
    EXPECT(chosen == (i == 0 ? HEDDLE_BACKEND_CPU : backends[i]));
    heddle_plan_destroy(plan);
    expect_right(&c, &options, true);
  }
  free_case(&c);
}

static const int32_t kIds[] = {0, 1, 1, 2};
static bool in_clamped_ids(int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx) {
  (void)b, (void)h;
  const int64_t first = kv_idx < 2 ? 0 : kv_idx > 5 ? 3 : kv_idx - 2, second = q_idx > 3 ? 3 : q_idx;
  return kIds[first] <= kIds[second];
}

// kv_idx - 2 and q_idx leave the tensor: refused, or the nearest element.
static void test_clamped_reads(void) {
  attention_case c = small_case();
  int32_t ids[4];
  memcpy(ids, kIds, sizeof ids);
  const heddle_tensor tensor = tensor_of(ids, HEDDLE_I32, 1, (const int64_t[]){4});
  const heddle_capture capture = {.name = "ids", .tensor = &tensor};
  const heddle_bindings bindings = {.struct_size = sizeof bindings, .captures = &capture, .capture_count = 1};
  heddle_attention_options options = {
      .struct_size = sizeof options, .mask_mod = "ids[kv_idx - 2] <= ids[q_idx]", .bindings = &bindings};
  const heddle_attention_tensors tensors = tensors_of(&c, true);
  EXPECT(heddle_attention_into(&tensors, &options) == HEDDLE_ERROR_INVALID_ARGUMENT);
  options.clamp_reads = 1;
  c.attends = in_clamped_ids;
  expect_right(&c, &options, true);
  options.clamp_reads = 2;
  EXPECT(heddle_attention_into(&tensors, &options) == HEDDLE_ERROR_INVALID_ARGUMENT);
  EXPECT(strstr(heddle_last_error(), "options.clamp_reads is 2; 0 and 1 are accepted") != NULL);
  free_case(&c);
}

// Since version 9: two sequences of one head, their new row behind 1 and 2 others.
static void test_append(void) {
  float k[2][3] = {{1, 2, 3}, {4, 5, 6}}, keys[2][4][3], values[2][4][3];
  int32_t before[2] = {1, 2};
  memset(keys, 0, sizeof keys);
  memset(values, 0, sizeof values);
  const heddle_tensor rows = {
      .data = k, .dtype = HEDDLE_F32, .rank = 4, .shape = {2, 1, 1, 3}, .strides = {3, 3, 3, 1}};
  heddle_tensor k_cache = rows, v_cache;
  k_cache.data = keys;
  k_cache.shape[2] = 4;
  k_cache.strides[0] = k_cache.strides[1] = 12;
  v_cache = k_cache;
  v_cache.data = values;
  const heddle_tensor lengths = {.data = before, .dtype = HEDDLE_I32, .rank = 1, .shape = {2}, .strides = {1}};
  heddle_append append = {.struct_size = sizeof append,
                          .k = &rows,
                          .v = &rows,
                          .k_cache = &k_cache,
                          .v_cache = &v_cache,
                          .kv_lengths = &lengths};
  EXPECT_OK(heddle_append_kv(&append));
  for (int b = 0; b < 2; ++b) {
    for (int row = 0; row < 4; ++row) {
      for (int d = 0; d < 3; ++d) {
        const float expected = row == before[b] ? k[b][d] : 0;
        EXPECT(keys[b][row][d] == expected && values[b][row][d] == expected);
      }
    }
  }
  float cosine[5][1] = {{0}, {0}, {0}, {0}, {0}}, sine[5][1] = {{1}, {1}, {1}, {1}, {1}};
  const heddle_tensor cos_view = {.data = cosine, .dtype = HEDDLE_F32, .rank = 2, .shape = {5, 1}, .strides = {1, 1}};
  heddle_tensor sin_view = cos_view;
  sin_view.data = sine;
  append.rotary_cos = &cos_view;
  EXPECT_ERROR(heddle_append_kv(&append), HEDDLE_ERROR_INVALID_ARGUMENT, "rotary_sin is null");
  append.rotary_sin = &sin_view;
  EXPECT_OK(heddle_append_kv(&append));
  EXPECT(keys[1][2][0] == -5 && keys[1][2][1] == 4 && keys[1][2][2] == 6);  // a quarter turn
  append.rotary_interleaved = 2;
  EXPECT_ERROR(heddle_append_kv(&append), HEDDLE_ERROR_INVALID_ARGUMENT, "rotary_interleaved is 2");
  EXPECT_ERROR(heddle_append_kv(NULL), HEDDLE_ERROR_INVALID_ARGUMENT, "append is null");
}

// Since version 10: pages of 2 rows in a list, of which two sequences have two and one; what is appended is seen.
static void test_listed_pages(void) {
  float keys[5][2][1], new_rows[2][1] = {{10}, {20}}, o[2][1];
  for (int i = 0; i < 10; ++i) keys[i / 2][i % 2][0] = (float)i;
  int32_t list[5] = {-1, 4, 0, 2, 99}, starts[3] = {1, 3, 4}, lengths[2] = {2, 1};
  const heddle_tensor rows = {
      .data = new_rows, .dtype = HEDDLE_F32, .rank = 4, .shape = {2, 1, 1, 1}, .strides = {1, 1, 1, 1}};
  const heddle_tensor pages = {
      .data = keys, .dtype = HEDDLE_F32, .rank = 4, .shape = {5, 1, 2, 1}, .strides = {2, 2, 1, 1}};
  const heddle_tensor lengths_view = {.data = lengths, .dtype = HEDDLE_I32, .rank = 1, .shape = {2}, .strides = {1}};
  heddle_tensor list_view = lengths_view, starts_view = lengths_view, o_view = rows;
  list_view.data = list;
  list_view.shape[0] = 5;
  starts_view.data = starts;
  starts_view.shape[0] = 3;
  o_view.data = o;
  const heddle_append append = {.struct_size = sizeof append,
                                .k = &rows,
                                .v = &rows,
                                .k_cache = &pages,
                                .v_cache = NULL,
                                .kv_lengths = &lengths_view,
                                .page_table = &list_view,
                                .page_starts = &starts_view};
  heddle_append keys_alone = append;
  keys_alone.v = NULL;
  EXPECT_OK(heddle_append_kv(&keys_alone));
  EXPECT(keys[0][0][0] == 10 && keys[2][1][0] == 20);  // row 2 of the first sequence, row 1 of the second
  for (int b = 0; b < 2; ++b) ++lengths[b];
  float q[2] = {0, 0};
  heddle_tensor q_view = rows;
  q_view.data = q;
  const heddle_attention_tensors tensors = {
      .struct_size = sizeof tensors, .q = &q_view, .k = &pages, .v = &pages, .o = &o_view};
  const heddle_attention_options options = {.struct_size = sizeof options,
                                            .kv_lengths = &lengths_view,
                                            .page_table = &list_view,
                                            .page_starts = &starts_view};
  EXPECT_OK(heddle_attention_into(&tensors, &options));
  EXPECT(fabsf(o[0][0] - 9) < 1e-5F && fabsf(o[1][0] - 12) < 1e-5F);  // means of 8, 9, 10 and of 4, 20
  // A promise changes nothing on a CPU, and comes as two arrays (since version 11).
  int32_t groups[2] = {0, -1};
  heddle_tensor groups_view = lengths_view;
  groups_view.data = groups;
  heddle_attention_options promised = options;
  promised.prefix_group = promised.prefix_len = &groups_view;
  EXPECT_OK(heddle_attention_into(&tensors, &promised));
  EXPECT(fabsf(o[0][0] - 9) < 1e-5F && fabsf(o[1][0] - 12) < 1e-5F);
  promised.prefix_len = NULL;
  EXPECT_ERROR(heddle_attention_into(&tensors, &promised), HEDDLE_ERROR_INVALID_ARGUMENT, "without prefix_len");
  starts[2] = 2;
  EXPECT_ERROR(heddle_attention_into(&tensors, &options), HEDDLE_ERROR_INVALID_ARGUMENT, "page_starts[2] is 2");
}

static void test_version_and_devices(void) {
  EXPECT(heddle_c_version() == HEDDLE_C_VERSION);
  EXPECT(strncmp(heddle_version(), "0.", 2) == 0);
  const char* json = NULL;
  EXPECT_OK(heddle_devices_json(&json));
  EXPECT(json != NULL && strstr(json, "\"kind\":\"cpu\"") != NULL && strstr(json, heddle_version()) != NULL);
  EXPECT((strstr(json, "\"kind\":\"cuda\"") != NULL) != (strstr(json, "\"cuda_missing\":") != NULL));
}

int main(void) {
  test_plain();
  test_mods();
  test_scale_and_sinks();
  test_normalizers();
  test_sequences();
  test_packed();
  test_descales();
  test_strides();
  test_merge();
  test_check();
  test_progress();
  test_calls_within_progress();
  test_backends();
  test_clamped_reads();
  test_append();
  test_listed_pages();
  test_version_and_devices();
  test_max_scores();
  test_lse_rest();
  return failures();
}
