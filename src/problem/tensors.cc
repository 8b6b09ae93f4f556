#include "problem/tensors.h"

#include <limits>

#include "problem/overlap.h"
#include "problem/refuse.h"

namespace heddle::problem {
namespace {

constexpr std::int64_t kLargestExtent = std::numeric_limits<std::int32_t>::max();  // indices of mods are i32

bool is_fp8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }

void check_input_dtypes(DType q, DType k, DType v) {
  if (q == k && k == v) return;
  const bool q_beside_fp8 = q == DType::f16 || q == DType::bf16 || is_fp8(q);
  if (is_fp8(k) && is_fp8(v) && q_beside_fp8) return;
  refuse(
      "q, k, v are {}, {}, {}; one dtype for all is accepted, or k and v of e4m3 or e5m2 beside q of f16, bf16, e4m3 "
      "or e5m2",
      name(q), name(k), name(v));
}

// The batch that all broadcast to: each has it, or 1.
std::int64_t common_batch(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v) {
  std::int64_t batch = 1;
  for (const ConstTensorView* view : {&q, &k, &v}) {
    const std::int64_t own = view->shape[0];
    if (batch == 1) batch = own;
    if (own != 1 && own != batch) {
      refuse("q, k, v have batches {}, {}, {}; equal ones are accepted, or 1", q.shape[0], k.shape[0], v.shape[0]);
    }
  }
  return batch;
}

void check_input_shapes(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v) {
  const std::int64_t q_heads = q.shape[1], kv_heads = k.shape[1];
  if (kv_heads == 0 ? q_heads != 0 : q_heads % kv_heads != 0) {
    refuse("q has {} heads and k {}; a multiple of k's is accepted", q_heads, kv_heads);
  }
  if (v.shape[1] != kv_heads) refuse("k has {} heads and v {}; as many are accepted", kv_heads, v.shape[1]);
  if (v.shape[2] != k.shape[2]) refuse("k has {} rows and v {}; as many are accepted", k.shape[2], v.shape[2]);
  if (v.shape[3] == 0) refuse("v has head dimension 0; at least 1 is accepted");
}

/// Checks q_rest or k_rest, the last columns of `of`.
void check_rest(std::string_view name, const ConstTensorView& rest, std::string_view of_name,
                const ConstTensorView& of) {
  check_rows(name, rest, 4, "[B, H, S, R]");
  if (rest.dtype != of.dtype) {
    refuse("{} is {}; {}, {}'s dtype, is accepted", name, heddle::name(rest.dtype), heddle::name(of.dtype), of_name);
  }
  if (!(rest.device == of.device)) {
    refuse("{} is on {}; {} is accepted, where {} is", name, problem::name(rest.device), problem::name(of.device),
           of_name);
  }
  const bool fits = rest.shape[0] == of.shape[0] && rest.shape[1] == of.shape[1] && rest.shape[2] == of.shape[2];
  if (!fits || rest.shape[3] == 0) {
    refuse("{} has shape {}; [{}, {}, {}, R] is accepted, {}'s but for the last extent, which is at least 1", name,
           to_string(rest.shape), of.shape[0], of.shape[1], of.shape[2], of_name);
  }
}

/// "64", or "512 + 64": the head dimension of a tensor and of its rest.
std::string describe_dim(const ConstTensorView& view, const std::optional<ConstTensorView>& rest) {
  return rest ? fmt::format("{} + {}", view.shape[3], rest->shape[3]) : fmt::format("{}", view.shape[3]);
}

/// q and k, each with its rest, have one head dimension.
void check_head_dims(const ConstTensorView& q, const ConstTensorView& k, const AttentionOptions& options) {
  if (options.q_rest) check_rest("q_rest", *options.q_rest, "q", q);
  if (options.k_rest) check_rest("k_rest", *options.k_rest, "k", k);
  const std::int64_t of_q = q.shape[3] + rest_dim(options.q_rest), of_k = k.shape[3] + rest_dim(options.k_rest);
  if (of_q != of_k) {
    refuse("q has head dimension {} and k {}; the same is accepted", describe_dim(q, options.q_rest),
           describe_dim(k, options.k_rest));
  }
  if (of_q > kLargestExtent) refuse("q and q_rest have head dimension {}; up to {} are accepted", of_q, kLargestExtent);
  if (q.shape[3] == 0 || k.shape[3] == 0) refuse("q and k have head dimension 0; at least 1 is accepted");
}

/// Checks lse, max_scores or lse_rest.
void check_numbers_of_rows(std::string_view what, const TensorView& view, DType q_dtype, const Outputs& expected) {
  check_rows(what, view, 3, "[B, Hq, Sq]");
  if (!(view.shape == expected.lse_shape)) {
    refuse("{} has shape {}; {} is accepted", what, to_string(view.shape), to_string(expected.lse_shape));
  }
  if (view.dtype != expected.lse_dtype) {
    refuse("{} is {}; {} is accepted for {} inputs", what, name(view.dtype), name(expected.lse_dtype), name(q_dtype));
  }
  if (overlaps_itself(view)) {
    refuse("{} has shape {} and strides {}, so that elements share memory; one place an element is accepted", what,
           to_string(view.shape), to_string(view.strides));
  }
}

}  // namespace

