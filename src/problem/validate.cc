// Validation in the order in which arguments are read: tensors, sequences, scalars and small tensors, mods.
#include <cmath>
#include <limits>
#include <utility>

#include "base/parallel.h"
#include "problem/one_device.h"
#include "problem/pages.h"
#include "problem/problem.h"
#include "problem/refuse.h"
#include "problem/resolve_mods.h"
#include "problem/resolve_sequences.h"
#include "problem/tensors.h"

namespace heddle::problem {
namespace {

// Finite also where scores are computed: a product with a scale that is infinite there can be NaN.
double resolve_scale(const AttentionOptions& options, const AttentionProblem& problem) {
  const double scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(problem.qk_dim)));
  if (!std::isfinite(scale)) refuse("scale is {}; finite numbers are accepted", scale);
  if (problem.precision == expr::Precision::f32 && std::abs(scale) > std::numeric_limits<float>::max()) {
    refuse("scale is {}; {} inputs are computed in f32: numbers from {} to {} are accepted", scale,
           name(problem.q_dtype), std::numeric_limits<float>::lowest(), std::numeric_limits<float>::max());
  }
  return scale;
}

// A cast makes any number an enumerator.
void check_enums(const AttentionOptions& options) {
  if (options.normalizer > Normalizer::sigmoid) {
    refuse("normalizer is {}; softmax (0), none (1) and sigmoid (2) are accepted",
           static_cast<int>(options.normalizer));
  }
  if (options.backend > BackendChoice::amd) {
    refuse("backend is {}; automatic (0), cpu (1), reference (2), cuda (3) and amd (4) are accepted",
           static_cast<int>(options.backend));
  }
  if (options.tuning > Tuning::again) {
    refuse("tuning is {}; automatic (0), off (1), recorded (2), measure (3) and again (4) are accepted",
           static_cast<int>(options.tuning));
  }
}

void check_normalizer(const AttentionOptions& options, const AttentionProblem& problem) {
  if (options.normalizer == Normalizer::softmax) return;
  const std::string_view name = problem::name(options.normalizer);
  if (problem.with_lse) refuse("lse is asked for with normalizer {}; only softmax has one", name);
  if (problem.with_max_scores) refuse("max_scores are asked for with normalizer {}; only softmax has them", name);
  if (options.sinks) refuse("sinks are given with normalizer {}; only softmax has them", name);
}

void check_sinks(const AttentionProblem& problem, const std::optional<ConstTensorView>& sinks) {
  if (!sinks) return;
  check_view("sinks", *sinks);
  check_beside("sinks", *sinks, problem.device);
  const DType dtype = problem.precision == expr::Precision::f64 ? DType::f64 : DType::f32;
  if (sinks->dtype != dtype) {
    refuse("sinks is {}; {} is accepted for {} inputs", name(sinks->dtype), name(dtype), name(problem.q_dtype));
  }
  if (!(sinks->shape == Dims{problem.q_heads})) {
    refuse("sinks has shape {}; [{}] is accepted, an entry a query head", to_string(sinks->shape), problem.q_heads);
  }
}

// A descale factor, and the tensor that it belongs to.
struct Descaled {
  std::string_view argument, tensor;
  DType dtype;
  std::int64_t heads;
};

void check_descale(const AttentionProblem& problem, const Descaled& of, const std::optional<ConstTensorView>& factor) {
  if (!factor) return;
  check_view(of.argument, *factor);
  check_beside(of.argument, *factor, problem.device);
  if (of.dtype != DType::e4m3 && of.dtype != DType::e5m2) {
    refuse("{} is given, but {} is {}; only e4m3 and e5m2 have one", of.argument, of.tensor, name(of.dtype));
  }
  if (factor->dtype != DType::f32) refuse("{} is {}; f32 is accepted", of.argument, name(factor->dtype));
  const auto fits = [](std::int64_t extent, std::int64_t full) { return extent == full || extent == 1; };
  if (factor->rank() != 2 || !fits(factor->shape[0], problem.batch) || !fits(factor->shape[1], of.heads)) {
    refuse("{} has shape {}; [{}, {}] is accepted, either of which may be 1", of.argument, to_string(factor->shape),
           problem.batch, of.heads);
  }
}

