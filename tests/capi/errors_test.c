// Every way to be refused from C: the code, and the sentence that names the argument.
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

static attention_case c;
static heddle_attention_tensors tensors;
static heddle_attention_options options;

// Arguments of the next failing call; each test changes one of them.
static void start(void) {
  free_case(&c);
  c = (attention_case){.batch = 1, .q_heads = 2, .kv_heads = 1, .q_rows = 5, .kv_rows = 7, .qk_dim = 8, .v_dim = 8};
  fill_case(&c, 1);
  tensors = tensors_of(&c, true);
  options = (heddle_attention_options){.struct_size = sizeof options};
}

static void expect_refused(heddle_status code, const char* sentence, int line) {
  heddle_plan* plan = (heddle_plan*)&c;
  expect_error(heddle_plan_create(&tensors, &options, &plan), code, sentence, "heddle_plan_create", __FILE__, line);
  EXPECT(plan == NULL);
  expect_error(heddle_attention_into(&tensors, &options), code, sentence, "heddle_attention_into", __FILE__, line);
  EXPECT(isnan(c.o[0]));  // nothing was written
  int32_t passed = 7;
  expect_error(heddle_check_attention(&tensors, &options, &passed, NULL), code, sentence, "heddle_check_attention",
               __FILE__, line);
  EXPECT(passed == 7);
  start();
}
#define EXPECT_INVALID(sentence) expect_refused(HEDDLE_ERROR_INVALID_ARGUMENT, (sentence), __LINE__)

static void test_null_pointers(void) {
  int32_t number = 0;
  int64_t bytes = 0;
  const char* text = NULL;
  heddle_plan* plan = NULL;
  const heddle_status invalid = HEDDLE_ERROR_INVALID_ARGUMENT;
  EXPECT_ERROR(heddle_attention_into(NULL, NULL), invalid, "tensors is null; a heddle_attention_tensors is accepted");
  EXPECT_ERROR(heddle_plan_create(NULL, NULL, &plan), invalid, "tensors is null");
  EXPECT_ERROR(heddle_plan_create(&tensors, NULL, NULL), invalid, "plan is null");
  EXPECT_ERROR(heddle_plan_run(NULL, &tensors, NULL), invalid, "plan is null; a heddle_plan is accepted");
  EXPECT_ERROR(heddle_plan_update(NULL, NULL), invalid, "plan is null");
  EXPECT_ERROR(heddle_plan_workspace_bytes(NULL, &bytes), invalid, "plan is null");
  EXPECT_ERROR(heddle_plan_backend(NULL, &number), invalid, "plan is null");
  EXPECT_ERROR(heddle_plan_explain(NULL, &text), invalid, "plan is null");
  EXPECT_ERROR(heddle_plan_explain_json(NULL, &text), invalid, "plan is null");
  EXPECT_ERROR(heddle_devices_json(NULL), invalid, "json is null");
  EXPECT_ERROR(heddle_check_attention(&tensors, NULL, NULL, NULL), invalid, "passed is null");
  EXPECT_ERROR(heddle_merge_states(NULL, &c.lse_view, 1, &c.o_view, NULL), invalid, "o_parts is null");
  EXPECT_ERROR(heddle_merge_states(&c.o_view, NULL, 1, &c.o_view, NULL), invalid, "lse_parts is null");
  EXPECT_ERROR(heddle_merge_states(&c.o_view, &c.lse_view, 1, NULL, NULL), invalid, "o is null");
  EXPECT_ERROR(heddle_merge_states(&c.o_view, &c.lse_view, 0, &c.o_view, NULL), invalid, "count is 0");
  EXPECT_ERROR(heddle_merge_states_on(NULL, &c.lse_view, 1, &c.o_view, NULL, NULL), invalid, "o_parts is null");

  EXPECT_OK(heddle_plan_create(&tensors, NULL, &plan));
  EXPECT_ERROR(heddle_plan_run(plan, NULL, NULL), invalid, "tensors is null");
  EXPECT_ERROR(heddle_plan_update(plan, NULL), invalid, "bindings is null");
  EXPECT_ERROR(heddle_plan_workspace_bytes(plan, NULL), invalid, "bytes is null");
  EXPECT_ERROR(heddle_plan_backend(plan, NULL), invalid, "backend is null");
  EXPECT_ERROR(heddle_plan_explain(plan, NULL), invalid, "text is null");
  EXPECT_ERROR(heddle_plan_explain_json(plan, NULL), invalid, "json is null");
  heddle_plan_destroy(plan);

  tensors.q = NULL;
  EXPECT_INVALID("q is null; a heddle_tensor is accepted");
  tensors.k = NULL;
  EXPECT_INVALID("k is null");
  tensors.v = NULL;
  EXPECT_INVALID("v is null");
  tensors.o = NULL;
  EXPECT_INVALID("o is null");
  c.q_view.data = NULL;
  EXPECT_ERROR(heddle_attention_into(&tensors, NULL), invalid, "q is f32 [1, 2, 5, 8] but its data is null");
  start();
}

