#include "decoder.h"

#include <algorithm>

#include "../train/attention_layer.h"

namespace {

using heddle::DType;
using heddle::Tensor;

std::int64_t extent(std::size_t n) { return static_cast<std::int64_t>(n); }

Tensor on_device(const Matrix& matrix, const heddle::Dims& shape, const heddle::Device& device) {
  return heddle::copy({matrix.values.data(), DType::f32, shape}, DType::f32).to(device);
}
Tensor on_device(const std::vector<std::int32_t>& numbers, const heddle::Device& device) {
  return heddle::copy({numbers.data(), DType::i32, {extent(numbers.size())}}, DType::i32).to(device);
}

/// Columns [first, first + kWidth) of qkv [rows, 3 * kWidth], as [1, head, row, dimension].
heddle::ConstTensorView heads_of(const Tensor& qkv, std::size_t first) {
  const std::int64_t rows = qkv.shape()[0], row = qkv.shape()[1];
  return {static_cast<const float*>(qkv.data()) + first,
          DType::f32,
          {1, extent(kHeads), rows, extent(kHeadDim)},
          {rows * row, extent(kHeadDim), row, 1},
          qkv.view().device};
}

}  // namespace

Decoder::Decoder(const Model& model, PagedCache& cache) : model_(model), cache_(cache) {
  for (const Block& block : model.blocks()) {
    heddle::AttentionOptions options = attention_options();
    captures_.push_back(on_device(block.slopes.value, {extent(kHeads)}, cache.device()));
    options.bindings.captures["slopes"] = captures_.back();
    captures_.push_back(on_device(block.table.value, {extent(kBuckets), extent(kHeads)}, cache.device()));
    options.bindings.captures["table"] = captures_.back();
    options_.push_back(options);
  }
}

Decoder::Step Decoder::step_of(std::span<const Characters> characters) const {
  Step step;
  std::vector<std::int32_t> starts = {0}, before, after;
  for (std::size_t n = 0; n < characters.size(); ++n) {
    const auto rows = static_cast<std::int32_t>(characters[n].size());
    const auto old_rows = static_cast<std::int32_t>(cache_.lengths()[n]);
    step.new_rows.push_back(rows);
    step.most_new_rows = std::max<std::int64_t>(step.most_new_rows, rows);
    starts.push_back(starts.back() + rows);
    before.push_back(old_rows);
    after.push_back(old_rows + rows);
  }
  step.starts = on_device(starts, cache_.device());
  step.before = on_device(before, cache_.device());
  step.after = on_device(after, cache_.device());
  return step;
}

Characters Decoder::next(std::span<const Characters> characters) {
  const Step step = step_of(characters);
  cache_.make_room(step.new_rows);

  std::size_t rows = 0;
  for (const Characters& each : characters) rows += each.size();
  Matrix x(rows, kWidth);
  std::size_t row = 0;
  for (const Characters& each : characters) {
    for (const std::uint8_t character : each) std::copy_n(model_.embedding()[character], kWidth, x[row++]);
  }
  for (std::size_t layer = 0; layer < model_.blocks().size(); ++layer) {
    const Block& block = model_.blocks()[layer];
    const Matrix o = attend(layer, multiply(layer_norm(x).y, block.qkv.value), step);
    multiply_add(o, block.out.value, x);
    multiply_add(squared_relu(multiply(layer_norm(x).y, block.up.value)), block.down.value, x);
  }
  cache_.count(step.new_rows);

  const Matrix logits = multiply(layer_norm(x).y, model_.prediction());
  Characters next;
  std::size_t end = 0;
  for (const Characters& each : characters) {
    end += each.size();
    const float* last = logits[end - 1];
    next.push_back(static_cast<std::uint8_t>(std::max_element(last, last + logits.columns) - last));
  }
  return next;
}

Matrix Decoder::attend(std::size_t layer, const Matrix& qkv, const Step& step) const {
  const Tensor given = on_device(qkv, {extent(qkv.rows), extent(qkv.columns)}, cache_.device());
  heddle::append_kv({.k = heads_of(given, kWidth),
                     .k_cache = cache_.keys(layer),
                     .v = heads_of(given, 2 * kWidth),
                     .v_cache = cache_.values(layer)},
                    {.kv_lengths = step.before, .cu_seqlens = step.starts, .page_table = cache_.table()});

  heddle::AttentionOptions options = options_[layer];
  options.cu_seqlens_q = step.starts;
  options.kv_lengths = step.after;
  options.q_start = step.before;  // the mods read positions
  options.page_table = cache_.table();
  options.max_q_len = step.most_new_rows;
  const Tensor o = Tensor::empty_on(cache_.device(), DType::f32, {extent(qkv.rows), extent(kWidth)});
  const heddle::TensorView o_heads(o.data(), DType::f32, {1, extent(kHeads), extent(qkv.rows), extent(kHeadDim)},
                                   {o.count(), extent(kHeadDim), extent(kWidth), 1}, o.view().device);
  heddle::attention_into(heads_of(given, 0), cache_.keys(layer), cache_.values(layer), o_heads, std::nullopt, options);

  const Tensor back = o.to(heddle::Device{});
  Matrix result(qkv.rows, kWidth);
  std::copy_n(static_cast<const float*>(back.data()), back.count(), result.values.data());
  return result;
}
