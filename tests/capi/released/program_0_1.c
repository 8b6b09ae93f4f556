// A program of 0.1, compiled against its header (0.1/heddle/c.h) and linked with the library of today. It fills every
// struct, and calls every function but those for a GPU. Later versions do not change it.
#include <heddle/c.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SIZE = 2 * 3 * 9 * 8, ROWS = 2 * 3 * 9 };

static int wrong = 0;
static float q[SIZE], k[SIZE], v[SIZE], o[SIZE], lse[ROWS], d_o[SIZE], dq[SIZE], dk[SIZE], dv[SIZE];

static void expect(int holds, const char* what, int line) {
  if (holds) return;
  fprintf(stderr, "line %d: %s; %s\n", line, what, heddle_last_error());
  ++wrong;
}
#define EXPECT(condition) expect((condition), #condition, __LINE__)
#define OK(call) EXPECT((call) == HEDDLE_OK)

static heddle_tensor rows(void* data, int32_t rank, int64_t dim) {
  heddle_tensor x = {data, HEDDLE_F32, HEDDLE_DEVICE_CPU, 0, rank, {2, 3, 9, dim}, {27 * dim, 9 * dim, dim, 1}};
  if (rank == 3) x.strides[0] = 27, x.strides[1] = 9, x.strides[2] = 1;
  return x;
}

static heddle_tensor vector(void* data, int32_t dtype, int64_t count) {
  const heddle_tensor x = {data, dtype, HEDDLE_DEVICE_CPU, 0, 1, {count}, {1}};
  return x;
}

static int events = 0;
static void hear(const char* event, void* context) {
  if (strstr(event, "\"event\":\"plan\"") != NULL) ++*(int*)context;
}

static double done = 0;
static void follow(double fraction, void* context) { *(double*)context = fraction; }