// A caller of a later version: the same struct, and a field that this library does not know.
typedef struct {
  heddle_attention_options known;
  uint64_t later;
} newer_options;

static void test_struct_sizes(void) {
  tensors.struct_size = 0;
  EXPECT_INVALID("tensors.struct_size is 0; the sizeof of the struct, 64 here, is accepted");
  tensors.struct_size = offsetof(heddle_attention_tensors, max_scores) - 1;  // version 1 had all before it
  EXPECT_INVALID("tensors.struct_size is 47");
  options.struct_size = 4097;
  EXPECT_INVALID("options.struct_size is 4097; the sizeof of the struct, 280 here, is accepted");
  options.struct_size = sizeof options - 3;  // ends inside a pointer
  EXPECT_INVALID("options.struct_size is 277; the sizeof of the struct, 280 here, is accepted");
  options.struct_size = UINT64_MAX;
  EXPECT_INVALID("options.struct_size is 18446744073709551615");
  const heddle_bindings bindings = {.struct_size = 8};
  options.bindings = &bindings;
  EXPECT_INVALID("bindings.struct_size is 8");

  newer_options newer = {.known = {.struct_size = sizeof newer, .mask_mod = "q_idx >= kv_idx"}};
  EXPECT_OK(heddle_attention_into(&tensors, &newer.known));
  newer.later = (uint64_t)1 << 63;
  EXPECT_ERROR(heddle_attention_into(&tensors, &newer.known), HEDDLE_ERROR_UNSUPPORTED,
               "options uses fields past byte 280, newer than version 19");

  heddle_plan* plan = NULL;
  const heddle_run_options run = {.struct_size = 31};
  EXPECT_OK(heddle_plan_create(&tensors, NULL, &plan));
  EXPECT_ERROR(heddle_plan_run(plan, &tensors, &run), HEDDLE_ERROR_INVALID_ARGUMENT, "options.struct_size is 31");
  heddle_plan_destroy(plan);
  start();
}

static void test_tensors(void) {
  c.q_view.dtype = 99;
  EXPECT_INVALID("q.dtype is 99; 0 to 14 are accepted");
  c.v_view.dtype = -1;
  EXPECT_INVALID("v.dtype is -1");
  c.k_view.dtype = HEDDLE_I32;
  EXPECT_INVALID("k is i32; f64, f32, f16, bf16, e4m3 and e5m2 are accepted");
  c.k_view.rank = 9;
  EXPECT_INVALID("k.rank is 9; 0 to 8 are accepted");
  c.lse_view.rank = -1;
  EXPECT_INVALID("lse.rank is -1");
  c.o_view.device_kind = 3;
  EXPECT_INVALID("o.device_kind is 3; 0 to 2 are accepted");
  c.q_view.rank = 3;
  EXPECT_INVALID("q has shape [1, 2, 5]; 4 axes [B, Hq, Sq, Dqk] are accepted");
  c.k_view.shape[3] = 4;
  EXPECT_INVALID("q has head dimension 8 and k 4");
  c.o_view.shape[2] = 4;
  EXPECT_INVALID("o has shape [1, 2, 4, 8]; [1, 2, 5, 8] is accepted");
  c.q_view.shape[0] = -1;
  EXPECT_INVALID("q has shape [-1, 2, 5, 8]");
  c.q_view.strides[3] = 2;
  EXPECT_INVALID("q has strides [80, 40, 8, 2]");
  for (int axis = 0; axis < 3; ++axis) c.q_view.shape[axis] = INT32_MAX, c.q_view.strides[axis] = 0;
  expect_refused(HEDDLE_ERROR_OUT_OF_MEMORY, "overflows 64 bits", __LINE__);
  c.q_view.device_kind = c.k_view.device_kind = c.v_view.device_kind = HEDDLE_DEVICE_ROCM;
  c.o_view.device_kind = c.lse_view.device_kind = HEDDLE_DEVICE_ROCM;
  EXPECT_ERROR(heddle_attention_into(&tensors, NULL), HEDDLE_ERROR_UNSUPPORTED, "rocm");
  start();
}

static void test_mods(void) {
  options.mask_mod = "q_idx >= kvidx";
  EXPECT_INVALID("mask_mod: ");
  options.mask_mod = "q_idx >= kvidx";
  EXPECT_INVALID("\n  q_idx >= kvidx\n           ^");  // a caret under the name
  options.score_mod = "score +";
  EXPECT_INVALID("score_mod: ");
  options.weight_mod = "q_idx >= kv_idx";
  EXPECT_INVALID("weight");
  options.mask_mod = "";
  EXPECT_INVALID("mask_mod: ");
}

