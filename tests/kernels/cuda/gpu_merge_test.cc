// merge_states on a GPU beside the CPU's, on the same inputs. HEDDLE_TEST_BACKEND=cpu runs both on the CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/element.h"
#include "heddle/heddle.h"
#include "kernels/cuda/gpu_test.h"

namespace heddle::test {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class GpuMerge : public GpuTest {};

Device there() { return gpu_backend() == BackendChoice::cuda ? Device{DeviceKind::cuda, 0} : Device{}; }

/// Some rows of which a part has attended nothing, or has NaN or +inf; o of the former holds NaN.
struct States {
  std::vector<Tensor> o, lse;

  States(const Dims& shape, const std::vector<DType>& types, unsigned seed, bool special = true) {
    std::mt19937 rng(seed);
    std::normal_distribution<double> normal;
    for (const DType dtype : types) {
      Tensor values = Tensor::empty(DType::f64, shape),
             sums = Tensor::empty(DType::f64, {shape[0], shape[1], shape[2]});
      const std::int64_t columns = shape[3];
      for (std::int64_t row = 0; row < sums.count(); ++row) {
        const auto kind = special ? rng() % 40 : 40;
        const bool first = o.empty();  // one NaN makes a row NaN
        double own = 5 * normal(rng);
        if (kind < 12) own = -kInfinity;
        if (kind == 12 && first) own = kNan;
        if (kind == 13 && first) own = kInfinity;
        static_cast<double*>(sums.data())[row] = own;
        for (std::int64_t d = 0; d < columns; ++d) {
          static_cast<double*>(values.data())[row * columns + d] = kind < 6 ? kNan : normal(rng);
        }
      }
      o.push_back(values.to(dtype));
      lse.push_back(sums.to(seed % 2 == 0 ? DType::f32 : DType::f64));
    }
  }
};

std::vector<ConstTensorView> views(const std::vector<Tensor>& tensors) { return {tensors.begin(), tensors.end()}; }

Tensor filled(DType dtype, const Dims& shape) {
  Tensor x = Tensor::empty(DType::f64, shape);
  std::fill_n(static_cast<double*>(x.data()), x.count(), kNan);
  return x.to(dtype);
}

/// But for the last bit of f64 that exp and log may differ in.
void expect_same(const Tensor& ours, const Tensor& expected, const char* what) {
  ASSERT_EQ(ours.count(), expected.count());
  std::int64_t wrong = 0, finite = 0;
  for (std::int64_t i = 0; i < ours.count(); ++i) {
    const double x = base::load_element(ours.data(), ours.dtype(), i),
                 y = base::load_element(expected.data(), expected.dtype(), i);
    // A value that lies next to the middle of two numbers of its type may become either.
    alignas(8) std::byte low[8], high[8];
    base::store_element(low, ours.dtype(), 0, y * (1 - 1e-14));
    base::store_element(high, ours.dtype(), 0, y * (1 + 1e-14));
    if (std::isfinite(y)) ++finite;
    const bool same =
        std::isnan(y) ? std::isnan(x)
        : std::isinf(y) || ours.dtype() != DType::f64
            ? x == y || x == base::load_element(low, ours.dtype(), 0) || x == base::load_element(high, ours.dtype(), 0)
            : std::abs(x - y) <= 1e-13 * (1 + std::abs(y));
    if (!same && ++wrong < 4) ADD_FAILURE() << what << " " << i << " is " << x << ", not " << y;
  }
  EXPECT_EQ(wrong, 0) << what;
  EXPECT_GT(finite, ours.count() / 4) << what;
}

/// Merges there and on the CPU, o as [B, S, H, D] memory where `rows_first`.
void compare(const States& states, DType o_dtype, DType lse_dtype, bool rows_first = false) {
  const Dims shape = states.o.front().shape(), of_lse = states.lse.front().shape();
  const Dims order = {0, 2, 1, 3};
  const Dims memory = rows_first ? Dims{shape[0], shape[2], shape[1], shape[3]} : shape;
  const Tensor expected = filled(o_dtype, memory), expected_lse = filled(lse_dtype, of_lse);
  const Tensor o = filled(o_dtype, memory).to(there()), lse = filled(lse_dtype, of_lse).to(there());
  const auto placed = [&](const Tensor& x) { return rows_first ? permute(x.view(), order) : x.view(); };
  merge_states(views(states.o), views(states.lse), placed(expected), expected_lse.view());

  States copies = states;
  for (Tensor& x : copies.o) x = x.to(there());
  for (Tensor& x : copies.lse) x = x.to(there());
  const Stream stream;
  merge_states(views(copies.o), views(copies.lse), placed(o), lse.view(), stream.handle());
  stream.wait();
  expect_same(o.to(Device{}), expected, "o");
  expect_same(lse.to(Device{}), expected_lse, "lse");
}

TEST_F(GpuMerge, AgreesWithTheCpu) {
  const std::vector<DType> types = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::e4m3, DType::e5m2};
  unsigned seed = 0;
  for (const DType of_parts : types) {
    for (const DType of_o : types) {
      // Columns of one thread, of several, of a warp and more; some that eight do not divide.
      const std::int64_t columns[] = {64, 128, 256, 520, 8, 1, 33, 100}, counts[] = {1, 2, 3, 5, 17, 64};
      const Dims shape = {2, 3, 37, columns[seed % 8]};
      const std::vector<DType> parts(static_cast<std::size_t>(counts[seed % 6]), of_parts);
      SCOPED_TRACE(testing::Message() << seed << ": " << parts.size() << " parts of " << name(of_parts) << ", o "
                                      << name(of_o) << ", Dv " << shape[3]);
      compare(States(shape, parts, seed), of_o, seed % 3 == 0 ? DType::f64 : DType::f32, seed % 4 == 1);
      ++seed;
    }
  }
}

