#include "engine/attention_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string_view>

#include "base/element.h"
#include "heddle/mods.h"
#include "problem/problem.h"

namespace heddle::test {
namespace {

/// A number a row.
TensorView numbers_view(const GuardedTensor& rows) {
  const TensorView& view = rows.view();
  return {view.data,
          view.dtype,
          {view.shape[0], view.shape[1], view.shape[3]},
          {view.strides[0], view.strides[1], view.strides[3]}};
}

}  // namespace

std::string CaseSpec::text() const {
  const char* normalizers[] = {"softmax", "none", "sigmoid"};
  const char* layouts[] = {"bhsd", "bshd", "gaps", "sliced", "padded", "reversed", "expanded", "one_row"};
  return fmt::format(
      "seed {} B {} Hkv {} group {} Sq {} Skv {} Dqk {} Dv {}{} q {} k {} v {} o {} layout {} shared batch {}{} "
      "sequences {} "
      "q_start {} kv_start {}{} score '{}' mask '{}' weight '{}' sinks {} rows {} normalizer {} spread {} late {}{} "
      "scale {} descale "
      "{} "
      "{}{}{} threads {} alignment {} {}pages of {}{}{}{}",
      seed, batch, kv_heads, group, q_rows, kv_rows, qk_dim, v_dim,
      q_rest + k_rest == 0 ? "" : fmt::format(" (apart: {} of q, {} of k)", q_rest, k_rest), name(q_dtype),
      name(k_dtype), name(v_dtype), o_dtype ? name(*o_dtype) : "default", layouts[static_cast<int>(layout)],
      share_q_batch ? "q" : "",
      share_kv_batch  ? "kv"
      : share_k_batch ? "k"
                      : "",
      sequences, q_start, kv_start, device_lengths ? " there" : "", score, mask, weight, sinks,
      block ? fmt::format("{} {}x{}", rows, block->q, block->kv) : rows, normalizers[static_cast<int>(normalizer)],
      spread, late, far == 0 ? "" : fmt::format(" far {}", far), scale ? fmt::format("{}", *scale) : "default", descale,
      with_lse ? "lse" : "no lse", with_max_scores ? ", max_scores" : "", with_lse_rest ? ", lse_rest" : "", threads,
      alignment, listed_pages ? "listed " : "", page_rows, prefixes ? " prefixes" : "",
      granule > 0 ? fmt::format(" granules of {}", granule) : "",
      tile ? fmt::format(" tile {}x{} packed {} ctas {}", tile->q, tile->kv, packed, ctas) : "");
}

AttentionCase::AttentionCase(const CaseSpec& spec) : spec_(spec), rng_(spec.seed) {
  const bool packed = spec.sequences == "packed" || spec.sequences == "slots";
  const std::int64_t batch = packed ? 1 : spec.batch;
  const auto side = [&] { return below(4) == 0 ? GuardedMemory::Side::start : GuardedMemory::Side::end; };
  const auto tensor = [&](DType dtype, const Dims& shape) { return GuardedTensor(dtype, shape, spec.layout, side()); };
  make_sequences();
  const auto queries = [&](std::int64_t dim) {
    return tensor(spec.q_dtype, {spec.share_q_batch ? 1 : batch, spec.q_heads(), spec.q_rows, dim});
  };
  q = queries(spec.qk_dim - spec.q_rest);
  if (spec.page_rows > 0) make_pages();
  k = tensor(spec.k_dtype, kv_shape(spec.share_k_batch ? 1 : batch, spec.qk_dim - spec.k_rest));
  v = tensor(spec.v_dtype, kv_shape(batch, spec.v_dim));
  const double spread = std::sqrt(spec.spread);
  fill(q, spread, q_lengths_);
  fill(k, spread, kv_lengths_);
  fill(v, 1, kv_lengths_);
  if (spec.q_rest > 0) {
    q_rest = queries(spec.q_rest);
    fill(q_rest, spread, q_lengths_);
    options_.q_rest = q_rest.view();
  }
  if (spec.k_rest > 0) {
    k_rest = tensor(spec.k_dtype, kv_shape(batch, spec.k_rest));
    fill(k_rest, spread, kv_lengths_);
    options_.k_rest = k_rest.view();
  }
  if (spec.prefixes) make_prefixes();
  const problem::Outputs outputs = problem::outputs_of(q.view(), k.view(), v.view(), options_);
  const bool overlaps = spec.layout == Layout::expanded || spec.layout == Layout::one_row;
  const Layout layout = overlaps ? Layout::bhsd : spec.layout;
  o = GuardedTensor(spec.o_dtype.value_or(outputs.o_dtype), {batch, spec.q_heads(), spec.q_rows, spec.v_dim}, layout,
                    side());
  lse_rows = GuardedTensor(outputs.lse_dtype, {batch, spec.q_heads(), 1, spec.q_rows}, layout, side());
  options_.backend = backend_under_test();
  options_.threads = spec.threads;
  options_.scale = spec.scale;
  options_.allow_tf32 = spec.allow_tf32;
  options_.normalizer = spec.normalizer;
  make_small_tensors();
  make_mods();
  deal_granules();
  make_rows();
  for (const auto& [wanted, rows] :
       {std::pair{spec.with_max_scores, &max_score_rows}, {spec.with_lse_rest, &lse_rest_rows}}) {
    if (!wanted) continue;
    *rows = GuardedTensor(outputs.lse_dtype, {batch, spec.q_heads(), 1, spec.q_rows}, layout, GuardedMemory::Side::end);
  }
}

Dims AttentionCase::kv_shape(std::int64_t batch, std::int64_t dim) const {
  if (spec_.page_rows > 0) return {std::ssize(page_used_), spec_.kv_heads, spec_.page_rows, dim};
  return {spec_.share_kv_batch ? 1 : batch, spec_.kv_heads, spec_.kv_rows, dim};
}

// Whether a row of packed keys is one of those that kv_lengths leaves.
bool AttentionCase::counts(std::int64_t row) const {
  for (std::size_t i = 0; i < kv_lengths_.size(); ++i) {
    if (row >= kv_begins_[i] && row < kv_begins_[i] + kv_lengths_[i]) return true;
  }
  return false;
}

// Rows past the end of their sequence stay NaN, as do those of pages without a sequence.
void AttentionCase::fill(const GuardedTensor& tensor, double spread, const std::vector<std::int64_t>& lengths,
                         int row_axis) {
  const DType dtype = tensor.view().dtype;
  const double limit = dtype == DType::e4m3 ? 400 : 50000;
  std::normal_distribution<double> normal;
  tensor.for_each_element([&](const Dims& index, std::int64_t offset) {
    const bool of_keys = &tensor == &k || &tensor == &k_rest, paged = spec_.page_rows > 0 && (of_keys || &tensor == &v);
    if (paged && index[row_axis] >= page_used_[static_cast<std::size_t>(index[0])]) return;
    if (spec_.sequences == "lengths" && !paged) {
      const auto own = static_cast<std::size_t>(index[0]);
      const bool shared = tensor.view().shape[0] == 1 && !lengths.empty();
      if (index[row_axis] >= (shared ? *std::ranges::max_element(lengths) : lengths[own])) return;
    }
    if (of_keys || &tensor == &v) {
      if (spec_.sequences == "slots" && !counts(index[row_axis])) return;
    }
    const bool is_late =
        of_keys &&
        4 * (index[row_axis] + (paged ? page_first_[static_cast<std::size_t>(index[0])] : 0)) >= 3 * spec_.kv_rows;
    const double x = std::clamp((is_late ? spec_.late : 1) * spread * normal(rng_), -limit, limit);
    base::store_element(tensor.view().data, dtype, offset, x);
  });
}

void AttentionCase::capture(const std::string& name, const Tensor& tensor) {
  options_.bindings.captures[name] = keep(tensor);
}

// NaN stands between them.
void AttentionCase::make_sinks() {
  if (spec_.sinks == "none") return;
  constexpr std::int64_t kApart = 3;
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();
  constexpr float kMixed[] = {-kInfinity, 150, -1e4F, 2, kNaN, 40, kInfinity};
  const float base = spec_.sinks == "large" ? 150.0F : spec_.sinks == "small" ? -1e4F : 0.0F;
  std::normal_distribution<float> normal;
  const Tensor drawn = Tensor::empty(DType::f32, {spec_.q_heads(), kApart});
  for (std::int64_t i = 0; i < drawn.count(); ++i) {
    float& x = static_cast<float*>(drawn.data())[i];
    const std::int64_t head = i / kApart;
    x = i % kApart != 0 ? kNaN : base + normal(rng_);
    if (i % kApart == 0 && spec_.sinks == "mixed") x = kMixed[(head + below(2)) % std::ssize(kMixed)];
  }
  const Tensor kept = keep(drawn.to(spec_.q_dtype == DType::f64 ? DType::f64 : DType::f32));
  options_.sinks = ConstTensorView(kept.data(), kept.dtype(), Dims{spec_.q_heads()}, Dims{kApart});
}

void AttentionCase::make_small_tensors() {
  make_sinks();
  std::normal_distribution<float> normal;
  const auto reals = [&](const Dims& shape, float base, float spread) {
    Tensor tensor = Tensor::empty(DType::f32, shape);
    for (std::int64_t i = 0; i < tensor.count(); ++i) {
      static_cast<float*>(tensor.data())[i] = base + spread * normal(rng_);
    }
    return tensor;
  };
  const auto is_fp8 = [](DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; };
  if (!spec_.descale || !is_fp8(spec_.k_dtype)) return;
  if (is_fp8(spec_.q_dtype)) options_.q_descale = keep(reals({sequences_, spec_.q_heads()}, 0.5F, 0.1F));
  options_.k_descale = keep(reals({1, spec_.kv_heads}, 0.5F, 0.1F));
  options_.v_descale = keep(reals({sequences_, 1}, 2.0F, 0.3F));
}

// Rows with odd blocks, or lists that leave out a third of the blocks.
void AttentionCase::make_rows() {
  if (spec_.rows == "built") return;
  const problem::AttentionProblem problem = problem::validate(tensors(), options_);
  // One head's rows may serve all.
  const bool reads_heads = !problem.mask_mod.empty() && print(problem.mask_mod).find("h") != std::string::npos;
  const bool of_one = spec_.seed % 2 == 0 && (!reads_heads || spec_.rows == "lists") && problem.q_heads > 0;
  const MaskShape shape = {of_one ? 1 : problem.q_heads, problem.sequences};
  const DType reals = spec_.q_dtype == DType::f64 ? DType::f64 : DType::f32;
  if (spec_.rows == "given" || spec_.sequences != "whole") {
    const BlockSize odd = {1 + below(70), 1 + below(200)}, block = spec_.block.value_or(odd);
    options_.block_mask =
        std::make_shared<BlockMask>(BlockMask::build(problem.mask_mod, shape, block, options_.bindings, 1, reals));
    return;
  }
  const BlockSize any = {16 + below(50), 16 + below(50)}, block = spec_.block.value_or(any);
  const std::int64_t rows = (spec_.q_rows + block.q - 1) / block.q;
  const std::int64_t columns = (spec_.kv_rows + block.kv - 1) / block.kv;
  BlockLists lists = {Tensor::zeros(DType::i32, {1, 1, rows}), Tensor::zeros(DType::i32, {1, 1, rows, columns}),
                      Tensor::zeros(DType::i32, {1, 1, rows}), Tensor::zeros(DType::i32, {1, 1, rows, columns})};
  const auto append = [&](const Tensor& counts, const Tensor& indices, std::int64_t row, std::int64_t column) {
    std::int32_t& count = static_cast<std::int32_t*>(counts.data())[row];
    static_cast<std::int32_t*>(indices.data())[row * columns + count++] = static_cast<std::int32_t>(column);
  };
  for (std::int64_t row = 0; row < rows; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const std::int64_t kind = below(3);
      if (kind == 0) append(lists.kv_num_blocks, lists.kv_indices, row, column);
      if (kind == 1) append(lists.full_kv_num_blocks, lists.full_kv_indices, row, column);
    }
  }
  options_.block_mask = std::make_shared<BlockMask>(BlockMask::from_lists(lists, shape, block, problem.mask_mod));
}

