// The backward from C, in one call and as a plan, against finite differences of plain loops.
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static const float kStep = 0x1p-9f;     // exact beside numbers in [-1, 1) of 23 bits
static const double kTolerance = 2e-5;  // of central differences with this step, and of f32 gradients near 1

enum { kHeads = 4 };
static float slopes[kHeads] = {0.5f, -0.25f, 0.125f, 1};
static float sinks[kHeads] = {0.5f, -1, 2, 0};
static float cap = 3;

static double capped_alibi(double s, int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx) {
  (void)b;
  return cap * tanh(s / cap) + (double)slopes[h] * (double)(kv_idx - q_idx);
}
static bool is_causal(int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx) {
  (void)b, (void)h;
  return q_idx >= kv_idx;
}

// One attention, its incoming gradients, and the gradients to compute, NaN until something writes them.
static attention_case c;
static float *d_o, *d_lse, *dq, *dk, *dv, d_sinks[kHeads], d_slopes[kHeads], d_cap;
static heddle_tensor slopes_view, sinks_view, views[8];
static heddle_param params[1];
static heddle_capture captures[1];
static heddle_gradient d_captures[1], d_params[1];
static heddle_bindings bindings;
static heddle_attention_options options;
static heddle_backward_tensors tensors;

static int64_t q_count(void) { return c.batch * c.q_heads * c.q_rows * c.qk_dim; }
static int64_t kv_count(void) { return c.batch * c.kv_heads * c.kv_rows * c.qk_dim; }

static void clear_gradients(void) {
  for (int64_t i = 0; i < q_count(); ++i) dq[i] = NAN;
  for (int64_t i = 0; i < kv_count(); ++i) dk[i] = dv[i] = NAN;
  for (int i = 0; i < kHeads; ++i) d_sinks[i] = d_slopes[i] = NAN;
  d_cap = NAN;
}

static void start(void) {
  c = (attention_case){.batch = 2,
                       .q_heads = kHeads,
                       .kv_heads = 2,
                       .q_rows = 5,
                       .kv_rows = 6,
                       .qk_dim = 8,
                       .v_dim = 8,
                       .sinks = sinks,
                       .score = capped_alibi,
                       .attends = is_causal};
  fill_case(&c, 3);
  d_o = random_floats(q_count(), 7);
  d_lse = random_floats(q_count() / c.qk_dim, 8);
  dq = nans(q_count());
  dk = nans(kv_count());
  dv = nans(kv_count());
  const int64_t heads[] = {kHeads};
  slopes_view = tensor_of(slopes, HEDDLE_F32, 1, heads);
  sinks_view = tensor_of(sinks, HEDDLE_F32, 1, heads);
  params[0] = (heddle_param){.name = "cap", .type = HEDDLE_PARAM_F32, .real = cap};
  captures[0] = (heddle_capture){"slopes", &slopes_view};
  bindings = (heddle_bindings){sizeof bindings, params, 1, captures, 1};
  options = (heddle_attention_options){.struct_size = sizeof options,
                                       .score_mod = "cap * tanh(score / cap) + slopes[h] * (kv_idx - q_idx)",
                                       .mask_mod = "q_idx >= kv_idx",
                                       .bindings = &bindings,
                                       .sinks = &sinks_view,
                                       .backend = HEDDLE_BACKEND_REFERENCE,
                                       .deterministic = 1};
  const heddle_attention_tensors forward = tensors_of(&c, true);
  EXPECT_OK(heddle_attention_into(&forward, &options));
  float* const memory[] = {d_o, d_lse, dq, dk, dv, d_sinks, d_slopes, &d_cap};
  const heddle_tensor like[] = {c.o_view, c.lse_view, c.q_view,    c.k_view,
                                c.v_view, sinks_view, slopes_view, tensor_of(NULL, HEDDLE_F32, 0, NULL)};
  for (int i = 0; i < 8; ++i) {
    views[i] = like[i];
    views[i].data = memory[i];
  }
  d_captures[0] = (heddle_gradient){"slopes", &views[6]};
  d_params[0] = (heddle_gradient){"cap", &views[7]};
  tensors = (heddle_backward_tensors){.struct_size = sizeof tensors,
                                      .q = &c.q_view,
                                      .k = &c.k_view,
                                      .v = &c.v_view,
                                      .o = &c.o_view,
                                      .lse = &c.lse_view,
                                      .d_o = &views[0],
                                      .d_lse = &views[1],
                                      .dq = &views[2],
                                      .dk = &views[3],
                                      .dv = &views[4],
                                      .d_sinks = &views[5],
                                      .d_captures = d_captures,
                                      .d_capture_count = 1,
                                      .d_params = d_params,
                                      .d_param_count = 1};
  clear_gradients();
}

static void finish(void) {
  float* const memory[] = {d_o, d_lse, dq, dk, dv};
  for (int i = 0; i < 5; ++i) free(memory[i]);
  free_case(&c);
}

