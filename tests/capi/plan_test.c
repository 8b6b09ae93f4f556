// Plans from C: made once, run many times, from two threads, with their own workspace, bindings and errors.
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static bool in_window(int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx) {
  (void)b, (void)h;
  return q_idx >= kv_idx && q_idx - kv_idx <= 20;
}

static double softer(double s, int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx) {
  (void)b, (void)h, (void)q_idx, (void)kv_idx;
  return s * 0.5;
}

static double same_score(double s, int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx) {
  (void)b, (void)h, (void)q_idx, (void)kv_idx;
  return s * 2;
}

static const double kTolerance = 2e-5;

static attention_case plan_case(uint32_t seed) {
  attention_case c = {
      .batch = 2, .q_heads = 4, .kv_heads = 2, .q_rows = 150, .kv_rows = 130, .qk_dim = 24, .v_dim = 16};
  c.attends = in_window;
  fill_case(&c, seed);
  return c;
}

static const heddle_param kParams[] = {{.name = "window", .type = HEDDLE_PARAM_I32, .integer = 20},
                                       {.name = "factor", .type = HEDDLE_PARAM_F32, .real = 2}};

// score * factor, a window of `window`. The plan needs neither the case's memory nor the options afterwards.
static heddle_plan* make_plan(void) {
  attention_case c = plan_case(1);
  c.q_view.data = c.k_view.data = c.v_view.data = c.o_view.data = c.lse_view.data = NULL;
  char mask[] = "q_idx >= kv_idx and q_idx - kv_idx <= window";
  heddle_bindings bindings = {sizeof bindings, kParams, 2, NULL, 0};
  const heddle_attention_options options = {
      .struct_size = sizeof options, .score_mod = "score * factor", .mask_mod = mask, .bindings = &bindings};
  const heddle_attention_tensors tensors = tensors_of(&c, true);
  heddle_plan* plan = NULL;
  EXPECT_OK(heddle_plan_create(&tensors, &options, &plan));
  EXPECT(plan != NULL);
  memset(mask, 'x', sizeof mask - 1);
  bindings.params = NULL;
  free_case(&c);
  return plan;
}

static void expect_run(const heddle_plan* plan, attention_case* c, const heddle_run_options* options) {
  const heddle_attention_tensors tensors = tensors_of(c, true);
  clear_outputs(c);
  EXPECT_OK(heddle_plan_run(plan, &tensors, options));
  EXPECT(largest_error(c, true) < kTolerance);
}

static void test_runs(void) {
  heddle_plan* plan = make_plan();
  attention_case c = plan_case(2);
  c.score = same_score;
  expect_run(plan, &c, NULL);
  heddle_run_options options = {.struct_size = sizeof options};
  expect_run(plan, &c, &options);

  int64_t bytes = -1;
  EXPECT_OK(heddle_plan_workspace_bytes(plan, &bytes));
  EXPECT(bytes >= 0);
  options.workspace = aligned_alloc(64, (size_t)(bytes / 64 + 1) * 64);
  expect_run(plan, &c, &options);

  const heddle_param params[] = {{.name = "window", .type = HEDDLE_PARAM_I32, .integer = 20},
                                 {.name = "factor", .type = HEDDLE_PARAM_F32, .real = 0.5}};
  const heddle_bindings bindings = {sizeof bindings, params, 2, NULL, 0};
  options.bindings = &bindings;
  c.score = softer;
  expect_run(plan, &c, &options);
  free(options.workspace);
  free_case(&c);
  heddle_plan_destroy(plan);
  heddle_plan_destroy(NULL);
}

static void test_update(void) {
  heddle_plan* plan = make_plan();
  attention_case c = plan_case(3);
  const heddle_attention_tensors tensors = tensors_of(&c, true);
  heddle_param params[] = {kParams[0], kParams[1]};
  params[0].integer = 7;
  const heddle_bindings all = {sizeof all, params, 2, NULL, 0},
                        window_alone = {sizeof window_alone, params, 1, NULL, 0};
  const heddle_run_options options = {.struct_size = sizeof options, .bindings = &all};
  EXPECT_ERROR(heddle_plan_run(plan, &tensors, &options), HEDDLE_ERROR_INVALID_ARGUMENT, "window");
  heddle_param misspelt[] = {params[0]};
  misspelt[0].name = "windw";
  const heddle_bindings unread = {sizeof unread, misspelt, 1, NULL, 0};
  EXPECT_ERROR(heddle_plan_update(plan, &unread), HEDDLE_ERROR_INVALID_ARGUMENT,
               "param 'windw' is given, but no mod reads it");
  EXPECT_OK(heddle_plan_update(plan, &window_alone));
  EXPECT_OK(heddle_plan_run(plan, &tensors, &options));
  EXPECT_OK(heddle_plan_run(plan, &tensors, NULL));
  const heddle_run_options planned_before = {
      .struct_size = sizeof planned_before,
      .bindings = &(heddle_bindings){sizeof(heddle_bindings), kParams, 2, NULL, 0}};
  EXPECT_ERROR(heddle_plan_run(plan, &tensors, &planned_before), HEDDLE_ERROR_INVALID_ARGUMENT, "window");
  free_case(&c);
  heddle_plan_destroy(plan);
}

// The case's queries, or keys, from column `first` on, as a view of their own; `of` keeps those before.
static heddle_tensor cut_off(heddle_tensor* of, int64_t first) {
  heddle_tensor rest = *of;
  rest.data = (float*)of->data + first;
  rest.shape[3] = of->shape[3] - first;
  of->shape[3] = first;
  return rest;
}

