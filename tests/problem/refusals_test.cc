// Refusals of tensors: ranks, dtypes, devices, shapes, strides, memory, each with its sentence. What options have:
// option_refusals_test.cc; mods, bindings and block masks: mod_refusals_test.cc.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "expect_error.h"
#include "heddle/mods.h"
#include "problem/refused.h"

namespace heddle::test {
namespace {

using testing::HasSubstr;

TEST(Refusals, Ranks) {
  refused([](Call& c) { c.q(DType::f32, {2, 6, 16}); }, "q has shape [2, 6, 16]; 4 axes [B, Hq, Sq, Dqk] are accepted");
  refused(
      [](Call& c) {
        c.k(DType::f32, {2, 2, 8, 16, 1});
      },
      "k has shape [2, 2, 8, 16, 1]; 4 axes [B, Hkv, Skv, Dqk] are accepted");
  refused([](Call& c) { c.v(DType::f32, {24}); }, "v has shape [24]; 4 axes [B, Hkv, Skv, Dv] are accepted");
  refused([](Call& c) { c.o(DType::f32, {2, 4, 6}); }, "o has shape [2, 4, 6]; 4 axes [B, Hq, Sq, Dv] are accepted");
  refused(
      [](Call& c) {
        c.lse(DType::f32, {2, 4, 6, 1});
      },
      "lse has shape [2, 4, 6, 1]; 3 axes [B, Hq, Sq] are accepted");
}

TEST(Refusals, Dtypes) {
  refused([](Call& c) { c.q(DType::i32, {2, 4, 6, 16}); }, "q is i32; f64, f32, f16, bf16, e4m3 and e5m2 are accepted");
  refused([](Call& c) { c.o(DType::i16, {2, 4, 6, 24}); }, "o is i16; f64, f32, f16, bf16, e4m3 and e5m2 are accepted");
  const std::string mixture =
      "; one dtype for all is accepted, or k and v of e4m3 or e5m2 beside q of f16, bf16, e4m3 or e5m2";
  refused([](Call& c) { c.k(DType::bf16, {2, 2, 8, 16}); }, "q, k, v are f32, bf16, f32" + mixture);
  refused(
      [](Call& c) {
        c.k(DType::e4m3, {2, 2, 8, 16});
      },
      "q, k, v are bf16, e4m3, bf16" + mixture, Call(DType::bf16));
  refused(
      [](Call& c) {
        c.k(DType::e4m3, {2, 2, 8, 16});
        c.v(DType::e5m2, {2, 2, 8, 24});
      },
      "q, k, v are f32, e4m3, e5m2" + mixture);
  refused([](Call& c) { c.lse(DType::bf16, {2, 4, 6}); }, "lse is bf16; f32 is accepted for f32 inputs");
  refused(
      [](Call& c) {
        c.lse(DType::f32, {2, 4, 6});
      },
      "lse is f32; f64 is accepted for f64 inputs", Call(DType::f64));
}

TEST(Refusals, TensorsOnSeveralDevices) {
  const std::string accepted = "; one device for all tensors is accepted";
  refused([](Call& c) { c.tensors.q.device = {DeviceKind::cuda, 1}; }, "q is on cuda:1 and k on the CPU" + accepted);
  refused(
      [](Call& c) {
        c.tensors.k.device = {DeviceKind::cuda, 1};
      },
      "q is on cuda:0 and k on cuda:1" + accepted, on_gpu());
  refused([](Call& c) { c.tensors.v.device = {}; }, "q is on cuda:0 and v on the CPU" + accepted, on_gpu());
  refused([](Call& c) { c.tensors.o.device = {}; }, "q is on cuda:0 and o on the CPU" + accepted, on_gpu());
  refused([](Call& c) { c.tensors.lse->device = kGpu; }, "q is on the CPU and lse on cuda:0" + accepted);
  refused([](Call& c) { c.tensors.v.device.index = 5; }, "v has device index 5; of the CPU 0 is accepted");
  EXPECT_EQ(on_gpu().validate().device, kGpu);
  EXPECT_EQ(Call().validate().device, Device{});
}

TEST(Refusals, SmallTensorsOnAnotherDevice) {
  refused(
      [&](Call& c) {
        c.options.kv_lengths = on(c.keep(i32s({5, 8})), kGpu);
      },
      "kv_lengths is on cuda:0; the CPU is accepted, where it is read");
  refused(
      [&](Call& c) {
        c.options.q_start = on(c.keep(i32s({5, 8})), kGpu);
      },
      "q_start is on cuda:0; the CPU is accepted, where it is read");
  refused(
      [&](Call& c) {
        c.options.sinks = c.keep(f32s({1, 2, 3, 4}));
      },
      "sinks is on the CPU; cuda:0 is accepted, where q is", on_gpu());
  refused(
      [&](Call& c) {
        c.options.sinks = on(c.keep(f32s({1, 2, 3, 4})), kGpu);
      },
      "sinks is on cuda:0; the CPU is accepted, where q is");
  refused(
      [&](Call& c) {
        c.options.k_descale = on(c.keep(Tensor::zeros(DType::f32, {1, 1})), {DeviceKind::cuda, 1});
      },
      "k_descale is on cuda:1; cuda:0 is accepted, where q is", on_gpu(DType::e4m3));
}

TEST(Refusals, CapturesOnAnotherDevice) {
  const auto read_slopes = [](Call& c, const Device& device) {
    c.capture("slopes", f32s({1, 2, 3, 4}));
    c.options.score_mod = mods::alibi(Capture("slopes", DType::f32, 1));
    c.options.bindings.captures["slopes"].device = device;
  };
  refused([&](Call& c) { read_slopes(c, kGpu); }, "capture 'slopes' is on cuda:0; the CPU is accepted, where q is");
  refused([&](Call& c) { read_slopes(c, Device{}); }, "capture 'slopes' is on the CPU; cuda:0 is accepted, where q is",
          on_gpu());
  Call call = on_gpu();
  read_slopes(call, kGpu);
  call.validate_all();

  // A capture that only the mask reads may stay where masks are built.
  Call masked = on_gpu();
  masked.capture("ids", i32s({0, 0, 0, 1, 1, 1, 1, 1}));
  masked.options.mask_mod = mods::documents(Capture("ids", DType::i32, 1));
  masked.validate_all();
  masked.options.bindings.captures["ids"].device = kGpu;
  masked.validate_all();
  refused(
      [](Call& c) {
        c.options.bindings.captures["ids"].device = {DeviceKind::cuda, 3};
      },
      "capture 'ids' is on cuda:3; cuda:0 is accepted, where q is", masked);

  // Indices that come from memory which the host cannot read are not known to be inside.
  masked.options.bindings.captures["ids"].device = kGpu;
  masked.capture("table", f32s({1, 2}));
  masked.options.bindings.captures["table"].device = kGpu;
  masked.options.score_mod = Capture("table", DType::f32, 1)(Capture("ids", DType::i32, 1)(leaf::kv_idx()));
  expect_error([&] { masked.validate(); }, ErrorCode::invalid_argument, HasSubstr("outside the tensor's extent of 2"));
}

TEST(Refusals, ShapesThatDoNotFit) {
  refused([](Call& c) { c.q(DType::f32, {2, 3, 6, 16}); }, "q has 3 heads and k 2; a multiple of k's is accepted");
  refused(
      [](Call& c) {
        c.k(DType::f32, {2, 0, 8, 16});
        c.v(DType::f32, {2, 0, 8, 24});
      },
      "q has 4 heads and k 0; a multiple of k's is accepted");
  refused([](Call& c) { c.v(DType::f32, {2, 4, 8, 24}); }, "k has 2 heads and v 4; as many are accepted");
  refused([](Call& c) { c.v(DType::f32, {2, 2, 9, 24}); }, "k has 8 rows and v 9; as many are accepted");
  refused([](Call& c) { c.k(DType::f32, {2, 2, 8, 8}); }, "q has head dimension 16 and k 8; the same is accepted");
  refused(
      [](Call& c) {
        c.q(DType::f32, {2, 4, 6, 0});
        c.k(DType::f32, {2, 2, 8, 0});
      },
      "q and k have head dimension 0; at least 1 is accepted");
  refused([](Call& c) { c.v(DType::f32, {2, 2, 8, 0}); }, "v has head dimension 0; at least 1 is accepted");
  refused(
      [](Call& c) {
        c.v(DType::f32, {3, 2, 8, 24});
      },
      "q, k, v have batches 2, 2, 3; equal ones are accepted, or 1");
  refused([](Call& c) { c.o(DType::f32, {2, 4, 6, 16}); }, "o has shape [2, 4, 6, 16]; [2, 4, 6, 24] is accepted");
  refused([](Call& c) { c.lse(DType::f32, {2, 6, 4}); }, "lse has shape [2, 6, 4]; [2, 4, 6] is accepted");
}

TEST(Refusals, ExtentsAndSizes) {
  refused([](Call& c) { c.tensors.q.shape[2] = -6; }, "q has shape [2, 4, -6, 16]; extents of at least 0 are accepted");
  refused([](Call& c) { c.tensors.k.shape[2] = std::int64_t{1} << 31; },
          "k has shape [2, 2, 2147483648, 16]; extents up to 2147483647 are accepted, since mods count in i32");
  refused(
      [](Call& c) {
        c.tensors.q.shape = {1 << 30, 1 << 30, 1 << 30, 16};
        c.tensors.q.strides = {0, 0, 0, 1};
      },
      "q has shape [1073741824, 1073741824, 1073741824, 16], whose product overflows 64 bits", Call(),
      ErrorCode::out_of_memory);
  refused([](Call& c) { c.tensors.v.strides[0] = std::int64_t{1} << 62; },
          "v of shape [2, 2, 8, 24] and strides [4611686018427387904, 192, 24, 1] spans more than 2^61 bytes; offsets "
          "are 64-bit",
          Call(), ErrorCode::out_of_memory);
  refused(
      [](Call& c) {
        c.tensors.q.strides = Dims{16, 1};
      },
      "q has shape [2, 4, 6, 16] and strides [16, 1]; a stride an axis is accepted");
}

TEST(Refusals, OutputsTooLargeToCount) {
  constexpr std::int64_t kLarge = std::int64_t{1} << 30;
  Call call;
  call.tensors.q.shape = {kLarge, 4, kLarge, 16};
  call.tensors.q.strides = {0, 0, 0, 1};
  call.tensors.k.shape[0] = call.tensors.v.shape[0] = 1;
  call.tensors.v.shape[3] = 1;
  call.tensors.k.strides = call.tensors.v.strides = {0, 0, 0, 1};
  const auto outputs = [&] { return problem::outputs_of(call.tensors.q, call.tensors.k, call.tensors.v); };
  expect_error(outputs, ErrorCode::out_of_memory,
               "q has shape [1073741824, 4, 1073741824, 16], whose product overflows 64 bits");
  call.tensors.q.shape[3] = call.tensors.k.shape[3] = 1;
  EXPECT_EQ(outputs().o_shape, (Dims{kLarge, 4, kLarge, 1}));
  call.tensors.v.shape[3] = 16;
  expect_error(outputs, ErrorCode::out_of_memory,
               "q, k, v give an o of shape [1073741824, 4, 1073741824, 16], whose product overflows 64 bits");
}

TEST(Refusals, Strides) {
  refused(
      [](Call& c) {
        c.tensors.k.strides = {256, 128, 1, 8};
      },
      "k has strides [256, 128, 1, 8]; a last stride of 1 is accepted (permute or copy it)");
  const std::string accepted = ", so that elements share memory; one place an element is accepted";
  refused(
      [](Call& c) {
        c.tensors.o.strides = {0, 144, 24, 1};
      },
      "o has shape [2, 4, 6, 24] and strides [0, 144, 24, 1]" + accepted);
  refused(
      [](Call& c) {
        c.tensors.o.strides = {576, 144, 23, 1};
      },
      "o has shape [2, 4, 6, 24] and strides [576, 144, 23, 1]" + accepted);
  refused(
      [](Call& c) {
        c.tensors.lse->strides = {24, 0, 1};
      },
      "lse has shape [2, 4, 6] and strides [24, 0, 1]" + accepted);
  Call one_wide;  // an axis of extent 1 may have any stride
  one_wide.q(DType::f32, {2, 4, 6, 1});
  one_wide.k(DType::f32, {2, 2, 8, 1});
  one_wide.tensors.q.strides = {24, 6, 1, 7};
  one_wide.validate_all();
  Call empty;  // and all axes of a tensor without elements
  empty.q(DType::f32, {2, 4, 0, 16});
  empty.o(DType::f32, {2, 4, 0, 24});
  empty.without_lse();
  empty.tensors.q.strides = {7, 7, 7, 7};
  empty.tensors.o.strides = {0, 0, 0, 0};
  empty.validate_all();
}

TEST(Refusals, Memory) {
  refused([](Call& c) { c.tensors.v.data = nullptr; }, "v is f32 [2, 2, 8, 24] but its data is null");
  refused([](Call& c) { c.tensors.o.data = nullptr; }, "o is f32 [2, 4, 6, 24] but its data is null");
  refused([](Call& c) { c.tensors.q.data = static_cast<const std::byte*>(c.tensors.q.data) + 2; },
          "q is f32 [2, 4, 6, 16] but its data is not aligned to 4 bytes");
  Call empty;
  empty.q(DType::f32, {2, 4, 0, 16});
  empty.o(DType::f32, {2, 4, 0, 24});
  empty.without_lse();
  empty.tensors.q.data = empty.tensors.o.data = nullptr;
  empty.validate_all();
}

/// Moves f32 o and an input to memory of their own, where o's last element is the input's first. (o in the memory of a
/// smaller input might reach into that of another one.)
template <class View>
void overlap_o(Call& c, View& input) {
  const auto count = [](const auto& view) { return element_count(view.shape); };
  const TensorView memory = c.keep(Tensor::zeros(DType::f32, {count(c.tensors.o) + count(input)}));
  c.tensors.o.data = memory.data;
  input.data = static_cast<float*>(memory.data) + count(c.tensors.o) - 1;
}

TEST(Refusals, OverlappingOutput) {
  const std::string accepted = " in memory; an output that shares no byte with an input is accepted";
  refused([](Call& c) { overlap_o(c, c.tensors.v); }, "o overlaps v" + accepted);
  refused(
      [](Call& c) {  // the last element of q alone
        c.tensors.lse->data =
            const_cast<std::byte*>(static_cast<const std::byte*>(c.tensors.q.data)) + (2 * 4 * 6 * 16 - 1) * 4;
      },
      "lse overlaps q" + accepted);
  refused([](Call& c) { c.tensors.lse->data = c.tensors.o.data; },
          "o overlaps lse in memory; outputs that share no byte are accepted");
  refused([](Call& c) { c.options.sinks = ConstTensorView(c.tensors.o.data, DType::f32, {4}); },
          "o overlaps sinks" + accepted);
  refused(
      [](Call& c) {
        c.options.score_mod = mods::alibi(Capture("slopes", DType::f32, 1));
        c.options.bindings.captures["slopes"] = ConstTensorView(c.tensors.lse->data, DType::f32, {4});
      },
      "lse overlaps capture 'slopes'" + accepted);
}

/// With 5 of 16 columns of q, or 3 of k's, in a tensor of its own.
Call with_rest(bool of_queries) {
  Call c;
  if (of_queries) {
    c.q(DType::f32, {2, 4, 6, 11});
    c.options.q_rest = c.keep(Tensor::zeros(DType::f32, {2, 4, 6, 5}));
  } else {
    c.k(DType::f32, {2, 2, 8, 13});
    c.options.k_rest = c.keep(Tensor::zeros(DType::f32, {2, 2, 8, 3}));
  }
  return c;
}

TEST(Refusals, RowsOfTwoTensors) {
  Call both = with_rest(true);
  both.k(DType::f32, {2, 2, 8, 13});
  both.options.k_rest = both.keep(Tensor::zeros(DType::f32, {2, 2, 8, 3}));
  both.validate_all();
  const auto rest = [](Call& c, DType dtype, const Dims& shape) { return c.keep(Tensor::zeros(dtype, shape)); };
  refused(
      [&](Call& c) {
        c.options.q_rest = rest(c, DType::f32, {2, 4, 6, 4});
      },
      "q has head dimension 11 + 4 and k 16; the same is accepted", with_rest(true));
  refused([&](Call& c) { c.options.k_rest.reset(); }, "q has head dimension 16 and k 13; the same is accepted",
          with_rest(false));
  refused(
      [&](Call& c) {
        c.options.q_rest = rest(c, DType::bf16, {2, 4, 6, 5});
      },
      "q_rest is bf16; f32, q's dtype, is accepted", with_rest(true));
  for (const Dims& shape : {Dims{1, 4, 6, 5}, Dims{2, 2, 6, 5}, Dims{2, 4, 7, 5}, Dims{2, 4, 6, 0}}) {
    refused([&](Call& c) { c.options.q_rest = rest(c, DType::f32, shape); },
            "q_rest has shape " + to_string(shape) +
                "; [2, 4, 6, R] is accepted, q's but for the last extent, which is at least 1",
            with_rest(true));
  }
  refused(
      [&](Call& c) {
        c.options.k_rest = rest(c, DType::f32, {2, 2, 9, 3});
      },
      "k_rest has shape [2, 2, 9, 3]; [2, 2, 8, R] is accepted, k's but for the last extent, which is at least 1",
      with_rest(false));
  refused(
      [&](Call& c) {
        c.options.k_rest = rest(c, DType::f32, {2, 8, 3});
      },
      "k_rest has shape [2, 8, 3]; 4 axes [B, H, S, R] are accepted", with_rest(false));
  refused(
      [](Call& c) {
        c.options.q_rest->strides = {120, 30, 1, 6};
      },
      "q_rest has strides [120, 30, 1, 6]; a last stride of 1 is accepted (permute or copy it)", with_rest(true));
  refused([](Call& c) { c.options.q_rest->device = kGpu; }, "q_rest is on cuda:0; the CPU is accepted, where q is",
          with_rest(true));
  refused([](Call& c) { c.options.q_rest->data = nullptr; }, "q_rest is f32 [2, 4, 6, 5] but its data is null",
          with_rest(true));
  refused([](Call& c) { overlap_o(c, *c.options.q_rest); },
          "o overlaps q_rest in memory; an output that shares no byte with an input is accepted", with_rest(true));
}

}  // namespace
}  // namespace heddle::test