AttentionTensors AttentionCase::tensors() const {
  AttentionTensors tensors = {q.view(), k.view(), v.view(), o.view(), {}};
  if (spec_.values_in_keys) {
    tensors.v = k.view();
    tensors.v.shape = {k.view().shape[0], k.view().shape[1], k.view().shape[2], spec_.v_dim};
  }
  if (spec_.normalizer == Normalizer::softmax && spec_.with_lse) tensors.lse = numbers_view(lse_rows);
  if (spec_.with_max_scores && max_score_rows.view().rank() == 4) tensors.max_scores = numbers_view(max_score_rows);
  if (tensors.lse && lse_rest_rows.view().rank() == 4) tensors.lse_rest = numbers_view(lse_rest_rows);
  return tensors;
}

BackendChoice backend_under_test() {
  const char* given = std::getenv("HEDDLE_TEST_BACKEND");
  const std::string_view text = given != nullptr ? given : "";
  if (text == "cuda") return BackendChoice::cuda;
  if (text == "amd") return BackendChoice::amd;
  return text == "reference" ? BackendChoice::reference : BackendChoice::cpu;
}

void judge(const AttentionCase& c) {
  const AttentionTensors tensors = c.tensors();
  EXPECT_TRUE(c.o.gaps_untouched());
  EXPECT_TRUE(c.lse_rows.gaps_untouched());
  EXPECT_TRUE(!tensors.max_scores || c.max_score_rows.gaps_untouched());
  EXPECT_TRUE(!tensors.lse_rest || c.lse_rest_rows.gaps_untouched());
  const CheckReport report = check_attention(tensors.q, tensors.k, tensors.v, c.options(), tensors.o, tensors.lse,
                                             tensors.max_scores, tensors.lse_rest);
  EXPECT_TRUE(report.passed) << report.text();
}

void run_and_judge(AttentionCase& c) {
  SCOPED_TRACE(c.spec().text());
  const AttentionTensors tensors = c.tensors();
  attention_into(tensors, c.options());
  judge(c);
}

Outputs outputs_of(const AttentionCase& c) {
  Outputs outputs = {c.o.bytes(), c.lse_rows.bytes(), {}, {}};
  if (c.spec().with_max_scores) outputs.max_scores = c.max_score_rows.bytes();
  if (c.spec().with_lse_rest) outputs.lse_rest = c.lse_rest_rows.bytes();
  return outputs;
}

}  // namespace heddle::test