// A plan's runs bring their own q_rest and k_rest, also after an update of the mask.
static void test_rows_of_two_tensors(void) {
  heddle_plan* plan = NULL;
  for (uint32_t seed = 1; seed <= 3; ++seed) {
    attention_case c = plan_case(seed);
    attention_case cut = c;
    const heddle_tensor q_rest = cut_off(&cut.q_view, 10), k_rest = cut_off(&cut.k_view, 21);
    const heddle_attention_tensors tensors = tensors_of(&cut, true);
    const heddle_bindings bindings = {sizeof bindings, kParams, 1, NULL, 0};
    if (plan == NULL) {
      const heddle_param wide[] = {{.name = "window", .type = HEDDLE_PARAM_I32, .integer = 90}};
      const heddle_bindings before = {sizeof before, wide, 1, NULL, 0};
      const heddle_attention_options options = {.struct_size = sizeof options,
                                                .mask_mod = "q_idx >= kv_idx and q_idx - kv_idx <= window",
                                                .bindings = &before,
                                                .q_rest = &q_rest,
                                                .k_rest = &k_rest};
      EXPECT_OK(heddle_plan_create(&tensors, &options, &plan));
      EXPECT_OK(heddle_plan_update(plan, &bindings));
    }
    const heddle_run_options run = {.struct_size = sizeof run, .q_rest = &q_rest, .k_rest = &k_rest};
    EXPECT_OK(heddle_plan_run(plan, &tensors, &run));
    EXPECT(largest_error(&c, true) < kTolerance);
    heddle_tensor other = q_rest;
    other.shape[3] -= 1;
    const heddle_run_options wrong = {.struct_size = sizeof wrong, .q_rest = &other};
    EXPECT_ERROR(heddle_plan_run(plan, &tensors, &wrong), HEDDLE_ERROR_INVALID_ARGUMENT, "q_rest is f32");
    free_case(&c);
  }
  heddle_plan_destroy(plan);
}

static void test_explain(void) {
  heddle_plan* plan = make_plan();
  const char* text = NULL;
  EXPECT_OK(heddle_plan_explain(plan, &text));
  EXPECT(text != NULL && strstr(text, "problem") != NULL && strstr(text, "window") != NULL);
  const char* json = NULL;
  EXPECT_OK(heddle_plan_explain_json(plan, &json));
  EXPECT(json != NULL && json[0] == '{' && strstr(json, "\"problem\"") != NULL && strstr(json, "window") != NULL);
  int32_t backend = -1;
  EXPECT_OK(heddle_plan_backend(plan, &backend));
  EXPECT(backend == HEDDLE_BACKEND_CPU);
  heddle_plan_destroy(plan);
}

enum { kRuns = 20 };

typedef struct {
  const heddle_plan* plan;
  attention_case own;
  float* expected;  // o of a run on one thread
  bool fails;       // asks for what is refused between its runs
  heddle_status worst;
  bool equal, sentences_right;
} thread_work;

static void* run_often(void* argument) {
  thread_work* work = argument;
  const attention_case* c = &work->own;
  const size_t bytes = (size_t)(c->batch * c->q_heads * c->q_rows * c->v_dim) * sizeof(float);
  work->equal = work->sentences_right = true;
  for (int i = 0; i < kRuns; ++i) {
    const heddle_attention_tensors tensors = tensors_of(c, true);
    clear_outputs(&work->own);
    const heddle_status status = heddle_plan_run(work->plan, &tensors, NULL);
    if (status > work->worst) work->worst = status;
    work->equal = work->equal && memcmp(c->o, work->expected, bytes) == 0;
    if (work->fails) heddle_plan_run(NULL, &tensors, NULL);
    const bool has_sentence = heddle_last_error()[0] != '\0';
    work->sentences_right = work->sentences_right && has_sentence == work->fails;
  }
  return NULL;
}

static void test_two_threads(void) {
  heddle_plan* plan = make_plan();
  thread_work works[2];
  for (int i = 0; i < 2; ++i) {
    works[i] = (thread_work){.plan = plan, .own = plan_case(10 + (uint32_t)i), .fails = i == 1};
    works[i].own.score = same_score;
    expect_run(plan, &works[i].own, NULL);
    works[i].expected = works[i].own.o;
    works[i].own.o = nans(works[i].own.batch * works[i].own.q_heads * works[i].own.q_rows * works[i].own.v_dim);
    works[i].own.o_view.data = works[i].own.o;
  }
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) EXPECT(pthread_create(&threads[i], NULL, run_often, &works[i]) == 0);
  for (int i = 0; i < 2; ++i) {
    EXPECT(pthread_join(threads[i], NULL) == 0);
    EXPECT(works[i].worst == HEDDLE_OK);
    EXPECT(works[i].equal);
    EXPECT(works[i].sentences_right);
    free(works[i].expected);
    free_case(&works[i].own);
  }
  heddle_plan_destroy(plan);
}

static void* fail_otherwise(void* sentence_at_start) {
  *(bool*)sentence_at_start = heddle_last_error()[0] != '\0';
  heddle_devices_json(NULL);
  return NULL;
}

static void test_sentences_belong_to_threads(void) {
  EXPECT(heddle_plan_run(NULL, NULL, NULL) != HEDDLE_OK);
  pthread_t thread;
  bool sentence_at_start = true;
  EXPECT(pthread_create(&thread, NULL, fail_otherwise, &sentence_at_start) == 0);
  EXPECT(pthread_join(thread, NULL) == 0);
  EXPECT(!sentence_at_start);
  EXPECT(strstr(heddle_last_error(), "plan is null") != NULL);
}

int main(void) {
  test_runs();
  test_update();
  test_rows_of_two_tensors();
  test_explain();
  test_two_threads();
  test_sentences_belong_to_threads();
  return failures();
}
