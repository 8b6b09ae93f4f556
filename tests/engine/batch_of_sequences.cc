#include "engine/batch_of_sequences.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "heddle/mods.h"

namespace heddle::test {
namespace {

/// Element [b, h, s, d] of a contiguous [B, S, H, D] in memory, seen as [B, H, S, D].
TensorView rows_first(const Tensor& tensor) {
  TensorView view = tensor.view();
  std::swap(view.shape[1], view.shape[2]);
  std::swap(view.strides[1], view.strides[2]);
  return view;
}

/// Copies row `from` of one [.., H, D] to row `to` of another, counted over all that stands before the heads.
void copy_row(const Tensor& target, std::int64_t to, const Tensor& source, std::int64_t from) {
  const std::int64_t bytes = source.shape()[2] * source.shape()[3] * size_of(source.dtype());
  std::memcpy(static_cast<std::byte*>(target.data()) + to * bytes,
              static_cast<const std::byte*>(source.data()) + from * bytes, static_cast<std::size_t>(bytes));
}

Tensor poisoned(DType dtype, const Dims& shape) {
  Tensor tensor = Tensor::empty(dtype, shape);
  std::memset(tensor.data(), 0xff, static_cast<std::size_t>(tensor.count() * size_of(dtype)));
  return tensor;
}

Tensor integers(const std::vector<std::int64_t>& values) {
  Tensor tensor = Tensor::empty(DType::i32, Dims{std::ssize(values)});
  for (std::size_t i = 0; i < values.size(); ++i) {
    static_cast<std::int32_t*>(tensor.data())[i] = static_cast<std::int32_t>(values[i]);
  }
  return tensor;
}

}  // namespace

BatchOfSequences::BatchOfSequences(const SequencesSpec& spec, const std::vector<OwnSequence>& sequences,
                                   const BatchForm& form)
    : spec_(spec), sequences_(sequences), form_(form) {
  for (const OwnSequence& one : sequences_) {
    longest_q_ = std::max(longest_q_, one.q_len);
    longest_kv_ = std::max(longest_kv_, one.kv_len);
  }
  place_queries();
  place_keys();
  add_lengths();
}

/// [1, rows, heads, dim] from -2 to 2.
Tensor BatchOfSequences::numbers(std::int64_t seed, DType dtype, std::int64_t heads, std::int64_t rows,
                                 std::int64_t dim) const {
  std::uint64_t state = static_cast<std::uint64_t>(seed) + 1;
  Tensor tensor = Tensor::empty(DType::f32, Dims{1, rows, heads, dim});
  for (std::int64_t i = 0; i < tensor.count(); ++i) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    static_cast<float*>(tensor.data())[i] = static_cast<float>(state >> 40) * 0x1p-22F - 2;
  }
  return tensor.to(dtype);
}

Tensor BatchOfSequences::placed(const Tensor& tensor) const {
  return spec_.device.kind == DeviceKind::cpu ? tensor : tensor.to(spec_.device);
}

void BatchOfSequences::place_queries() {
  const std::int64_t heads = spec_.kv_heads * spec_.group, batch = std::ssize(sequences_);
  const std::int64_t each = longest_q_ + (form_.packs_queries ? 0 : form_.more_rows > 0 ? 1 : 0);
  std::int64_t total = 0;
  for (const OwnSequence& one : sequences_) q_begins_.push_back(std::exchange(total, total + one.q_len));
  q_begins_.push_back(total);
  const Dims shape = form_.packs_queries ? Dims{1, total, heads, spec_.qk_dim} : Dims{batch, each, heads, spec_.qk_dim};
  const Tensor q = poisoned(spec_.q_dtype, shape);
  for (std::int64_t i = 0; i < batch; ++i) {
    const OwnSequence& one = sequences_[static_cast<std::size_t>(i)];
    if (!form_.packs_queries) q_begins_[static_cast<std::size_t>(i)] = i * each;
    const Tensor own = numbers(3 * static_cast<std::int64_t>(one.seed), spec_.q_dtype, heads, one.q_len, spec_.qk_dim);
    for (std::int64_t j = 0; j < one.q_len; ++j) copy_row(q, q_begins_[static_cast<std::size_t>(i)] + j, own, j);
  }
  q_ = placed(q);
  Dims o_shape = shape;
  o_shape[3] = spec_.v_dim;
  o_ = placed(poisoned(size_of(spec_.q_dtype) == 1 ? DType::bf16 : spec_.q_dtype, o_shape));
  const DType lse = spec_.q_dtype == DType::f64 ? DType::f64 : DType::f32;
  lse_ = placed(poisoned(lse, Dims{shape[0], heads, shape[1]}));
}

