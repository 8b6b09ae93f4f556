#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed = 0;

int failures(void) {
  if (failed == 0) puts("passed");
  return failed != 0;
}

void expect(bool holds, const char* what, const char* file, int line) {
  if (holds) return;
  ++failed;
  printf("%s:%d: does not hold: %s\n", file, line, what);
}

void expect_ok(heddle_status status, const char* call, const char* file, int line) {
  if (status == HEDDLE_OK && strcmp(heddle_last_error(), "") == 0) return;
  ++failed;
  printf("%s:%d: %s returned %d: %s\n", file, line, call, status, heddle_last_error());
}

void expect_error(heddle_status status, heddle_status code, const char* part, const char* call, const char* file,
                  int line) {
  if (status == code && strstr(heddle_last_error(), part) != NULL) return;
  ++failed;
  printf("%s:%d: %s returned %d: '%s'; expected %d: '%s'\n", file, line, call, status, heddle_last_error(), code, part);
}

heddle_tensor tensor_of(void* data, int32_t dtype, int32_t rank, const int64_t* shape) {
  heddle_tensor tensor = {.data = data, .dtype = dtype, .rank = rank};
  int64_t stride = 1;
  for (int32_t axis = rank - 1; axis >= 0; --axis) {
    tensor.shape[axis] = shape[axis];
    tensor.strides[axis] = stride;
    stride *= shape[axis];
  }
  return tensor;
}

static float* allocate(int64_t count) {
  float* data = malloc((size_t)count * sizeof(float));
  if (data == NULL) abort();
  return data;
}

float* random_floats(int64_t count, uint32_t seed) {
  float* data = allocate(count);
  for (int64_t i = 0; i < count; ++i) {
    seed = seed * 1664525u + 1013904223u;
    data[i] = (float)((double)(seed >> 8) / (1 << 23) - 1);
  }
  return data;
}

float* nans(int64_t count) {
  float* data = allocate(count);
  for (int64_t i = 0; i < count; ++i) data[i] = NAN;
  return data;
}

static int64_t o_count(const attention_case* c) { return c->batch * c->q_heads * c->q_rows * c->v_dim; }
static int64_t lse_count(const attention_case* c) { return c->batch * c->q_heads * c->q_rows; }

void fill_case(attention_case* c, uint32_t seed) {
  const int64_t q_shape[] = {c->batch, c->q_heads, c->q_rows, c->qk_dim};
  const int64_t k_shape[] = {c->batch, c->kv_heads, c->kv_rows, c->qk_dim};
  const int64_t v_shape[] = {c->batch, c->kv_heads, c->kv_rows, c->v_dim};
  const int64_t o_shape[] = {c->batch, c->q_heads, c->q_rows, c->v_dim};
  c->q = random_floats(lse_count(c) * c->qk_dim, seed);
  c->k = random_floats(c->batch * c->kv_heads * c->kv_rows * c->qk_dim, seed + 1);
  c->v = random_floats(c->batch * c->kv_heads * c->kv_rows * c->v_dim, seed + 2);
  c->o = nans(o_count(c));
  c->lse = nans(lse_count(c));
  c->q_view = tensor_of(c->q, HEDDLE_F32, 4, q_shape);
  c->k_view = tensor_of(c->k, HEDDLE_F32, 4, k_shape);
  c->v_view = tensor_of(c->v, HEDDLE_F32, 4, v_shape);
  c->o_view = tensor_of(c->o, HEDDLE_F32, 4, o_shape);
  c->lse_view = tensor_of(c->lse, HEDDLE_F32, 3, o_shape);
}

void free_case(attention_case* c) {
  free(c->q);
  free(c->k);
  free(c->v);
  free(c->o);
  free(c->lse);
}

void clear_outputs(attention_case* c) {
  for (int64_t i = 0; i < o_count(c); ++i) c->o[i] = NAN;
  for (int64_t i = 0; i < lse_count(c); ++i) c->lse[i] = NAN;
}