// The largest difference between a gradient and central differences of the loss; infinite where NaN stands.
static double slope_error(float* input, const float* gradient, int64_t count) {
  double largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float kept = input[i];
    input[i] = kept + kStep;
    const double above = loss_of(&c, d_o, d_lse);
    input[i] = kept - kStep;
    const double below = loss_of(&c, d_o, d_lse);
    input[i] = kept;
    const double error = fabs((above - below) / (2 * (double)kStep) - gradient[i]);
    largest = isnan(error) ? INFINITY : fmax(largest, error);
  }
  return largest;
}

static void expect_right_gradients(void) {
  EXPECT(slope_error(c.q, dq, q_count()) < kTolerance);
  EXPECT(slope_error(c.k, dk, kv_count()) < kTolerance);
  EXPECT(slope_error(c.v, dv, kv_count()) < kTolerance);
  EXPECT(slope_error(sinks, d_sinks, kHeads) < kTolerance);
  EXPECT(slope_error(slopes, d_slopes, kHeads) < 10 * kTolerance);  // distances of up to 4 square in the third slope
  EXPECT(slope_error(&cap, &d_cap, 1) < kTolerance);
}

static void test_one_call(void) {
  start();
  EXPECT_OK(heddle_attention_backward_into(&tensors, &options));
  expect_right_gradients();
  finish();
}

static void test_what_is_not_asked_for(void) {
  start();
  tensors.dk = tensors.d_sinks = NULL;
  tensors.d_capture_count = tensors.d_param_count = 0;
  EXPECT_OK(heddle_attention_backward_into(&tensors, &options));
  EXPECT(slope_error(c.q, dq, q_count()) < kTolerance);
  EXPECT(slope_error(c.v, dv, kv_count()) < kTolerance);
  EXPECT(isnan(dk[0]) && isnan(d_sinks[0]) && isnan(d_slopes[0]) && isnan(d_cap));
  tensors.d_lse = NULL;
  EXPECT_OK(heddle_attention_backward_into(&tensors, &options));
  EXPECT(slope_error(c.q, dq, q_count()) > 1e-3);  // the loss has d_lse
  memset(d_lse, 0, (size_t)(c.batch * c.q_heads * c.q_rows) * sizeof(float));
  EXPECT(slope_error(c.q, dq, q_count()) < kTolerance);
  finish();
}

// Since version 8: p = exp((t - lse) - lse_rest), so that a row may say 1 of its lse in lse_rest.
static void test_lse_rest(void) {
  start();
  options.backend = HEDDLE_BACKEND_CPU;  // the reference computes its own lse
  float* const rest = random_floats(q_count() / c.qk_dim, 9);
  heddle_tensor view = c.lse_view;
  view.data = rest;
  for (int64_t i = 0; i < q_count() / c.qk_dim; ++i) c.lse[i] -= rest[i] = 1;
  tensors.lse_rest = &view;
  EXPECT_OK(heddle_attention_backward_into(&tensors, &options));
  expect_right_gradients();
  tensors.lse_rest = NULL;
  EXPECT_OK(heddle_attention_backward_into(&tensors, &options));
  EXPECT(slope_error(c.q, dq, q_count()) > 1e-3);
  free(rest);
  finish();
}

static void test_plan(void) {
  start();
  heddle_plan* plan = NULL;
  EXPECT_OK(heddle_plan_create_backward(&tensors, &options, &plan));
  int64_t bytes = -1;
  int32_t backend = -1;
  const char* text = NULL;
  EXPECT_OK(heddle_plan_workspace_bytes(plan, &bytes));
  EXPECT(bytes >= 0);
  EXPECT_OK(heddle_plan_backend(plan, &backend));
  EXPECT(backend == HEDDLE_BACKEND_REFERENCE);
  EXPECT_OK(heddle_plan_explain(plan, &text));
  EXPECT(strstr(text, "backward softmax") != NULL && strstr(text, "d 'slopes'") != NULL);
  EXPECT_OK(heddle_plan_run_backward(plan, &tensors, NULL));
  expect_right_gradients();

  cap = 1.5f;
  params[0].real = 1.5;
  const heddle_attention_tensors forward = tensors_of(&c, true);
  const heddle_run_options run = {.struct_size = sizeof run, .bindings = &bindings};
  EXPECT_OK(heddle_attention_into(&forward, &options));
  clear_gradients();
  EXPECT_OK(heddle_plan_run_backward(plan, &tensors, &run));
  expect_right_gradients();
  cap = 3;

  clear_gradients();
  const heddle_status invalid = HEDDLE_ERROR_INVALID_ARGUMENT;
  EXPECT_ERROR(heddle_plan_run(plan, &forward, NULL), invalid,
               "the plan is of a backward, and a forward's tensors are given");
  tensors.dk = NULL;
  EXPECT_ERROR(heddle_plan_run_backward(plan, &tensors, NULL), invalid, "dk is not given; the plan was made with it");
  EXPECT(isnan(dq[0]));
  heddle_plan_destroy(plan);
  EXPECT_OK(heddle_plan_create(&forward, &options, &plan));
  EXPECT_ERROR(heddle_plan_run_backward(plan, &tensors, NULL), invalid,
               "the plan is of a forward, and a backward's tensors are given");
  heddle_plan_destroy(plan);
  finish();
}