static void test_numbers(void) {
  options.normalizer = 3;
  EXPECT_INVALID("options.normalizer is 3; 0 to 2 are accepted");
  options.backend = -1;
  EXPECT_INVALID("options.backend is -1; 0 to 4 are accepted");
  options.reserved = 1;
  EXPECT_INVALID("options.reserved is 1; 0 is accepted");
  options.tuning = 5;
  EXPECT_INVALID("options.tuning is 5; 0 to 4 are accepted");
  options.deterministic = 2;
  EXPECT_INVALID("options.deterministic is 2; 0 and 1 are accepted");
  options.partial_keys = 2;
  EXPECT_INVALID("options.partial_keys is 2; 0 and 1 are accepted");
  options.batch_invariant = 2;
  EXPECT_INVALID("options.batch_invariant is 2; 0 and 1 are accepted");
  options.threads = -1;
  EXPECT_INVALID("threads is -1");
  const double scale = NAN;
  options.scale = &scale;
  EXPECT_INVALID("scale is nan");
  const double too_large = -1e39;
  options.scale = &too_large;
  EXPECT_INVALID("scale is -1e+39; f32 inputs are computed in f32");
  options.normalizer = HEDDLE_NORMALIZER_NONE;
  EXPECT_INVALID("lse is asked for with normalizer none");
}

// Each tensor option under its own name.
static void test_tensor_options(void) {
  const heddle_tensor wrong = {.data = &c, .dtype = HEDDLE_F32, .rank = -3};
  const heddle_tensor** const fields[] = {
      &options.sinks,         &options.q_lengths,  &options.kv_lengths, &options.cu_seqlens_q,
      &options.cu_seqlens_kv, &options.q_start,    &options.q_descale,  &options.k_descale,
      &options.v_descale,     &options.page_table, &options.kv_start,   &options.page_starts,
      &options.prefix_group,  &options.prefix_len, &options.q_rest,     &options.k_rest};
  const char* const sentences[] = {
      "sinks.rank is -3",         "q_lengths.rank is -3",  "kv_lengths.rank is -3", "cu_seqlens_q.rank is -3",
      "cu_seqlens_kv.rank is -3", "q_start.rank is -3",    "q_descale.rank is -3",  "k_descale.rank is -3",
      "v_descale.rank is -3",     "page_table.rank is -3", "kv_start.rank is -3",   "page_starts.rank is -3",
      "prefix_group.rank is -3",  "prefix_len.rank is -3", "q_rest.rank is -3",     "k_rest.rank is -3"};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; ++i) {
    *fields[i] = &wrong;
    EXPECT_INVALID(sentences[i]);
  }
}

static void test_bindings(void) {
  heddle_param params[] = {{.name = "x", .type = HEDDLE_PARAM_F32}, {.name = "y", .type = HEDDLE_PARAM_BOOL}};
  heddle_capture captures[] = {{"z", &c.q_view}};
  heddle_bindings bindings = {sizeof bindings, params, 2, captures, 1};
#define EXPECT_INVALID_BINDINGS(sentence) \
  options.bindings = &bindings;           \
  EXPECT_INVALID(sentence)

  bindings.param_count = -1;
  EXPECT_INVALID_BINDINGS("bindings.param_count is -1; at least 0 is accepted");
  bindings.param_count = 2;
  bindings.params = NULL;
  EXPECT_INVALID_BINDINGS("bindings.param_count is 2, but bindings.params is null");
  bindings.params = params;
  bindings.captures = NULL;
  EXPECT_INVALID_BINDINGS("bindings.capture_count is 1, but bindings.captures is null");
  bindings.captures = captures;
  params[1].name = NULL;
  EXPECT_INVALID_BINDINGS("bindings.params[1].name is null");
  params[1].name = "";
  EXPECT_INVALID_BINDINGS("bindings.params[1].name is empty");
  params[1].name = "x";
  EXPECT_INVALID_BINDINGS("bindings.params[1].name is 'x', which is given twice");
  params[1].name = "True";
  EXPECT_INVALID_BINDINGS("bindings.params[1].name: a param cannot be named 'True': the name has a meaning of its own");
  params[1].name = "y";
  captures[0].name = "a b";
  EXPECT_INVALID_BINDINGS("bindings.captures[0].name: a capture's name is letters, digits and _");
  captures[0].name = "y";
  EXPECT_INVALID_BINDINGS("bindings.captures[0].name is 'y', which is given twice");
  captures[0].name = "z";
  captures[0].tensor = NULL;
  EXPECT_INVALID_BINDINGS("capture 'z' is null; a heddle_tensor is accepted");
  captures[0].tensor = &c.q_view;
  params[0].type = 3;
  EXPECT_INVALID_BINDINGS("param 'x' has type 3");
  params[0].type = HEDDLE_PARAM_F32;
  params[1].integer = 2;
  EXPECT_INVALID_BINDINGS("param 'y' is a boolean of value 2; 0 and 1 are accepted");
}

