#include "engine/case_mods.h"

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>

#include "heddle/mods.h"

namespace heddle::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Tensor random_reals(AttentionCase& c, DType dtype, const Dims& shape) {
  Tensor tensor = Tensor::empty(DType::f32, shape);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = normal(c.rng());
  return tensor.to(dtype);
}

Tensor integers(const std::vector<std::int32_t>& values, DType dtype = DType::i32) {
  Tensor tensor = Tensor::empty(DType::i32, {std::ssize(values)});
  std::ranges::copy(values, static_cast<std::int32_t*>(tensor.data()));
  return tensor.to(dtype);
}

// Offsets of random documents that cover all positions.
std::vector<std::int32_t> document_offsets(AttentionCase& c) {
  std::vector<std::int32_t> offsets = {0};
  while (offsets.back() < c.positions()) {
    const std::int64_t next = offsets.back() + 1 + c.below(60);
    offsets.push_back(static_cast<std::int32_t>(std::min(next, c.positions())));
  }
  return offsets;
}

Expr alibi(AttentionCase& c) {
  c.capture("slopes", mods::alibi_slopes(c.spec().q_heads()));
  return mods::alibi(Capture("slopes", DType::f32, 1));
}

Expr relative_bias(AttentionCase& c) {
  c.capture("relative", random_reals(c, DType::bf16, {c.spec().q_heads(), 2 * 9 + 1}));
  return mods::relative_bias(Capture("relative", DType::bf16, 2), 9);
}

Expr t5_bias(AttentionCase& c) {
  c.capture("buckets", random_reals(c, DType::f32, {32, c.spec().q_heads()}));
  return mods::t5_bias(Capture("buckets", DType::f32, 2), 32, 128, true);
}

Expr full_bias(AttentionCase& c) {
  const Dims shape = {c.sequences(), c.spec().q_heads(), c.spec().q_rows, c.largest_kv_start() + c.spec().kv_rows};
  c.capture("bias", random_reals(c, DType::f16, shape));
  const Capture bias("bias", DType::f16, 4);
  return leaf::score() + bias.at({leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx()}, 0.0);
}

// Columns that a bias must have: up to the last key that planning reckons with.
std::int64_t bias_columns(AttentionCase& c) { return c.largest_kv_start() + c.most_keys(); }

// Rows of `columns` elements; those past the keys are NaN.
Tensor bias_values(AttentionCase& c, DType dtype, std::int64_t slices, std::int64_t columns) {
  const std::int64_t keys = c.largest_kv_start() + c.spec().kv_rows;
  Tensor tensor = random_reals(c, DType::f32, {slices, std::max<std::int64_t>(1, c.positions()), columns});
  for (std::int64_t i = 0; i < tensor.count(); ++i) {
    if (i % columns >= keys) static_cast<float*>(tensor.data())[i] = static_cast<float>(kNaN);
  }
  return tensor.to(dtype);
}

// Rows that TMA takes.
Tensor streamed_values(AttentionCase& c, DType dtype, std::int64_t slices) {
  return bias_values(c, dtype, slices, (bias_columns(c) + 7) / 8 * 8 + 8);
}

