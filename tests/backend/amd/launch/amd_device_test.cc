// The library on the fake ROCm device, beside attention: tensors there, merged states, masks, explain, refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "backend/amd/launch/fake_device.h"
#include "base/element.h"
#include "engine/append_case.h"
#include "expect_error.h"
#include "heddle/heddle.h"

namespace heddle::amd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr Device kRocm{DeviceKind::rocm, 0};

class AmdDevices : public FakeDeviceTest {};

Tensor random_tensor(DType dtype, const Dims& shape, unsigned seed) {
  const Tensor tensor = Tensor::empty(DType::f32, shape);
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < tensor.count(); ++i) static_cast<float*>(tensor.data())[i] = normal(rng);
  return tensor.to(dtype);
}

TEST_F(AmdDevices, HoldTensors) {
  const Tensor here = random_tensor(DType::f16, {3, 5}, 1), there = here.to(kRocm);
  EXPECT_EQ(there.view().device, kRocm);
  const Tensor back = there.to(Device{});
  EXPECT_EQ(std::memcmp(back.data(), here.data(), 30), 0);
  expect_error(
      [&] {
        Tensor::empty_on({DeviceKind::rocm, 5}, DType::f32, {1});
      },
      ErrorCode::unsupported, "there is no ROCm device 5; this machine has 2");
  EXPECT_EQ(missing(DeviceKind::rocm), "");
  EXPECT_EQ(devices().back().kind, "rocm");
}

TEST_F(AmdDevices, MergeStates) {
  struct Types {
    DType parts, merged;
  };
  for (const auto& [dtype, of_o] :
       {Types{DType::bf16, DType::bf16}, Types{DType::bf16, DType::f32}, Types{DType::f32, DType::f32},
        Types{DType::e4m3, DType::e4m3}, Types{DType::e5m2, DType::e5m2}}) {
    std::vector<Tensor> o, lse, o_there, lse_there;
    for (unsigned part = 0; part < 3; ++part) {
      o.push_back(random_tensor(dtype, {1, 2, 5, 20}, part));
      lse.push_back(random_tensor(DType::f32, {1, 2, 5}, 10 + part));
      if (part == 1) static_cast<float*>(lse[1].data())[3] = -INFINITY;
      o_there.push_back(o.back().to(kRocm));
      lse_there.push_back(lse.back().to(kRocm));
    }
    const auto views = [](const std::vector<Tensor>& all) {
      return std::vector<ConstTensorView>(all.begin(), all.end());
    };
    const Tensor expected = Tensor::empty(of_o, {1, 2, 5, 20}), expected_lse = Tensor::empty(DType::f32, {1, 2, 5});
    merge_states(views(o), views(lse), expected, expected_lse);
    const Tensor merged = Tensor::empty_on(kRocm, of_o, {1, 2, 5, 20}),
                 merged_lse = Tensor::empty_on(kRocm, DType::f32, {1, 2, 5});
    merge_states(views(o_there), views(lse_there), merged, merged_lse);
    const Tensor found = merged.to(Device{}), found_lse = merged_lse.to(Device{});
    for (std::int64_t i = 0; i < found.count(); ++i) {
      const double x = base::load_element(found.data(), of_o, i), y = base::load_element(expected.data(), of_o, i);
      EXPECT_EQ(x, y) << name(of_o) << " " << i;
    }
    for (std::int64_t i = 0; i < found_lse.count(); ++i) {
      EXPECT_FLOAT_EQ(static_cast<float*>(found_lse.data())[i], static_cast<float*>(expected_lse.data())[i]);
    }
  }
}

TEST_F(AmdDevices, AppendKv) {
  for (const unsigned seed : {1U, 2U, 4U, 9U, 11U, 16U}) {
    test::AppendSpec spec = test::drawn_append(seed);
    spec.heads = 1;
    spec.q_heads = 2;
    const test::AppendCase before(spec, seed), there = before.on(kRocm);
    append_kv(there.tensors(), there.options());
    EXPECT_EQ(test::AppendCase::wrong(before, there), "") << "seed " << seed;
  }
}