static void test_runs(void) {
  heddle_plan* plan = NULL;
  EXPECT_OK(heddle_plan_create(&tensors, NULL, &plan));
  tensors.lse = NULL;
  EXPECT_ERROR(heddle_plan_run(plan, &tensors, NULL), HEDDLE_ERROR_INVALID_ARGUMENT, "lse");
  tensors.lse = &c.lse_view;
  c.q_view.shape[2] = 4;
  EXPECT_ERROR(heddle_plan_run(plan, &tensors, NULL), HEDDLE_ERROR_INVALID_ARGUMENT,
               "the planned f32 [1, 2, 5, 8] with strides [80, 40, 8, 1] is accepted");
  c.q_view.shape[2] = 5;
  const heddle_run_options misaligned = {.struct_size = sizeof misaligned, .workspace = &c.o[1]};
  EXPECT_ERROR(heddle_plan_run(plan, &tensors, &misaligned), HEDDLE_ERROR_INVALID_ARGUMENT,
               "; an address that 64 divides is accepted");
  EXPECT(isnan(c.o[0]));
  heddle_plan_destroy(plan);
}

// A sentence stays until the thread's next call; versions do not count as one.
static void test_last_error(void) {
  EXPECT(heddle_plan_run(NULL, NULL, NULL) == HEDDLE_ERROR_INVALID_ARGUMENT);
  EXPECT(strcmp(heddle_last_error(), "plan is null; a heddle_plan is accepted") == 0);
  EXPECT(heddle_c_version() == 19 && heddle_version() != NULL);
  EXPECT(strcmp(heddle_last_error(), "plan is null; a heddle_plan is accepted") == 0);
  EXPECT(heddle_attention_into(&tensors, NULL) == HEDDLE_OK);
  EXPECT(strcmp(heddle_last_error(), "") == 0);
}

// The last event that the listener heard, and how many.
static char heard[4096];
static int heard_count;
static void hear(const char* event, void* context) {
  snprintf(heard, sizeof heard, "%s", event);
  *(int*)context += 1;
}

static void test_events(void) {
  EXPECT_OK(heddle_clear_plan_cache());
  EXPECT_OK(heddle_set_event_listener(hear, &heard_count));
  EXPECT_OK(heddle_attention_into(&tensors, NULL));
  EXPECT(heard_count == 1 && strstr(heard, "{\"event\":\"plan\"") == heard && strstr(heard, "\"pass\":\"forward\""));
  EXPECT_OK(heddle_attention_into(&tensors, NULL));
  EXPECT(heard_count == 1);  // a kept plan is no event
  const heddle_attention_options wrong = {.struct_size = sizeof wrong, .mask_mod = "q_idx >= kv_idx", .threads = -1};
  EXPECT(heddle_attention_into(&tensors, &wrong) == HEDDLE_ERROR_INVALID_ARGUMENT);
  EXPECT(heard_count == 2 && strstr(heard, "\"event\":\"refusal\"") && strstr(heard, "\"code\":\"invalid_argument\""));
  EXPECT_OK(heddle_set_event_listener(NULL, NULL));
  EXPECT_OK(heddle_clear_plan_cache());
  EXPECT_OK(heddle_attention_into(&tensors, NULL));
  EXPECT(heard_count == 2);
  const char* counts = NULL;
  EXPECT_OK(heddle_counts_json(&counts));
  EXPECT(strstr(counts, "{\"plans\":{\"hits\":") == counts && strstr(counts, "\"kernels\":{\"compiled\":0,"));
  EXPECT(heddle_counts_json(NULL) == HEDDLE_ERROR_INVALID_ARGUMENT);
}

static void test_archives(void) {
  EXPECT(heddle_use_archive(NULL) == HEDDLE_ERROR_INVALID_ARGUMENT);
  EXPECT(heddle_use_archive("not_there.archive") == HEDDLE_ERROR_IO);
  EXPECT(strstr(heddle_last_error(), "the archive not_there.archive cannot be opened") == heddle_last_error());
}

int main(void) {
  EXPECT(strcmp(heddle_last_error(), "") == 0);
  start();
  test_null_pointers();
  test_struct_sizes();
  test_tensors();
  test_mods();
  test_numbers();
  test_tensor_options();
  test_bindings();
  test_runs();
  test_last_error();
  test_events();
  test_archives();
  free_case(&c);
  return failures();
}