TEST_F(GpuMerge, PartsOfDifferentTypes) {
  const std::vector<DType> types = {DType::f64, DType::bf16, DType::e5m2, DType::f32, DType::f16, DType::e4m3};
  for (const std::int64_t columns : {128, 33}) compare(States({1, 2, 50, columns}, types, 7), DType::f32, DType::f32);
}

// More rows than one turn of all warps takes.
TEST_F(GpuMerge, ManyRows) { compare(States({3, 7, 5001, 8}, {DType::bf16, DType::f32}, 9), DType::bf16, DType::f32); }

TEST_F(GpuMerge, WritesInPlace) {
  for (const std::int64_t columns : {64, 520, 33}) {
    const States states({1, 2, 200, columns}, {DType::f32, DType::f32, DType::f32}, 4);
    const Tensor o = filled(DType::f32, states.o[0].shape()), lse = filled(DType::f32, states.lse[0].shape());
    merge_states(views(states.o), views(states.lse), o, lse.view());
    States copies = states;
    for (Tensor& x : copies.o) x = x.to(there());
    for (Tensor& x : copies.lse) x = x.to(there());
    const Stream stream;
    merge_states(views(copies.o), views(copies.lse), copies.o[1], copies.lse[2].view(), stream.handle());
    stream.wait();
    expect_same(copies.o[1].to(Device{}), o, "o");
    expect_same(copies.lse[2].to(Device{}), lse, "lse");
  }
}

TEST_F(GpuMerge, DoesNothingForNoRows) {
  const States states({0, 2, 5, 8}, {DType::f32}, 1);
  const Tensor o = Tensor::empty_on(there(), DType::f32, {0, 2, 5, 8});
  std::vector<Tensor> parts = {states.o[0].to(there())}, sums = {states.lse[0].to(there())};
  merge_states(views(parts), views(sums), o);
}

}  // namespace
}  // namespace heddle::test