// A list has entries behind those of a sequence, which are another one's.
TEST_F(AmdDevices, AppendKvStaysInItsPartOfAList) {
  const test::AppendCase before({.heads = 1, .qk_dim = 16, .v_dim = 16, .page_rows = 4, .listed = true}, 3);
  auto* starts = static_cast<std::int32_t*>(before.page_starts.data());
  static_cast<std::int32_t*>(before.lengths.data())[0] = 4 * (starts[1] - starts[0]) - 2;  // of its 4 new rows 2 fit
  const test::AppendCase there = before.on(kRocm);
  append_kv(there.tensors(), there.options());
  EXPECT_EQ(test::AppendCase::wrong(before, there), "");
}

struct Call {
  Tensor q = random_tensor(DType::bf16, {1, 2, 20, 32}, 1).to(kRocm),
         k = random_tensor(DType::bf16, {1, 2, 30, 32}, 2).to(kRocm),
         v = random_tensor(DType::bf16, {1, 2, 30, 32}, 3).to(kRocm),
         o = Tensor::empty_on(kRocm, DType::bf16, {1, 2, 20, 32}),
         lse = Tensor::empty_on(kRocm, DType::f32, {1, 2, 20});
  AttentionTensors tensors() const { return {q, k, v, o, TensorView(lse), {}}; }
};

TEST_F(AmdDevices, ExplainWhatIsPlanned) {
  const AttentionPlan plan(Call().tensors(), {});
  EXPECT_EQ(plan.backend(), BackendChoice::amd);
  EXPECT_THAT(plan.explain(), AllOf(HasSubstr("on rocm:0"), HasSubstr("plan       forward_mma on amd:0"),
                                    HasSubstr("tile 64 queries x 64 keys"), HasSubstr("row_waves 4"),
                                    HasSubstr("fragments gfx"), HasSubstr("registers: "), HasSubstr("cache key: ")));
}

// A mask that reads what the device holds is built on the host, and explain says why.
TEST_F(AmdDevices, MasksAreBuiltOnTheHost) {
  const Call call;
  const Tensor ids = Tensor::zeros(DType::i32, {30}).to(kRocm);
  AttentionOptions options;
  options.mask_mod = Capture("ids", DType::i32, 1)(leaf::q_idx()) == Capture("ids", DType::i32, 1)(leaf::kv_idx());
  options.bindings.captures["ids"] = ids;
  const AttentionPlan plan(call.tensors(), options);
  EXPECT_THAT(plan.explain(), HasSubstr("kernels that find a block mask are there for CUDA alone"));
}

TEST_F(AmdDevices, RefuseMemoryOfAnotherPlace) {
  const Call call;
  const Tensor here = random_tensor(DType::bf16, {1, 2, 20, 32}, 1);
  AttentionTensors tensors = call.tensors();
  tensors.q.data = here.data();
  expect_error([&] { attention_into(tensors, {}); }, ErrorCode::invalid_argument,
               "q is on rocm:0, but its data is in host memory; memory of rocm:0 is accepted");
  const Tensor other = Tensor::empty_on({DeviceKind::rocm, 1}, DType::bf16, {1, 2, 20, 32});
  tensors.q.data = other.data();
  expect_error([&] { attention_into(tensors, {}); }, ErrorCode::invalid_argument,
               "q is on rocm:0, but its data is in the memory of rocm:1; memory of rocm:0 is accepted");
}

TEST_F(AmdDevices, RefuseWhatNoKernelComputes) {
  AttentionOptions options;
  options.backend = BackendChoice::cuda;
  expect_error([&] { AttentionPlan(Call().tensors(), options); }, ErrorCode::unsupported,
               HasSubstr("q is on rocm:0; backend cuda takes tensors on a CUDA device"));
  Call call;
  call.q = call.k = Tensor::empty_on(kRocm, DType::bf16, {1, 2, 20, 577});
  call.v = Tensor::empty_on(kRocm, DType::bf16, {1, 2, 20, 32});
  expect_error([&] { AttentionPlan(call.tensors(), {}); }, ErrorCode::unsupported,
               HasSubstr("forward_mma: q and k have head dimension 577; 1 to 576 are accepted"));
}

}  // namespace
}  // namespace heddle::amd