void BatchOfSequences::place_keys() {
  const std::int64_t batch = std::ssize(sequences_), page = form_.page_rows;
  std::int64_t each = longest_kv_ + form_.more_rows, total = 0;
  for (const OwnSequence& one : sequences_) total += one.kv_len;
  const bool packs = form_.packs_queries && page == 0;
  const std::int64_t pages_of_each = page > 0 ? (each + page - 1) / page : 0;
  const auto make = [&](std::int64_t dim) {
    const Dims shape = page > 0 ? Dims{batch * pages_of_each, page, spec_.kv_heads, dim}
                       : packs  ? Dims{1, std::max<std::int64_t>(1, total), spec_.kv_heads, dim}
                                : Dims{batch, each, spec_.kv_heads, dim};
    return poisoned(spec_.kv_dtype, shape);
  };
  Tensor k = make(spec_.qk_dim), v = spec_.values_in_keys ? Tensor() : make(spec_.v_dim);
  // Pages stand in another order in each batch.
  std::vector<std::int64_t> order(static_cast<std::size_t>(batch * pages_of_each));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(static_cast<std::uint64_t>(batch)));
  std::int64_t begin = 0;
  for (std::int64_t i = 0; i < batch; ++i) {
    const OwnSequence& one = sequences_[static_cast<std::size_t>(i)];
    const auto seed = static_cast<std::int64_t>(one.seed);
    const Tensor own_k = numbers(3 * seed + 1, spec_.kv_dtype, spec_.kv_heads, one.kv_len, spec_.qk_dim);
    const Tensor own_v = numbers(3 * seed + 2, spec_.kv_dtype, spec_.kv_heads, one.kv_len, spec_.v_dim);
    for (std::int64_t j = 0; j < one.kv_len; ++j) {
      const std::int64_t at = page > 0 ? order[static_cast<std::size_t>(i * pages_of_each + j / page)] * page + j % page
                              : packs  ? begin + j
                                       : i * each + j;
      copy_row(k, at, own_k, j);
      if (!spec_.values_in_keys) copy_row(v, at, own_v, j);
    }
    begin += one.kv_len;
  }
  if (page > 0) {
    Tensor table = integers(order);
    table_ = placed(Tensor::adopt(TensorView(table.data(), DType::i32, Dims{batch, pages_of_each}),
                                  std::make_shared<Tensor>(table)));
  }
  k_ = placed(k);
  if (!spec_.values_in_keys) v_ = placed(v);
}

void BatchOfSequences::add_lengths() {
  std::vector<std::int64_t> q, kv, starts, cu_q = {0}, cu_kv = {0};
  for (const OwnSequence& one : sequences_) {
    q.push_back(one.q_len);
    kv.push_back(one.kv_len);
    starts.push_back(one.kv_len - one.q_len);
    cu_q.push_back(cu_q.back() + one.q_len);
    cu_kv.push_back(cu_kv.back() + one.kv_len);
  }
  const auto lengths = [&](const std::vector<std::int64_t>& values) {
    return spec_.lengths_on_gpu ? placed(integers(values)) : integers(values);
  };
  q_lengths_ = lengths(q);
  kv_lengths_ = lengths(kv);
  q_start_ = lengths(starts);
  cu_q_ = lengths(cu_q);
  cu_kv_ = lengths(cu_kv);
}

AttentionTensors BatchOfSequences::tensors() const {
  AttentionTensors tensors;
  tensors.q = rows_first(q_);
  tensors.k = rows_first(k_);
  tensors.v = tensors.k;
  tensors.v.shape[3] = spec_.v_dim;
  if (!spec_.values_in_keys) tensors.v = rows_first(v_);
  tensors.o = rows_first(o_);
  tensors.lse = lse_;
  return tensors;
}

