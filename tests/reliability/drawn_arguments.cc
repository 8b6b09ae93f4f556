#include "reliability/drawn_arguments.h"

#include <array>
#include <cstring>

#include "base/hash.h"

namespace heddle::test {

Tensor drawn_reals(std::mt19937_64& random, DType dtype, const Dims& shape) {
  const Tensor numbers = Tensor::empty(DType::f32, shape);
  auto* x = static_cast<float*>(numbers.data());
  for (std::int64_t i = 0; i < numbers.count(); ++i) x[i] = static_cast<float>(random() % 2048) / 1024 - 1;
  return numbers.to(dtype);
}

Tensor integers(const std::vector<std::int32_t>& values) {
  Tensor tensor = Tensor::empty(DType::i32, {static_cast<std::int64_t>(values.size())});
  std::memcpy(tensor.data(), values.data(), values.size() * sizeof values[0]);
  return tensor;
}

DrawnAttention::DrawnAttention(std::mt19937_64& random, const CallSettings& settings) {
  constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16, DType::f64};
  constexpr std::array kScores = {"", "score + slopes[h] * f32(kv_idx - q_idx)", "cap * tanh(score / cap)"};
  constexpr std::array kMasks = {"", "q_idx >= kv_idx", "documents[q_idx] == documents[kv_idx]",
                                 "abs(q_idx - kv_idx) < window"};
  const DType dtype = kDTypes[random() % kDTypes.size()], reals = dtype == DType::f64 ? DType::f64 : DType::f32;
  const std::int64_t batch = drawn(random, 1, 2), kv_heads = drawn(random, 1, 2),
                     heads = kv_heads * drawn(random, 1, 2);
  const std::int64_t q_rows = drawn(random, 1, 3) == 1 ? 1 : drawn(random, 2, 70), kv_rows = drawn(random, 1, 150);
  const std::int64_t dim = drawn(random, 1, 5) * 8;
  q = drawn_reals(random, dtype, {batch, heads, q_rows, dim});
  k = drawn_reals(random, dtype, {batch, kv_heads, kv_rows, dim});
  v = drawn_reals(random, dtype, {batch, kv_heads, kv_rows, dim});
  o = Tensor::zeros(dtype, q.shape());
  lse = Tensor::zeros(reals, {batch, heads, q_rows});
  sinks = drawn_reals(random, reals, {heads});
  slopes = drawn_reals(random, DType::f32, {heads});
  std::vector<std::int32_t> of_document(static_cast<std::size_t>(std::max(q_rows, kv_rows))), of_batch;
  for (std::size_t i = 0; i < of_document.size(); ++i) of_document[i] = static_cast<std::int32_t>(i / 40);
  for (std::int64_t b = 0; b < batch; ++b) of_batch.push_back(static_cast<std::int32_t>(drawn(random, 0, kv_rows)));
  documents = integers(of_document);
  lengths = integers(of_batch);

  score_mod = kScores[random() % kScores.size()];
  mask_mod = kMasks[random() % kMasks.size()];
  Bindings all;
  all.captures = {{"slopes", slopes}, {"documents", documents}};
  all.params = {{"cap", 20.0}, {"window", static_cast<std::int32_t>(drawn(random, 1, 60))}};
  const Symbols symbols(all);
  if (!score_mod.empty()) options.score_mod = parse(score_mod, symbols);
  if (!mask_mod.empty()) options.mask_mod = parse(mask_mod, symbols);
  const auto keep_read = [&](const char* name, const std::string& text) {
    if (text.find(name) == std::string::npos) return;
    if (const auto found = all.captures.find(name); found != all.captures.end())
      options.bindings.captures.insert(*found);
    if (const auto found = all.params.find(name); found != all.params.end()) options.bindings.params.insert(*found);
  };
  keep_read("slopes", score_mod), keep_read("cap", score_mod);
  keep_read("documents", mask_mod), keep_read("window", mask_mod);
  if (drawn(random, 0, 3) == 0) options.sinks = sinks;
  if (drawn(random, 0, 3) == 0) options.kv_lengths = lengths;
  options.threads = settings.threads;
}

AttentionTensors DrawnAttention::tensors() const { return {.q = q, .k = k, .v = v, .o = o, .lse = lse.view()}; }

std::uint64_t DrawnAttention::results() const { return base::hash_combine(base::hash_view(o), base::hash_view(lse)); }

}  // namespace heddle::test