int main(void) {
  for (int i = 0; i < SIZE; ++i) {
    q[i] = (float)sin(i), k[i] = (float)sin(2 * i + 1), v[i] = (float)sin(3 * i + 2), d_o[i] = (float)cos(i);
  }
  EXPECT(heddle_c_version() >= HEDDLE_C_VERSION && strlen(heddle_version()) > 4);
  const char* text = NULL;
  OK(heddle_devices_json(&text));
  EXPECT(strstr(text, "\"kind\":\"cpu\"") != NULL);

  const heddle_tensor tq = rows(q, 4, 8), tk = rows(k, 4, 8), tv = rows(v, 4, 8), to = rows(o, 4, 8),
                      tl = rows(lse, 3, 0);
  float slopes[3] = {0.5f, 0.25f, 0.125f}, sinks[3] = {0.1f, 0.2f, 0.3f}, d_slopes[3], d_sinks[3];
  const heddle_tensor ts = vector(slopes, HEDDLE_F32, 3), tsinks = vector(sinks, HEDDLE_F32, 3);
  const heddle_capture captures[] = {{"slopes", &ts}};
  const heddle_param params[] = {{"window", HEDDLE_PARAM_I32, 5, 0}, {"cap", HEDDLE_PARAM_F32, 0, 20}};
  const heddle_bindings bindings = {sizeof bindings, params, 2, captures, 1};
  const double scale = 0.3;
  int64_t lengths[2] = {9, 7};
  const heddle_tensor tlengths = vector(lengths, HEDDLE_I64, 2);
  heddle_attention_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  options.score_mod = "cap * tanh((score + slopes[h] * (kv_idx - q_idx)) / cap)";
  options.mask_mod = "q_idx >= kv_idx & q_idx - kv_idx < window";
  options.weight_mod = "0.5 if b == 1 else 1.0";
  options.bindings = &bindings;
  options.scale = &scale;
  options.sinks = &tsinks;
  options.kv_lengths = &tlengths;
  options.normalizer = HEDDLE_NORMALIZER_SOFTMAX;
  options.backend = HEDDLE_BACKEND_CPU;
  options.tuning = HEDDLE_TUNING_OFF;
  options.threads = 1;
  options.progress = follow, options.progress_context = &done;
  heddle_attention_tensors tensors = {sizeof tensors, &tq, &tk, &tv, &to, &tl, NULL, NULL};
  int32_t passed = 0;
  OK(heddle_set_event_listener(hear, &events));
  OK(heddle_attention_into(&tensors, &options));
  EXPECT(events == 1);
  OK(heddle_set_event_listener(NULL, NULL));
  OK(heddle_check_attention(&tensors, &options, &passed, &text));
  EXPECT(passed == 1 && strlen(text) > 0);
  OK(heddle_counts_json(&text));
  EXPECT(heddle_use_archive("not_there.archive") == HEDDLE_ERROR_IO);

  const heddle_tensor tdo = rows(d_o, 4, 8), tdq = rows(dq, 4, 8), tdk = rows(dk, 4, 8), tdv = rows(dv, 4, 8);
  const heddle_tensor tds = vector(d_slopes, HEDDLE_F32, 3), tdsinks = vector(d_sinks, HEDDLE_F32, 3);
  const heddle_gradient gradients[] = {{"slopes", &tds}};
  heddle_backward_tensors backward = {sizeof backward, &tq,       &tk, &tv,  &to, &tl, &tdo, NULL, &tdq, &tdk, &tdv,
                                      &tdsinks,        gradients, 1,   NULL, 0,   NULL};
  OK(heddle_attention_backward_into(&backward, &options));
  passed = 0;
  OK(heddle_check_backward(&backward, &options, &passed, NULL));
  EXPECT(passed == 1);

  heddle_plan *plan = NULL, *backward_plan = NULL;
  OK(heddle_plan_create(&tensors, &options, &plan));
  int64_t bytes = -1;
  int32_t backend = -1;
  OK(heddle_plan_workspace_bytes(plan, &bytes));
  OK(heddle_plan_backend(plan, &backend));
  EXPECT(bytes >= 0 && backend == HEDDLE_BACKEND_CPU);
  OK(heddle_plan_explain(plan, &text));
  OK(heddle_plan_explain_json(plan, &text));
  const heddle_run_options run = {sizeof run, NULL, NULL, NULL, NULL, NULL};
  memset(o, 0, sizeof o);
  OK(heddle_plan_run(plan, &tensors, &run));
  passed = 0;
  OK(heddle_check_attention(&tensors, &options, &passed, NULL));
  EXPECT(passed == 1);
  const heddle_param wider[] = {{"window", HEDDLE_PARAM_I32, 7, 0}};
  const heddle_bindings changed = {sizeof changed, wider, 1, NULL, 0};
  OK(heddle_plan_update(plan, &changed));
  OK(heddle_plan_create_backward(&backward, &options, &backward_plan));
  OK(heddle_plan_run_backward(backward_plan, &backward, NULL));
  heddle_plan_destroy(plan);
  heddle_plan_destroy(backward_plan);

  const heddle_sequence sequences[] = {{0, 9, 0, 9, 0, 0}, {0, 9, 0, 7, 0, 0}};
  heddle_block_mask_options mask_options;
  memset(&mask_options, 0, sizeof mask_options);
  mask_options.struct_size = sizeof mask_options;
  mask_options.heads = 3;
  mask_options.sequences = sequences, mask_options.sequence_count = 2, mask_options.sequence_size = sizeof sequences[0];
  mask_options.q_block = 4, mask_options.kv_block = 4;
  mask_options.mask_mod = "q_idx >= kv_idx";
  heddle_block_mask* mask = NULL;
  OK(heddle_block_mask_create(&mask_options, &mask));
  OK(heddle_block_mask_text(mask, 0, 0, &text));
  EXPECT(strncmp(text, "+..\n#+.\n###", 11) == 0);
  heddle_attention_options masked = {.struct_size = sizeof masked, .kv_lengths = &tlengths, .block_mask = mask};
  OK(heddle_attention_into(&tensors, &masked));
  passed = 0;
  OK(heddle_check_attention(&tensors, &masked, &passed, NULL));
  EXPECT(passed == 1);
  heddle_block_mask_destroy(mask);

  const heddle_tensor o_parts[] = {to, to}, lse_parts[] = {tl, tl};
  OK(heddle_merge_states(o_parts, lse_parts, 2, &to, &tl));
  OK(heddle_merge_states_on(o_parts, lse_parts, 2, &to, &tl, NULL));

  float k_cache[2 * 3 * 20 * 8] = {0}, v_cache[2 * 3 * 20 * 8] = {0};
  heddle_tensor tkc = {k_cache, HEDDLE_F32, HEDDLE_DEVICE_CPU, 0, 4, {2, 3, 20, 8}, {480, 160, 8, 1}}, tvc = tkc;
  tvc.data = v_cache;
  int32_t before[2] = {0, 4};
  const heddle_tensor tbefore = vector(before, HEDDLE_I32, 2);
  heddle_append append;
  memset(&append, 0, sizeof append);
  append.struct_size = sizeof append;
  append.k = &tk, append.v = &tv, append.k_cache = &tkc, append.v_cache = &tvc, append.kv_lengths = &tbefore;
  OK(heddle_append_kv(&append));
  EXPECT(k_cache[0] == k[0] && k_cache[480 + 4 * 8] == k[216] && v_cache[480 + 4 * 8 + 3] == v[219]);

  OK(heddle_clear_plan_cache());
  EXPECT(heddle_attention_into(NULL, NULL) == HEDDLE_ERROR_INVALID_ARGUMENT && strlen(heddle_last_error()) > 0);
  EXPECT(heddle_attention_into(&tensors,
                               &(heddle_attention_options){.struct_size = sizeof options, .score_mod = "oops("}) ==
         HEDDLE_ERROR_INVALID_ARGUMENT);
  puts(wrong == 0 ? "passed" : "failed");
  return wrong != 0;
}