void check_rows(std::string_view name, const ConstTensorView& view, int rank, std::string_view axes) {
  check_view(name, view);
  if (view.rank() != rank) refuse("{} has shape {}; {} axes {} are accepted", name, to_string(view.shape), rank, axes);
  if (!is_floating(view.dtype)) {
    refuse("{} is {}; f64, f32, f16, bf16, e4m3 and e5m2 are accepted", name, heddle::name(view.dtype));
  }
  for (std::int64_t extent : view.shape) {
    if (extent > kLargestExtent) {
      refuse("{} has shape {}; extents up to 2147483647 are accepted, since mods count in i32", name,
             to_string(view.shape));
    }
  }
  const int last = rank - 1;
  if (view.count() > 0 && view.shape[last] > 1 && view.strides[last] != 1) {
    refuse("{} has strides {}; a last stride of 1 is accepted (permute or copy it)", name, to_string(view.strides));
  }
}

std::int64_t rest_dim(const std::optional<ConstTensorView>& rest) { return rest ? rest->shape[3] : 0; }

Outputs outputs_of(const ConstTensorView& q, const ConstTensorView& k, const ConstTensorView& v,
                   const AttentionOptions& options) {
  const bool paged = options.page_table || options.page_starts;
  check_rows("q", q, 4, "[B, Hq, Sq, Dqk]");
  check_rows("k", k, 4, "[B, Hkv, Skv, Dqk]");
  check_rows("v", v, 4, "[B, Hkv, Skv, Dv]");
  check_input_dtypes(q.dtype, k.dtype, v.dtype);
  check_input_shapes(q, k, v);
  check_head_dims(q, k, options);
  if (paged && k.shape[0] != v.shape[0]) {
    refuse("k has {} pages and v {}; as many are accepted", k.shape[0], v.shape[0]);
  }
  const std::int64_t batch = paged ? q.shape[0] : common_batch(q, k, v);
  const Dims o_shape = {batch, q.shape[1], q.shape[2], v.shape[3]};
  if (base::count_overflows(o_shape)) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("q, k, v give an o of shape {}, whose product overflows 64 bits", to_string(o_shape)));
  }
  return {.o_shape = o_shape,
          .lse_shape = {batch, q.shape[1], q.shape[2]},
          .o_dtype = is_fp8(q.dtype) ? DType::bf16 : q.dtype,
          .lse_dtype = q.dtype == DType::f64 ? DType::f64 : DType::f32};
}

void check_outputs(const AttentionTensors& tensors, const Outputs& expected) {
  check_rows("o", tensors.o, 4, "[B, Hq, Sq, Dv]");
  if (!(tensors.o.shape == expected.o_shape)) {
    refuse("o has shape {}; {} is accepted", to_string(tensors.o.shape), to_string(expected.o_shape));
  }
  if (overlaps_itself(tensors.o)) {
    refuse("o has shape {} and strides {}, so that elements share memory; one place an element is accepted",
           to_string(tensors.o.shape), to_string(tensors.o.strides));
  }
  if (tensors.lse) check_numbers_of_rows("lse", *tensors.lse, tensors.q.dtype, expected);
  if (tensors.max_scores) check_numbers_of_rows("max_scores", *tensors.max_scores, tensors.q.dtype, expected);
  if (!tensors.lse_rest) return;
  if (!tensors.lse)
    refuse("lse_rest is given without lse, whose rounding it is the rest of; both are accepted, or lse");
  check_numbers_of_rows("lse_rest", *tensors.lse_rest, tensors.q.dtype, expected);
}

}  // namespace heddle::problem
