// The backward's terms of parts of the keys add up to the backward of all, on the backend under test.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/attention_case.h"
#include "heddle/backward.h"
#include "heddle/error.h"
#include "heddle/mods.h"

namespace heddle::test {
namespace {

constexpr std::int64_t kRows = 70, kHeads = 3, kCut = 40;

Tensor drawn_rows(const Dims& shape, unsigned seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  Tensor tensor = Tensor::empty(DType::f64, shape);
  for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<double*>(tensor.data())[i] = normal(generator);
  return tensor;
}

void add(const Tensor& to, const Tensor& term) {
  for (std::int64_t i = 0; i < to.count(); ++i) {
    static_cast<double*>(to.data())[i] += static_cast<const double*>(term.data())[i];
  }
}
void expect_near(const TensorView& x, const TensorView& y) {
  ASSERT_EQ(x.shape, y.shape);
  for (std::int64_t i = 0; i < x.count(); ++i) {
    EXPECT_NEAR(static_cast<const double*>(x.data)[i], static_cast<const double*>(y.data)[i], 1e-11);
  }
}

// The reference finds o and lse itself.
bool is_refused() { return backend_under_test() == BackendChoice::reference; }

TEST(PartialKeys, TermsAddUp) {
  if (is_refused()) GTEST_SKIP() << "the reference takes all keys";
  const Dims shape = {1, kHeads, kRows, 8};
  const Tensor q = drawn_rows(shape, 1), k = drawn_rows(shape, 2), v = drawn_rows(shape, 3), d_o = drawn_rows(shape, 4),
               d_lse = drawn_rows({1, kHeads, kRows}, 5), by_head = drawn_rows({kHeads}, 6),
               by_row = drawn_rows({kRows}, 7), slopes = drawn_rows({kHeads}, 8), sinks = drawn_rows({kHeads}, 9);
  AttentionOptions options;
  options.backend = backend_under_test();
  options.mask_mod = mods::causal();
  options.sinks = sinks;
  options.bindings.captures = {{"by_head", by_head}, {"by_row", by_row}, {"slopes", slopes}};
  options.score_mod =
      parse("score + by_head[h] + by_row[q_idx] + slopes[h] * (kv_idx - q_idx)", Symbols(options.bindings));
  const AttentionResult forward = attention(q, k, v, options, true);
  BackwardTensors all{q, k, v, forward.o, forward.lse, d_o, d_lse};
  const GradientRequest everything = {.captures = {"by_head", "by_row", "slopes"}};
  const BackwardResult whole = attention_backward(all, options, everything);

  const Tensor dq = Tensor::zeros(DType::f64, shape);
  std::map<std::string, Tensor> sums;
  for (const auto& [name, view] : options.bindings.captures) sums[name] = Tensor::zeros(DType::f64, view.shape);
  options.partial_keys = true;
  for (const auto& [begin, end] : {std::pair(std::int64_t{0}, kCut), {kCut, kRows}}) {
    BackwardTensors part = all;
    part.k = slice(k.view(), 2, begin, end);
    part.v = slice(v.view(), 2, begin, end);
    const auto first = static_cast<std::int32_t>(begin);
    options.kv_start = ConstTensorView(&first, DType::i32, {1});
    const BackwardResult terms = attention_backward(part, options, everything);
    add(dq, terms.dq);
    for (const auto& [name, sum] : sums) add(sum, terms.d_captures.at(name));
    for (const auto& [of_part, of_all] : {std::pair(terms.dk, whole.dk), {terms.dv, whole.dv}}) {
      const Tensor own = copy(slice(of_all.view(), 2, begin, end), DType::f64);
      expect_near(of_part, own);
    }
  }
  expect_near(dq, whole.dq);
  for (const auto& [name, sum] : sums) expect_near(sum, whole.d_captures.at(name));
}

TEST(PartialKeys, RefuseWhatIsOfNoPart) {
  const Tensor x = drawn_rows({1, 1, 4, 8}, 1), sinks = drawn_rows({1}, 2), lse = drawn_rows({1, 1, 4}, 3);
  AttentionOptions options;
  options.backend = backend_under_test();
  options.sinks = sinks;
  options.partial_keys = true;
  const BackwardTensors tensors{x, x, x, x, lse, x};
  EXPECT_THROW(attention_backward(tensors, options, {.sinks = true}), Error);
  EXPECT_THROW(check_backward(tensors, options), Error);
  if (is_refused()) {
    EXPECT_THROW(attention_backward(tensors, options), Error);
  } else {
    EXPECT_NO_THROW(attention_backward(tensors, options));
  }
}

}  // namespace
}  // namespace heddle::test
