// Rows that a GPU finds are the host's, run for run.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <string>

#include "backend/cuda/driver/driver.h"
#include "backend/cuda/jit/cuda_jit.h"
#include "backend/cuda/launch/cuda_gpu.h"
#include "backend/gpu/mask_rows_launch.h"
#include "mask/random_mask.h"
#include "mask/ready_made.h"

namespace heddle::cuda {
namespace {

constexpr Device kGpu{DeviceKind::cuda, 0};

/// A test that needs a GPU and the compiler.
class MaskRowsOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    std::string missing = driver_missing();
    if (missing.empty()) missing = jit::compiler_missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
  }

  Bindings there(const Bindings& bindings) {
    Bindings result = bindings;
    for (auto& [name, view] : result.captures) {
      const TensorView host(const_cast<void*>(view.data), view.dtype, view.shape, view.strides);
      view = copies_.emplace_back(Tensor::adopt(host, nullptr).to(kGpu));
    }
    return result;
  }

  std::vector<Tensor> copies_;
};

/// One mask's kernels, for many shapes.
class Builder {
 public:
  explicit Builder(const Expr& mask) : mask_(mask) {}

  BlockMask operator()(const MaskShape& shape, BlockSize block, const Bindings& bindings) {
    return mask::build_elsewhere(mask_, shape, block, bindings,
                                 [this](const Expr& simplified, const MaskShape& of, BlockSize size,
                                        std::span<const mask::Matrix> matrices, const Bindings& values) {
                                   const plan::KvStart start = plan::kv_start_of(of.sequences);
                                   std::unique_ptr<gpu::MaskRows>& rows = rows_[start.form];
                                   if (rows == nullptr)
                                     rows = std::make_unique<gpu::MaskRows>(cuda_gpu(), 0, simplified, start);
                                   rows->find(of, size, matrices, values);
                                   return rows->on_host();
                                 });
  }
  /// The rows of shapes without a kv_start.
  const gpu::MaskRows& rows() const { return *rows_.at(plan::KvStart::Form::zero); }

 private:
  Expr mask_;
  std::map<plan::KvStart::Form, std::unique_ptr<gpu::MaskRows>> rows_;
};

void expect_equal(Builder& builder, const Expr& mask, const MaskShape& shape, BlockSize block, const Bindings& here,
                  const Bindings& there) {
  const BlockMask by_host = BlockMask::build(mask, shape, block, here, 1, DType::f32, true),
                  by_gpu = builder(shape, block, there);
  EXPECT_EQ(by_gpu, by_host) << print(mask) << ", blocks of " << block.q << " x " << block.kv << "\n"
                             << by_gpu.text() << "\n"
                             << by_host.text();
  EXPECT_EQ(by_gpu.statistics().bytes, by_host.statistics().bytes);
}

TEST_F(MaskRowsOnGpu, ReadyMadeMasks) {
  const heddle::test::ReadyMade ready;
  const Bindings on_gpu = there(ready.bindings());
  for (const auto& [name, mask] : ready.masks()) {
    SCOPED_TRACE(name);
    Builder builder(mask);
    for (const MaskShape& shape : {heddle::test::padded(), heddle::test::decoding(), heddle::test::packed()}) {
      for (const BlockSize block : {BlockSize{16, 16}, {5, 7}, {128, 64}, {1, 1}, {1, 200}, {1 << 20, 1 << 20}}) {
        expect_equal(builder, mask, shape, block, ready.bindings(), on_gpu);
      }
    }
  }
}

/// Apart, so that the compiler's work can be spread over cores.
class RandomMaskRowsOnGpu : public MaskRowsOnGpu, public testing::WithParamInterface<int> {};