Expr streamed_bias(AttentionCase& c) {
  c.capture("bias", streamed_values(c, DType::bf16, c.spec().q_heads()));
  return leaf::score() + Capture("bias", DType::bf16, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
}

Expr streamed_bias_f32(AttentionCase& c) {
  c.capture("bias", streamed_values(c, DType::f32, std::max<std::int64_t>(1, c.sequences())));
  const Expr bias = Capture("bias", DType::f32, 3)(leaf::b(), leaf::q_idx(), leaf::kv_idx());
  return leaf::score() + 0.5 * bias + to_f32(leaf::q_idx() % 3);
}

// Rows that it does not take.
Tensor odd_values(AttentionCase& c, DType dtype, std::int64_t slices) {
  return bias_values(c, dtype, slices, bias_columns(c) | 1);
}

Expr streamed_odd(AttentionCase& c) {
  c.capture("bias", odd_values(c, DType::bf16, c.spec().q_heads()));
  return leaf::score() + Capture("bias", DType::bf16, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
}

Expr streamed_odd_f32(AttentionCase& c) {
  c.capture("bias", odd_values(c, DType::f32, std::max<std::int64_t>(1, c.sequences())));
  return leaf::score() + 0.5 * Capture("bias", DType::f32, 3)(leaf::b(), leaf::q_idx(), leaf::kv_idx());
}

/// A row of each head, which all sequences and queries share; `columns` apart.
Expr shared_row(AttentionCase& c, std::int64_t columns) {
  c.capture("bias", random_reals(c, DType::bf16, {c.spec().q_heads(), columns}));
  ConstTensorView& view = c.options().bindings.captures["bias"];
  view.shape = {std::max<std::int64_t>(1, c.sequences()), c.spec().q_heads(), std::max<std::int64_t>(1, c.positions()),
                columns};
  view.strides = {0, columns, 0, 1};
  return leaf::score() + Capture("bias", DType::bf16, 4)(leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx());
}
Expr streamed_shared(AttentionCase& c) { return shared_row(c, (bias_columns(c) + 7) / 8 * 8); }
Expr streamed_odd_shared(AttentionCase& c) { return shared_row(c, bias_columns(c) | 1); }

// Reads the bias only at positions that exist, wherever the queries begin.
Expr streamed_inside(AttentionCase& c) {
  c.capture("bias", streamed_values(c, DType::bf16, c.spec().q_heads()));
  const Expr bias = Capture("bias", DType::bf16, 3)(leaf::h(), leaf::q_idx(), leaf::kv_idx());
  const Expr inside = (leaf::q_idx() >= 0) & (leaf::q_idx() < static_cast<std::int32_t>(c.positions()));
  return leaf::score() + where(inside, bias, 0.0);
}

Expr streamed_in_cap(AttentionCase& c) {
  c.capture("bias", streamed_values(c, DType::f16, 2));
  const Expr bias = Capture("bias", DType::f16, 3)(leaf::h() % 2, leaf::q_idx(), leaf::kv_idx());
  return 3.0 * tanh((leaf::score() + bias) / 3.0);
}

// Leaves out some keys at either end of each sequence, now and then all of them, by -inf. Where each query sees other
// keys: by a number that no score is near, or by the lowest number, whose power of two is 0.
Tensor padding(AttentionCase& c) {
  const std::int64_t sequences = std::max<std::int64_t>(1, c.sequences()),
                     keys = std::max<std::int64_t>(1, c.positions());
  constexpr float kInfinite = std::numeric_limits<float>::infinity(), kLeast = std::numeric_limits<float>::lowest();
  const bool all_seen = c.spec().mask.empty() && c.spec().sequences == "whole";
  Tensor tensor = random_reals(c, DType::f32, {sequences, keys});
  for (std::int64_t b = 0; b < sequences; ++b) {
    const float excluded =
        all_seen ? std::array{-kInfinite, -1e9F, kLeast}[static_cast<std::size_t>(c.below(3))] : -kInfinite;
    const std::int64_t from = c.below(2) == 0 ? 0 : c.below(keys);
    const std::int64_t to = excluded == -kInfinite && c.below(6) == 0 ? from : from + 1 + c.below(keys);
    for (std::int64_t i = 0; i < keys; ++i) {
      if (i < from || i >= to) static_cast<float*>(tensor.data())[b * keys + i] = excluded;
    }
  }
  return tensor;
}
Expr of_key(AttentionCase& c, const std::string& name, DType dtype) {
  c.capture(name, random_reals(c, dtype, {std::max<std::int64_t>(1, c.positions())}));
  return Capture(name, dtype, 1)(leaf::kv_idx());
}
Expr padded(AttentionCase& c) {
  c.capture("padding", padding(c));
  return leaf::score() + Capture("padding", DType::f32, 2)(leaf::b(), leaf::kv_idx());
}
Expr alibi_padded(AttentionCase& c) { return alibi(c) + padded(c) - leaf::score(); }

// Temperatures of both signs, and a term of the query.
Expr temperature_and_gate(AttentionCase& c) {
  c.capture("gate", random_reals(c, DType::f32, {c.spec().q_heads(), std::max<std::int64_t>(1, c.positions())}));
  const Expr gate = Capture("gate", DType::f32, 2).at({leaf::h(), leaf::q_idx()}, 0.25);
  return leaf::score() * of_key(c, "temperature", DType::bf16) + gate;
}
// A factor for each head, in a sum that separates only when it is multiplied out.
Expr scaled_keys_of_head(AttentionCase& c) {
  c.options().bindings.params["a"] = 0.5;
  const Expr term = to_f32(leaf::q_idx() % 5) - of_key(c, "rises", DType::f32) * to_f32(leaf::h() + 1);
  return (leaf::score() * of_key(c, "temperature", DType::f32) - term) * param("a", ExprType::f32);
}

// Queries and keys on a grid of 8 columns.
Expr grid_bias(AttentionCase& c) {
  constexpr std::int32_t kColumns = 8;
  const auto rows = static_cast<std::int32_t>(std::max(c.positions(), c.most_keys()) / kColumns + 1);
  c.capture("table", random_reals(c, DType::f32, {(2 * rows - 1) * (2 * kColumns - 1), c.spec().q_heads()}));
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const Expr index = (floor_div(q, kColumns) - floor_div(kv, kColumns) + rows - 1) * (2 * kColumns - 1) +
                     (q % kColumns - kv % kColumns + kColumns - 1);
  return leaf::score() + 0.5 * Capture("table", DType::f32, 2).at({index, leaf::h()}, 1.5);
}
Expr grid_bias_padded(AttentionCase& c) { return padded(c) + grid_bias(c) - leaf::score(); }

// A term that is NaN in the rows that the mask some_queries_blind excludes.
Expr blind_rows_poisoned(AttentionCase&) { return leaf::score() + where(leaf::q_idx() % 3 == 0, kNaN, 0.5); }

Expr blind_slopes_poisoned(AttentionCase&) {
  return leaf::score() + where(leaf::q_idx() % 3 == 0, kNaN, 0.05) * to_f32(leaf::kv_idx() - leaf::q_idx());
}

Expr scaled_by_param(AttentionCase& c) {
  c.options().bindings.params["temperature"] = 0.5;
  return leaf::score() * param("temperature", ExprType::f32) + to_f32(leaf::kv_idx() % 3);
}

Expr some_rows_masked(AttentionCase&) { return where(leaf::q_idx() % 4 == 1, -kInfinity, leaf::score()); }

Expr some_elements_poisoned(AttentionCase&) {
  const Expr poisoned = where(leaf::q_idx() % 2 == 0, kInfinity, kNaN);
  return where((leaf::q_idx() % 5 == 3) & (leaf::kv_idx() == 1), poisoned, leaf::score());
}

Expr documents(AttentionCase& c) {
  const std::vector<std::int32_t> offsets = document_offsets(c);
  std::vector<std::int32_t> ids;
  for (std::size_t document = 0; document + 1 < offsets.size(); ++document) {
    ids.insert(ids.end(), static_cast<std::size_t>(offsets[document + 1] - offsets[document]),
               static_cast<std::int32_t>(document));
  }
  c.capture("ids", integers(ids, DType::i64));
  return mods::documents(Capture("ids", DType::i64, 1));
}

Expr documents_from_starts(AttentionCase& c) {
  c.capture("starts", mods::document_starts(integers(document_offsets(c))));
  return mods::documents_from_starts(Capture("starts", DType::i32, 1));
}

Expr prefix_by_sequence(AttentionCase& c) {
  std::vector<std::int32_t> prefixes;
  for (std::int64_t b = 0; b < c.sequences(); ++b) prefixes.push_back(static_cast<std::int32_t>(c.below(40)));
  if (prefixes.empty()) prefixes.push_back(0);
  c.capture("prefix", integers(prefixes));
  return mods::prefix_lm(Capture("prefix", DType::i32, 1)(leaf::b()));
}

Expr tree(AttentionCase& c) {
  std::vector<std::int32_t> parents;
  for (std::int64_t i = 0; i < c.positions(); ++i) {
    parents.push_back(static_cast<std::int32_t>(i == 0 ? -1 : c.below(i)));
  }
  const mods::TreeIntervals intervals = mods::tree_intervals(integers(parents));
  c.capture("enter", intervals.enter);
  c.capture("last", intervals.last);
  return mods::tree(Capture("enter", DType::i32, 1), Capture("last", DType::i32, 1));
}

Expr dense(AttentionCase& c) {
  Tensor keep = Tensor::empty(DType::boolean, {c.positions(), c.positions()});
  for (std::int64_t i = 0; i < keep.count(); ++i) {
    static_cast<std::uint8_t*>(keep.data())[i] = c.below(3) == 0 ? 1 : 0;
  }
  c.capture("keep", keep);
  return Capture("keep", DType::boolean, 2)(max(leaf::q_idx(), 0), leaf::kv_idx());
}

// As documents, whose boundaries fall inside a warp's queries now and then; and further terms.
Expr long_documents(AttentionCase& c) {
  std::vector<std::int32_t> ids;
  for (std::int32_t document = 0; std::ssize(ids) < c.positions(); ++document) {
    ids.insert(ids.end(), static_cast<std::size_t>(1 + c.below(250)), document);
  }
  c.capture("ids", integers(ids));
  return mods::documents(Capture("ids", DType::i32, 1));
}

Expr dilated_documents(AttentionCase& c) {
  return documents(c) & mods::causal() & ((leaf::q_idx() - leaf::kv_idx()) % 2 == 0);
}

// A period for each head, from a table.
Expr dilated_by_head(AttentionCase& c) {
  std::vector<std::int32_t> periods;
  for (std::int64_t h = 0; h < c.spec().q_heads(); ++h) periods.push_back(static_cast<std::int32_t>(1 + c.below(9)));
  c.capture("periods", integers(periods));
  const Expr period = Capture("periods", DType::i32, 1)(leaf::h());
  return mods::causal() & ((leaf::q_idx() - leaf::kv_idx()) % period == 0);
}

// Which distances attend, from a table.
Expr distances_by_table(AttentionCase& c) {
  Tensor keep = Tensor::empty(DType::boolean, {300});
  for (std::int64_t i = 0; i < keep.count(); ++i) {
    static_cast<std::uint8_t*>(keep.data())[i] = c.below(3) == 0 ? 1 : 0;
  }
  c.capture("keep", keep);
  return Capture("keep", DType::boolean, 1).at({leaf::kv_idx() - leaf::q_idx() + 150}, false);
}

Expr dense_causal(AttentionCase& c) { return dense(c) & mods::causal(); }

Expr keys_by_table(AttentionCase& c) {
  Tensor keep = Tensor::empty(DType::boolean, {c.spec().q_heads(), c.positions()});
  for (std::int64_t i = 0; i < keep.count(); ++i) {
    static_cast<std::uint8_t*>(keep.data())[i] = c.below(4) != 0 ? 1 : 0;
  }
  c.capture("keep", keep);
  return Capture("keep", DType::boolean, 2)(leaf::h(), leaf::kv_idx());
}

Expr window_by_params(AttentionCase& c) {
  c.options().bindings.params.insert(
      {{"before", static_cast<std::int32_t>(c.below(150))}, {"after", 3}, {"open", true}});
  const Expr inside = (leaf::q_idx() - leaf::kv_idx() <= param("before", ExprType::i32)) &
                      (leaf::kv_idx() - leaf::q_idx() <= param("after", ExprType::i32));
  return inside & param("open", ExprType::boolean);
}

Expr some_queries_blind(AttentionCase&) { return (leaf::q_idx() % 3 != 0) & (leaf::kv_idx() <= leaf::q_idx() + 20); }

Expr weights_by_key(AttentionCase& c) {
  c.capture("weights", random_reals(c, DType::f32, {c.positions()}));
  return Capture("weights", DType::f32, 1)(leaf::kv_idx());
}

// Dropout's draws, in other spellings.
Expr draw() { return random_uniform(77, leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx()); }

Expr dropout_by_params(AttentionCase& c) {
  c.options().bindings.params.insert({{"p", 0.3}, {"kept", -1.7}, {"seed", static_cast<std::int32_t>(c.below(1000))}});
  const Expr own = random_uniform(param("seed", ExprType::i32), leaf::b(), leaf::h(), leaf::q_idx(), leaf::kv_idx());
  return where(!(own <= param("p", ExprType::f32)), param("kept", ExprType::f32), 0.0);
}

Expr dropout_by_head(AttentionCase& c) {
  Tensor rates = Tensor::empty(DType::f32, {c.spec().q_heads()});
  for (std::int64_t h = 0; h < rates.count(); ++h) {
    static_cast<float*>(rates.data())[h] = h % 3 == 2 ? 0 : 0.125F * static_cast<float>(h % 3 + 1);
  }
  c.capture("rates", rates);
  const Expr rate = Capture("rates", DType::f32, 1)(leaf::h());
  return where(rate <= draw(), 1.0 / (1.0 - rate), 0.0);
}

// Kept elements would be infinite, but none is kept.
Expr drops_all(AttentionCase& c) {
  c.options().bindings.params["p"] = 1.0;
  const Expr p = param("p", ExprType::f32);
  return where(draw() < p, 0.0, 1.0 / (1.0 - p));
}

}  // namespace

const std::vector<NamedMod>& score_mods() {
  static const std::vector<NamedMod> mods = {
      {"alibi", alibi},
      {"relative_bias", relative_bias},
      {"t5_bias", t5_bias},
      {"softcap", [](AttentionCase&) { return mods::softcap(2.5); }},
      {"full_bias", full_bias},
      {"scaled_by_param", scaled_by_param},
      {"padded", padded},
      {"alibi_padded", alibi_padded},
      {"temperature_and_gate", temperature_and_gate},
      {"scaled_keys_of_head", scaled_keys_of_head},
      {"grid_bias", grid_bias},
      {"grid_bias_padded", grid_bias_padded},
      {"some_rows_masked", some_rows_masked},
      {"some_elements_poisoned", some_elements_poisoned},
      {"constant", [](AttentionCase&) { return Expr(0.25); }},
      {"streamed_bias", streamed_bias},
      {"streamed_bias_f32", streamed_bias_f32},
      {"streamed_in_cap", streamed_in_cap},
      {"streamed_odd", streamed_odd},
      {"streamed_odd_f32", streamed_odd_f32},
      {"streamed_shared", streamed_shared},
      {"streamed_odd_shared", streamed_odd_shared},
      {"streamed_inside", streamed_inside},
      {"blind_rows_poisoned", blind_rows_poisoned},
      {"blind_slopes_poisoned", blind_slopes_poisoned},
      {"far_below", [](AttentionCase&) { return leaf::score() - 25.0; }},
  };
  return mods;
}

const std::vector<NamedMod>& mask_mods() {
  static const std::vector<NamedMod> mods = {
      {"causal", [](AttentionCase&) { return mods::causal(); }},
      {"causal_lower_right", [](AttentionCase&) { return mods::causal_lower_right(); }},
      {"sliding_window", [](AttentionCase&) { return mods::sliding_window(17, 3); }},
      {"dilated_window", [](AttentionCase&) { return mods::dilated_window(60, 7); }},
      {"prefix_lm", [](AttentionCase&) { return mods::prefix_lm(30); }},
      {"prefix_by_sequence", prefix_by_sequence},
      {"global_and_window", [](AttentionCase&) { return mods::global_and_window(3, 20); }},
      {"documents", documents},
      {"documents_from_starts", documents_from_starts},
      {"neighbourhood_2d", [](AttentionCase&) { return mods::neighbourhood_2d(12, 2, 3); }},
      {"tree", tree},
      {"block_diffusion", [](AttentionCase&) { return mods::block_diffusion(32); }},
      {"dense", dense},
      {"some_queries_blind", some_queries_blind},
      {"window_by_params", window_by_params},
      {"not_causal_or_window", [](AttentionCase&) { return ~mods::causal() | mods::sliding_window(2, 2); }},
      {"by_head", [](AttentionCase&) { return leaf::kv_idx() % (leaf::h() + 2) != 0; }},
      {"dilated", [](AttentionCase&) { return mods::causal() & ((leaf::q_idx() - leaf::kv_idx()) % 4 == 0); }},
      {"dilated_by_3",
       [](AttentionCase&) {
         return (leaf::kv_idx() <= leaf::q_idx() + 40) & ((leaf::kv_idx() - leaf::q_idx()) % 3 != 1);
       }},
      {"dilated_both_ways", [](AttentionCase&) { return (leaf::q_idx() - leaf::kv_idx()) % 8 < 3; }},
      {"long_documents", long_documents},
      {"long_documents_causal", [](AttentionCase& c) { return long_documents(c) & mods::causal(); }},
      {"dilated_documents", dilated_documents},
      {"dilated_by_head", dilated_by_head},
      {"distances_by_table", distances_by_table},
      {"dense_causal", dense_causal},
      {"keys_by_table", keys_by_table},
      {"nothing", [](AttentionCase&) { return Expr(false); }},
  };
  return mods;
}

const std::vector<NamedMod>& weight_mods() {
  static const std::vector<NamedMod> mods = {
      {"dropout", [](AttentionCase&) { return mods::dropout(0.25, 1234); }},
      {"dropout_by_params", dropout_by_params},
      {"dropout_by_head", dropout_by_head},
      {"dropout_mirrored", [](AttentionCase&) { return where(draw() < 0.7, 2.0, 0.0); }},
      {"drops_most", [](AttentionCase&) { return where(draw() > 0.98, 50.0, 0.0); }},
      {"drops_all", drops_all},
      {"weights_by_key", weights_by_key},
      {"zero", [](AttentionCase&) { return Expr(0.0); }},
  };
  return mods;
}

}  // namespace heddle::test