heddle_attention_tensors tensors_of(const attention_case* c, bool with_lse) {
  heddle_attention_tensors tensors = {
      sizeof tensors, &c->q_view, &c->k_view, &c->v_view, &c->o_view, with_lse ? &c->lse_view : NULL, NULL, NULL};
  return tensors;
}

// Row i of q against all keys: o [v_dim] and the returned lse, in double.
static double plain_row(const attention_case* c, int64_t b, int64_t h, int64_t i, double* o) {
  const int64_t kv_head = b * c->kv_heads + h / (c->q_heads / c->kv_heads);
  const int64_t q_len = c->q_lengths != NULL ? c->q_lengths[b] : c->q_rows;
  const int64_t kv_len = c->kv_lengths != NULL ? c->kv_lengths[b] : c->kv_rows;
  const int64_t q_idx = i + (c->q_start != NULL ? c->q_start[b] : 0);
  const int64_t kv_start = c->kv_start != NULL ? c->kv_start[b] : 0;
  const double scale = c->scale != 0 ? c->scale : 1 / sqrt((double)c->qk_dim);
  double l = c->sinks != NULL ? exp(c->sinks[h]) : 0;
  for (int64_t d = 0; d < c->v_dim; ++d) o[d] = 0;
  if (i >= q_len) return -INFINITY;
  for (int64_t j = 0; j < kv_len; ++j) {
    if (c->attends != NULL && !c->attends(b, h, q_idx, kv_start + j)) continue;
    double t = 0;
    for (int64_t d = 0; d < c->qk_dim; ++d) {
      const int64_t q_row = (b * c->q_heads + h) * c->q_rows + i;
      t += (double)c->q[q_row * c->qk_dim + d] * c->k[(kv_head * c->kv_rows + j) * c->qk_dim + d];
    }
    t *= scale;
    if (c->score != NULL) t = c->score(t, b, h, q_idx, kv_start + j);
    const double p = c->normalizer == HEDDLE_NORMALIZER_SOFTMAX   ? exp(t)
                     : c->normalizer == HEDDLE_NORMALIZER_SIGMOID ? 1 / (1 + exp(-t))
                                                                  : t;
    const double w = c->weight != NULL ? c->weight(b, h, q_idx, kv_start + j) : 1;
    for (int64_t d = 0; d < c->v_dim; ++d) o[d] += p * w * c->v[(kv_head * c->kv_rows + j) * c->v_dim + d];
    l += p;
  }
  if (c->normalizer == HEDDLE_NORMALIZER_SOFTMAX && l > 0) {
    for (int64_t d = 0; d < c->v_dim; ++d) o[d] /= l;
  }
  return log(l);
}

static double error_of(double value, double expected) {
  if (value == expected) return 0;
  const double error = fabs(value - expected);
  return isnan(error) ? INFINITY : error;
}

double largest_error(const attention_case* c, bool with_lse) {
  double* o = malloc((size_t)c->v_dim * sizeof(double));
  if (o == NULL) abort();
  double largest = 0;
  for (int64_t row = 0; row < lse_count(c); ++row) {
    const int64_t b = row / (c->q_heads * c->q_rows), h = row / c->q_rows % c->q_heads;
    const double lse = plain_row(c, b, h, row % c->q_rows, o);
    for (int64_t d = 0; d < c->v_dim; ++d) largest = fmax(largest, error_of(c->o[row * c->v_dim + d], o[d]));
    if (with_lse) largest = fmax(largest, error_of(c->lse[row], lse));
  }
  free(o);
  return largest;
}

double loss_of(const attention_case* c, const float* d_o, const float* d_lse) {
  double* o = malloc((size_t)c->v_dim * sizeof(double));
  if (o == NULL) abort();
  double loss = 0;
  for (int64_t row = 0; row < lse_count(c); ++row) {
    const int64_t b = row / (c->q_heads * c->q_rows), h = row / c->q_rows % c->q_heads;
    const double lse = plain_row(c, b, h, row % c->q_rows, o);
    for (int64_t d = 0; d < c->v_dim; ++d) loss += d_o[row * c->v_dim + d] * o[d];
    if (d_lse != NULL) loss += d_lse[row] * lse;
  }
  free(o);
  return loss;
}