static void test_check(void) {
  start();
  int32_t passed = -1;
  const char* report = NULL;
  EXPECT_OK(heddle_attention_backward_into(&tensors, &options));
  EXPECT_OK(heddle_check_backward(&tensors, &options, &passed, &report));
  EXPECT(passed == 1);
  EXPECT(strstr(report, "d_captures['slopes']") != NULL && strstr(report, "FAILED") == NULL);
  dk[11] += 0.01f;
  EXPECT_OK(heddle_check_backward(&tensors, &options, &passed, &report));
  EXPECT(passed == 0);
  EXPECT(strstr(report, "FAILED") != NULL);
  EXPECT_OK(heddle_check_backward(&tensors, &options, &passed, NULL));
  finish();
}

static void expect_refused(heddle_status code, const char* sentence, int line) {
  heddle_plan* plan = (heddle_plan*)&c;
  expect_error(heddle_plan_create_backward(&tensors, &options, &plan), code, sentence, "heddle_plan_create_backward",
               __FILE__, line);
  EXPECT(plan == NULL);
  expect_error(heddle_attention_backward_into(&tensors, &options), code, sentence, "heddle_attention_backward_into",
               __FILE__, line);
  EXPECT(isnan(dq[0]));  // nothing was written
  int32_t passed = 7;
  expect_error(heddle_check_backward(&tensors, &options, &passed, NULL), code, sentence, "heddle_check_backward",
               __FILE__, line);
  EXPECT(passed == 7);
  finish();
  start();
}
#define EXPECT_INVALID(sentence) expect_refused(HEDDLE_ERROR_INVALID_ARGUMENT, (sentence), __LINE__)

static void test_refusals(void) {
  start();
  const heddle_status invalid = HEDDLE_ERROR_INVALID_ARGUMENT;
  heddle_plan* plan = NULL;
  EXPECT_ERROR(heddle_attention_backward_into(NULL, NULL), invalid,
               "tensors is null; a heddle_backward_tensors is accepted");
  EXPECT_ERROR(heddle_plan_create_backward(&tensors, &options, NULL), invalid, "plan is null");
  EXPECT_ERROR(heddle_plan_create_backward(NULL, &options, &plan), invalid, "tensors is null");
  EXPECT_ERROR(heddle_plan_run_backward(NULL, &tensors, NULL), invalid, "plan is null; a heddle_plan is accepted");
  EXPECT_ERROR(heddle_check_backward(&tensors, &options, NULL, NULL), invalid, "passed is null");
  tensors.struct_size = offsetof(heddle_backward_tensors, lse_rest) - 1;  // version 5 had all before it
  EXPECT_INVALID("tensors.struct_size is 127; the sizeof of the struct, 136 here, is accepted");

  const heddle_tensor** const required[] = {&tensors.q, &tensors.k, &tensors.v, &tensors.o, &tensors.d_o};
  const char* const names[] = {"q is null", "k is null", "v is null", "o is null", "d_o is null"};
  for (int i = 0; i < 5; ++i) {
    *required[i] = NULL;
    EXPECT_INVALID(names[i]);
  }
  tensors.lse = NULL;
  EXPECT_INVALID("lse is not given; the backward of softmax takes the lse that the forward stored");
  const heddle_tensor wrong = {.data = &c, .dtype = HEDDLE_F32, .rank = -3};
  const heddle_tensor** const optional[] = {&tensors.lse, &tensors.d_lse, &tensors.dq,
                                            &tensors.dk,  &tensors.dv,    &tensors.d_sinks};
  const char* const ranks[] = {"lse.rank is -3", "d_lse.rank is -3", "dq.rank is -3",
                               "dk.rank is -3",  "dv.rank is -3",    "d_sinks.rank is -3"};
  for (int i = 0; i < 6; ++i) {
    *optional[i] = &wrong;
    EXPECT_INVALID(ranks[i]);
  }

  tensors.d_capture_count = -1;
  EXPECT_INVALID("tensors.d_capture_count is -1; at least 0 is accepted");
  tensors.d_params = NULL;
  EXPECT_INVALID("tensors.d_param_count is 1, but tensors.d_params is null");
  d_captures[0].name = NULL;
  EXPECT_INVALID("tensors.d_captures[0].name is null; a name is accepted");
  d_captures[0].name = "slope";
  EXPECT_INVALID("d_captures['slope'] is given, but no mod reads it; 'slopes' is accepted");
  d_captures[0].tensor = NULL;
  EXPECT_INVALID("d_captures['slopes'] is null; a heddle_tensor is accepted");
  const heddle_gradient twice[] = {d_params[0], d_params[0]};
  tensors.d_params = twice;
  tensors.d_param_count = 2;
  EXPECT_INVALID("tensors.d_params[1].name is 'cap', which is given twice");
  tensors.dq = &c.q_view;
  EXPECT_ERROR(heddle_attention_backward_into(&tensors, &options), invalid, "dq overlaps q in memory");
  finish();
}

int main(void) {
  test_one_call();
  test_what_is_not_asked_for();
  test_lse_rest();
  test_plan();
  test_check();
  test_refusals();
  return failures();
}