/// Extents and types, as the tensors and their rests have them.
void set_shapes(const AttentionTensors& tensors, const AttentionOptions& options, AttentionProblem& problem) {
  problem.device = device_of(tensors);
  problem.q_heads = tensors.q.shape[1];
  problem.kv_heads = tensors.k.shape[1];
  problem.q_rows = tensors.q.shape[2];
  problem.kv_rows = tensors.k.shape[2];
  if (options.page_table) resolve_pages(tensors, options, problem);
  problem.q_rest_dim = rest_dim(options.q_rest);
  problem.k_rest_dim = rest_dim(options.k_rest);
  problem.qk_dim = tensors.q.shape[3] + problem.q_rest_dim;
  problem.v_dim = tensors.v.shape[3];
  problem.q_dtype = tensors.q.dtype;
  problem.k_dtype = tensors.k.dtype;
  problem.v_dtype = tensors.v.dtype;
  problem.o_dtype = tensors.o.dtype;
  problem.with_lse = tensors.lse.has_value();
  problem.with_max_scores = tensors.max_scores.has_value();
  problem.with_lse_rest = tensors.lse_rest.has_value();
  problem.precision = tensors.q.dtype == DType::f64 ? expr::Precision::f64 : expr::Precision::f32;
}

/// Lengths, starts and prefixes of the sequences. `tensor_batch`: the batch of the tensors, as they are broadcast.
void set_sequences(const AttentionTensors& tensors, const AttentionOptions& options, std::int64_t tensor_batch,
                   AttentionProblem& problem) {
  const bool paged = options.page_table.has_value();
  problem.packed = options.cu_seqlens_q.has_value() || options.cu_seqlens_kv.has_value();
  problem.shared_kv = !paged && tensor_batch > 1 && tensors.k.shape[0] == 1 && tensors.v.shape[0] == 1;
  ResolvedSequences resolved =
      resolve_sequences(options, {tensor_batch, problem.q_rows, problem.kv_rows}, problem.device);
  problem.sequences = std::move(resolved.sequences);
  problem.device_lengths = resolved.device_lengths;
  problem.device_starts = resolved.device_starts;
  problem.device_kv_starts = resolved.device_kv_starts;
  problem.with_prefixes = options.prefix_group.has_value();
  problem.prefix_group = std::move(resolved.prefix_group);
  problem.prefix_len = std::move(resolved.prefix_len);
  if (resolved.device_kv_starts) problem.kv_start_dtype = options.kv_start->dtype;
  problem.batch = std::ssize(problem.sequences);
  if (paged) check_pages_of_sequences(options, problem);
  if (paged && tensors.k.shape[0] == 0 && has_elements(problem)) {
    refuse("k has 0 pages, and sequences {} keys; at least 1 is accepted",
           problem.device_lengths ? "may have" : "have");
  }
}

}  // namespace

AttentionProblem validate(const AttentionTensors& tensors, const AttentionOptions& options) {
  if (options.page_starts && !options.page_table) {
    refuse("page_starts is given without page_table, the list of pages; both are accepted");
  }
  const Outputs outputs = outputs_of(tensors.q, tensors.k, tensors.v, options);
  check_outputs(tensors, outputs);

  AttentionProblem problem;
  set_shapes(tensors, options, problem);
  set_sequences(tensors, options, outputs.o_shape[0], problem);

  problem.scale = resolve_scale(options, problem);
  check_enums(options);
  problem.normalizer = options.normalizer;
  check_normalizer(options, problem);
  check_sinks(problem, options.sinks);
  problem.with_sinks = options.sinks.has_value();
  check_descale(problem, {"q_descale", "q", problem.q_dtype, problem.q_heads}, options.q_descale);
  check_descale(problem, {"k_descale", "k", problem.k_dtype, problem.kv_heads}, options.k_descale);
  check_descale(problem, {"v_descale", "v", problem.v_dtype, problem.kv_heads}, options.v_descale);
  base::check_threads(options.threads);

  if (options.fresh_tokens && *options.fresh_tokens < 1) {
    refuse("fresh_tokens is {}; 1 and more are accepted, or none where nothing is promised", *options.fresh_tokens);
  }
  problem.fresh_tokens = options.fresh_tokens.value_or(0);
#define HEDDLE_FLAG_OPTION(name, shown, help) problem.name = options.name;
#include "heddle/options.def"
  problem.allow_tf32 = options.allow_tf32 && problem.q_dtype == DType::f32;  // other types have no such products
  resolve_mods(problem, options);
  return problem;
}

}  // namespace heddle::problem
