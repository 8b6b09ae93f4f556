// Shared by the C tests: expectations, tensors, and attention as plain loops.
#ifndef HEDDLE_TESTS_CAPI_HARNESS_H_
#define HEDDLE_TESTS_CAPI_HARNESS_H_

#include <stdbool.h>

#include "heddle/c.h"

/// Expectations that did not hold. main() returns whether there are any.
int failures(void);

void expect(bool holds, const char* what, const char* file, int line);
#define EXPECT(condition) expect((condition), #condition, __FILE__, __LINE__)

/// HEDDLE_OK and no sentence.
void expect_ok(heddle_status status, const char* call, const char* file, int line);
#define EXPECT_OK(call) expect_ok((call), #call, __FILE__, __LINE__)

/// This code, and `part` in the sentence.
void expect_error(heddle_status status, heddle_status code, const char* part, const char* call, const char* file,
                  int line);
#define EXPECT_ERROR(call, code, part) expect_error((call), (code), (part), #call, __FILE__, __LINE__)

/// A row-major CPU tensor over the memory.
heddle_tensor tensor_of(void* data, int32_t dtype, int32_t rank, const int64_t* shape);
/// `count` numbers in [-1, 1), the same for the same seed. The caller frees.
float* random_floats(int64_t count, uint32_t seed);
float* nans(int64_t count);

/// One f32 attention: sizes, memory, and the meaning of its mods as C functions (NULL: none). Everything is packed
/// [B, H, S, D]. 64 bytes a row of D is not assumed.
typedef struct {
  int64_t batch, q_heads, kv_heads, q_rows, kv_rows, qk_dim, v_dim;
  float *q, *k, *v;
  float *o, *lse;  // NaN until something writes them
  heddle_tensor q_view, k_view, v_view, o_view, lse_view;

  double scale;  // 0: 1 / sqrt(qk_dim)
  const float* sinks;
  const int32_t *q_lengths, *kv_lengths, *q_start, *kv_start;
  int32_t normalizer;
  double (*score)(double s, int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx);
  bool (*attends)(int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx);
  double (*weight)(int64_t b, int64_t h, int64_t q_idx, int64_t kv_idx);
} attention_case;

/// Random inputs for the sizes that are set; outputs of NaN.
void fill_case(attention_case* c, uint32_t seed);
void free_case(attention_case* c);
void clear_outputs(attention_case* c);
heddle_attention_tensors tensors_of(const attention_case* c, bool with_lse);
/// The largest difference of o (and lse) from the plain loops; infinite where NaN stands or only one side is infinite.
double largest_error(const attention_case* c, bool with_lse);
/// sum d_o o + sum d_lse lse, by the plain loops. d_lse may be NULL.
double loss_of(const attention_case* c, const float* d_o, const float* d_lse);

#endif  // HEDDLE_TESTS_CAPI_HARNESS_H_