AttentionOptions BatchOfSequences::options() const {
  AttentionOptions options;
  options.batch_invariant = true;
  options.score_mod = spec_.score;
  options.mask_mod = spec_.mask;
  const bool pages = form_.page_rows > 0;
  if (pages) options.page_table = table_;
  if (form_.packs_queries) options.cu_seqlens_q = cu_q_;
  if (!form_.packs_queries) options.q_lengths = q_lengths_;
  if (form_.packs_queries && !pages) options.cu_seqlens_kv = cu_kv_;
  if (!form_.packs_queries || pages) options.kv_lengths = kv_lengths_;
  options.q_start = q_start_;
  if (spec_.lengths_on_gpu) {
    options.max_q_len = longest_q_;
    options.max_kv_len = longest_kv_ + form_.more_rows;
  }
  return options;
}

std::vector<std::byte> BatchOfSequences::bits_of(std::size_t i) const {
  std::vector<std::byte> bits;
  const auto append = [&](const void* data, std::int64_t first, std::int64_t bytes) {
    const auto* at = static_cast<const std::byte*>(data) + first;
    bits.insert(bits.end(), at, at + bytes);
  };
  const Tensor o = o_.to(Device{}), lse = lse_.to(Device{});
  const std::int64_t own = sequences_[i].q_len, rows = o.shape()[1], heads = o.shape()[2];
  const std::int64_t row_bytes = heads * o.shape()[3] * size_of(o.dtype()), bytes = size_of(lse.dtype());
  append(o.data(), q_begins_[i] * row_bytes, own * row_bytes);
  for (std::int64_t head = 0; head < heads; ++head) {
    const std::int64_t first = (q_begins_[i] / rows * heads + head) * rows + q_begins_[i] % rows;
    append(lse.data(), first * bytes, own * bytes);
  }
  return bits;
}

void expect_invariant(const InvarianceTest& test, const ComputeBatch& compute) {
  std::mt19937_64 rng(test.seed);
  const auto below = [&](std::int64_t bound) {
    return static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(std::max<std::int64_t>(1, bound)));
  };
  // Most are short.
  const auto length = [&](std::int64_t most) {
    return 1 + below(below(4) == 0 ? most / 2 : std::min<std::int64_t>(most, 90));
  };
  std::vector<OwnSequence> pool;
  for (std::uint64_t i = 0; i < 41; ++i) {
    OwnSequence one = {.seed = 1000 * test.seed + i, .q_len = 1 + below(test.queries), .kv_len = length(test.keys)};
    one.kv_len = std::max(one.kv_len, one.q_len);
    pool.push_back(one);
  }
  pool[0].kv_len = test.keys;
  pool[0].q_len = std::min(test.queries, test.keys);
  pool[1].kv_len = std::max(pool[1].q_len, test.keys * 5 / 8);
  std::vector<std::vector<std::byte>> alone;
  for (int i = 0; i < 4; ++i) {  // those that are looked at
    const BatchOfSequences batch(test.spec, {pool[static_cast<std::size_t>(i)]}, {});
    compute(batch.tensors(), batch.options());
    alone.push_back(batch.bits_of(0));
  }
  for (int round = 0; round < test.batches; ++round) {
    const BatchForm form = test.forms[static_cast<std::size_t>(round) % test.forms.size()];
    std::vector<std::size_t> chosen(4 + static_cast<std::size_t>(round == 0 ? test.most - 4 : below(test.most - 4)));
    std::iota(chosen.begin(), chosen.end(), 0);
    std::shuffle(chosen.begin(), chosen.end(), rng);
    std::vector<OwnSequence> sequences;
    for (const std::size_t one : chosen) sequences.push_back(pool[one]);
    const BatchOfSequences batch(test.spec, sequences, form);
    compute(batch.tensors(), batch.options());
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i] >= alone.size()) continue;
      EXPECT_TRUE(batch.bits_of(i) == alone[chosen[i]]) << fmt::format(
          "sequence of {} queries and {} keys, number {} of {}, {}pages of {}", sequences[i].q_len, sequences[i].kv_len,
          i, sequences.size(), form.packs_queries ? "packed, " : "", form.page_rows);
    }
  }
}

}  // namespace heddle::test