TEST_P(RandomMaskRowsOnGpu, AreTheHosts) {
  constexpr int kMasks = 8, kShapes = 12;
  heddle::test::RandomMasks random(static_cast<std::uint64_t>(GetParam()));
  for (int i = 0; i < kMasks; ++i) {
    const Expr mask = random.draw();
    Builder builder(mask);
    const Bindings on_gpu = there(random.bindings());
    for (int k = 0; k < kShapes; ++k) {
      expect_equal(builder, mask, random.shape(), random.block(), random.bindings(), on_gpu);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, RandomMaskRowsOnGpu, testing::Range(0, 8));

/// Long rows: several windows, decided and open ones side by side.
TEST_F(MaskRowsOnGpu, LongRows) {
  const Expr q = leaf::q_idx(), kv = leaf::kv_idx();
  const std::vector<Expr> masks = {mods::causal(),
                                   !(q < kv),
                                   2 * q >= 2 * kv,
                                   mods::sliding_window(1024),
                                   mods::global_and_window(40, 300),
                                   mods::dilated_window(9000, 4),
                                   floor_div(kv, 1000) % 2 == 0,
                                   Expr(true),
                                   q < 0};
  for (const Expr& mask : masks) {
    Builder builder(mask);
    for (const std::int64_t tokens : {20000, 65536, 70001}) {
      expect_equal(builder, mask, MaskShape::uniform(1, 1, tokens / 4, tokens), {64, 16}, {}, {});
    }
  }
}

/// Clamped: what is read outside is the nearest element, and of an empty tensor 0.
TEST_F(MaskRowsOnGpu, ReadsOutside) {
  heddle::test::RandomMasks random(21);
  const Tensor empty = Tensor::zeros(DType::i32, {0});
  Bindings here = random.bindings();
  here.captures["none"] = empty;
  const Bindings on_gpu = there(here);
  for (const char* text : heddle::test::kMasksThatReadOutside) {
    const Expr mask = parse(text, Symbols(here));
    Builder builder(mask);
    for (const BlockSize block : {BlockSize{16, 16}, {128, 64}}) {
      expect_equal(builder, mask, MaskShape::uniform(1, 2, 700, 600), block, here, on_gpu);
    }
  }
}

TEST_F(MaskRowsOnGpu, FindsAnewInPlace) {
  heddle::test::RandomMasks random(12);
  const Capture doc("doc", DType::i32, 1);
  const Expr mask =
      mods::documents(doc) & mods::causal() & (leaf::q_idx() - leaf::kv_idx() <= param("window", ExprType::i32));
  Builder builder(mask);
  for (int round = 0; round < 6; ++round) {
    Bindings here = random.bindings();
    here.params["window"] = 1 + random.below(200);
    expect_equal(builder, mask, MaskShape::uniform(2, 3, 512 - 31 * round, 512), {16, 16}, here, there(here));
    random.fill();
  }
  const std::int64_t bytes = builder.rows().bytes();
  expect_equal(builder, mask, MaskShape::uniform(1, 1, 100, 100), {16, 16}, random.bindings(),
               there(random.bindings()));
  EXPECT_EQ(builder.rows().bytes(), bytes);
}

/// NaN, infinities and every storage type, through the zone maps.
TEST_F(MaskRowsOnGpu, EveryStorageType) {
  constexpr std::int64_t kTokens = 700;
  Tensor values = Tensor::empty(DType::f32, {kTokens});
  for (std::int64_t i = 0; i < kTokens; ++i) {
    float value = static_cast<float>(i / 100) - 3;
    if (i == 350) value = std::numeric_limits<float>::quiet_NaN();
    if (i == 500) value = std::numeric_limits<float>::infinity();
    static_cast<float*>(values.data())[i] = value;
  }
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::i16,
                            DType::i8, DType::u64, DType::u32, DType::u16, DType::u8, DType::boolean}) {
    SCOPED_TRACE(name(dtype));
    Bindings here;
    const Tensor stored = copy(values, dtype);
    here.captures["x"] = stored;
    const Capture x("x", dtype, 1);
    const Expr at_q = x(leaf::q_idx()), at_kv = x(leaf::kv_idx());
    const Expr mask = dtype == DType::boolean ? at_q ^ at_kv : at_q >= at_kv;
    Builder builder(mask);
    for (const BlockSize block : {BlockSize{16, 64}, {128, 128}}) {
      expect_equal(builder, mask, MaskShape::uniform(1, 1, kTokens, kTokens), block, here, there(here));
    }
  }
}

TEST_F(MaskRowsOnGpu, MemoryIsAtMostTwiceTheRows) {
  constexpr std::int64_t kTokens = 1 << 17;
  Tensor ids = Tensor::empty(DType::i32, {kTokens});
  for (std::int64_t i = 0; i < kTokens; ++i) {
    static_cast<std::int32_t*>(ids.data())[i] = static_cast<std::int32_t>(i / 3000);
  }
  Bindings here;
  here.captures["ids"] = ids;
  const Expr mask = mods::documents(Capture("ids", DType::i32, 1)) & mods::causal();
  Builder builder(mask);
  expect_equal(builder, mask, MaskShape::uniform(1, 1, kTokens, kTokens), {128, 128}, here, there(here));
  EXPECT_LE(builder.rows().bytes(), 2 * builder.rows().row_bytes());
}

}  // namespace
}  // namespace heddle::cuda
