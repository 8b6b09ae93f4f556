// Refusals of lengths, starts, numbers, sinks and factors that options have, each with its sentence.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "expect_error.h"
#include "problem/refused.h"

namespace heddle::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(Refusals, Lengths) {
  refused(
      [](Call& c) {
        c.options.q_lengths = c.keep(i32s({6, 7}));
      },
      "q_lengths[1] is 7; lengths from 0 to the padded size 6 are accepted");
  refused(
      [](Call& c) {
        c.options.kv_lengths = c.keep(i64s({-1, 8}));
      },
      "kv_lengths[0] is -1; lengths from 0 to the padded size 8 are accepted");
  refused([](Call& c) { c.options.kv_lengths = c.keep(i64s({8})); },
          "kv_lengths has shape [1]; [2] is accepted, an entry a sequence");
  refused([](Call& c) { c.options.q_lengths = c.keep(f32s({6, 6})); }, "q_lengths is f32; i32 and i64 are accepted");
  refused(
      [](Call& c) {
        c.options.q_lengths = c.keep(Tensor::zeros(DType::i32, {2, 1}));
      },
      "q_lengths has shape [2, 1]; one axis is accepted");
  refused(
      [](Call& c) {
        c.options.q_lengths = c.keep(i32s({6, 6}));
        c.options.q_lengths->data = nullptr;
      },
      "q_lengths is i32 [2] but its data is null");
}

TEST(Refusals, CumulativeLengths) {
  refused(
      [](Call& c) {
        c.options.cu_seqlens_q = c.keep(i32s({0, 4, 3, 6}));
      },
      "cu_seqlens_q[2] is 3 after 4; cumulative lengths never decrease", Call::packed());
  refused(
      [](Call& c) {
        c.options.cu_seqlens_kv = c.keep(i32s({1, 3, 3, 8}));
      },
      "cu_seqlens_kv[0] is 1; cumulative lengths start at 0", Call::packed());
  refused(
      [](Call& c) {
        c.options.cu_seqlens_kv = c.keep(i64s({0, 3, 3, 9}));
      },
      "cu_seqlens_kv ends at 9; up to the tensor's 8 rows are accepted", Call::packed());
  refused(
      [](Call& c) {
        c.options.cu_seqlens_q = c.keep(i32s({0, 2, 2, 7}));
      },
      "cu_seqlens_q ends at 7; up to the tensor's 6 rows are accepted", Call::packed());
  refused([](Call& c) { c.options.cu_seqlens_q = c.options.cu_seqlens_kv = c.keep(i32s({0})); },
          "cu_seqlens_q has one entry, for no sequence, and the tensor 6 rows; N + 1 entries for N of at least 1 are "
          "accepted",
          Call::packed());
  refused(
      [](Call& c) {
        c.options.cu_seqlens_q = c.keep(i32s({0, 2, 6}));
      },
      "cu_seqlens_q has 3 entries and cu_seqlens_kv 4; the same number is accepted", Call::packed());
  refused([](Call& c) { c.options.cu_seqlens_q = c.keep(Tensor::zeros(DType::i32, {0})); },
          "cu_seqlens_q is empty; N + 1 entries are accepted, the first 0", Call::packed());
  refused([](Call& c) { c.options.cu_seqlens_kv.reset(); },
          "cu_seqlens_q is given without cu_seqlens_kv; both or none are accepted", Call::packed());
  refused([](Call& c) { c.options.cu_seqlens_q.reset(); },
          "cu_seqlens_kv is given without cu_seqlens_q; both or none are accepted", Call::packed());
  refused(
      [](Call& c) {
        c.options.q_lengths = c.keep(i32s({2, 0, 4}));
      },
      "q_lengths is given together with cu_seqlens_q, which says the lengths", Call::packed());
  refused(
      [](Call& c) {
        c.options.kv_lengths = c.keep(i32s({3, 1, 5}));
      },
      "kv_lengths[1] is 1; lengths from 0 to the 0 rows that cu_seqlens_kv gives the sequence are accepted",
      Call::packed());
  refused(
      [](Call& c) {
        c.options.kv_lengths = c.keep(i32s({3, 0, -1}));
      },
      "kv_lengths[2] is -1; lengths from 0 to the 5 rows that cu_seqlens_kv gives the sequence are accepted",
      Call::packed());
  refused(
      [](Call& c) {
        c.options.kv_lengths = c.keep(i32s({3, 0}));
      },
      "kv_lengths has shape [2]; [3] is accepted, an entry a sequence", Call::packed());
  refused(
      [](Call& c) {
        c.options.cu_seqlens_q = c.keep(i32s({0, 6}));
        c.options.cu_seqlens_kv = c.keep(i32s({0, 8}));
      },
      "q, k, v have batch 2; with cu_seqlens 1 is accepted");
}

TEST(Refusals, Starts) {
  refused(
      [](Call& c) {
        c.options.q_start = c.keep(i32s({0, 2147483643}));
      },
      "q_start[1] is 2147483643; every q_idx = q_start + row must fit i32, so -2147483648 to 2147483642 are "
      "accepted");
  refused(
      [](Call& c) {
        c.options.q_start = c.keep(i64s({-2147483649, 0}));
      },
      "q_start[0] is -2147483649; every q_idx = q_start + row must fit i32, so -2147483648 to 2147483642 are "
      "accepted");
  refused([](Call& c) { c.options.q_start = c.keep(i32s({0})); },
          "q_start has shape [1]; [3] is accepted, an entry a sequence", Call::packed());
}

TEST(Refusals, ScaleAndThreads) {
  refused([](Call& c) { c.options.scale = kNaN; }, "scale is nan; finite numbers are accepted");
  refused([](Call& c) { c.options.scale = -INFINITY; }, "scale is -inf; finite numbers are accepted");
  const std::string in_f32 = "are computed in f32: numbers from -3.4028235e+38 to 3.4028235e+38 are accepted";
  refused([](Call& c) { c.options.scale = 1e39; }, "scale is 1e+39; f32 inputs " + in_f32);
  refused([](Call& c) { c.options.scale = -1e300; }, "scale is -1e+300; bf16 inputs " + in_f32, Call(DType::bf16));
  refused([](Call& c) { c.options.scale = INFINITY; }, "scale is inf; finite numbers are accepted", Call(DType::f64));
  refused([](Call& c) { c.options.threads = -3; }, "threads is -3; 0 to 65536 are accepted, 0 for all cores");
  refused([](Call& c) { c.options.threads = 2147483647; },
          "threads is 2147483647; 0 to 65536 are accepted, 0 for all cores");
}

TEST(Refusals, NumbersThatAreNoEnumerators) {
  for (const int number : {3, 9, 255}) {
    refused([&](Call& c) { c.options.normalizer = static_cast<Normalizer>(number); },
            fmt::format("normalizer is {}; softmax (0), none (1) and sigmoid (2) are accepted", number));
  }
  for (const int number : {5, 9, 255}) {
    refused(
        [&](Call& c) { c.options.backend = static_cast<BackendChoice>(number); },
        fmt::format("backend is {}; automatic (0), cpu (1), reference (2), cuda (3) and amd (4) are accepted", number));
    refused([&](Call& c) { c.options.tuning = static_cast<Tuning>(number); },
            fmt::format("tuning is {}; automatic (0), off (1), recorded (2), measure (3) and again (4) are accepted",
                        number));
  }
}

TEST(Refusals, Normalizers) {
  refused([](Call& c) { c.options.normalizer = Normalizer::none; },
          "lse is asked for with normalizer none; only softmax has one");
  refused(
      [](Call& c) {
        c.without_lse();
        c.options.sinks = c.keep(f32s({0, 0, 0, 0}));
        c.options.normalizer = Normalizer::sigmoid;
      },
      "sinks are given with normalizer sigmoid; only softmax has them");
}

TEST(Refusals, Sinks) {
  refused(
      [](Call& c) {
        c.options.sinks = c.keep(f32s({0, 0}));
      },
      "sinks has shape [2]; [4] is accepted, an entry a query head");
  refused([](Call& c) { c.options.sinks = c.keep(Tensor::zeros(DType::bf16, {4})); },
          "sinks is bf16; f32 is accepted for f32 inputs");
  refused(
      [](Call& c) {
        c.options.sinks = c.keep(f32s({0, 0, 0, 0}));
      },
      "sinks is f32; f64 is accepted for f64 inputs", Call(DType::f64));
}

TEST(Refusals, Descales) {
  refused(
      [](Call& c) {
        c.options.k_descale = c.keep(Tensor::zeros(DType::f32, {2, 2}));
      },
      "k_descale is given, but k is f32; only e4m3 and e5m2 have one");
  refused(
      [](Call& c) {
        c.options.q_descale = c.keep(Tensor::zeros(DType::f32, {2, 2}));
      },
      "q_descale has shape [2, 2]; [2, 4] is accepted, either of which may be 1", Call(DType::e4m3));
  refused(
      [](Call& c) {
        c.options.v_descale = c.keep(Tensor::zeros(DType::f64, {2, 2}));
      },
      "v_descale is f64; f32 is accepted", Call(DType::e5m2));
  refused([](Call& c) { c.options.v_descale = c.keep(Tensor::zeros(DType::f32, {2})); },
          "v_descale has shape [2]; [2, 2] is accepted, either of which may be 1", Call(DType::e5m2));
}

TEST(Refusals, RunsThatDoNotFitThePlan) {
  const Call call;
  const problem::AttentionProblem problem = call.validate();
  const auto refused_run = [&](const std::function<void(AttentionTensors&)>& spoil, const std::string& sentence) {
    AttentionTensors given = call.tensors;
    spoil(given);
    expect_error(
        [&] { problem::validate_run(problem, problem::PlannedTensors(call.tensors), given, call.options, {}); },
        ErrorCode::invalid_argument, sentence);
  };
  refused_run([](AttentionTensors& t) { t.q.shape[2] = 5; },
              "q is f32 [2, 4, 5, 16] with strides [384, 96, 16, 1]; the planned f32 [2, 4, 6, 16] with strides [384, "
              "96, 16, 1] is accepted");
  refused_run([](AttentionTensors& t) { t.v.strides[2] = 48; },
              "v is f32 [2, 2, 8, 24] with strides [384, 192, 48, 1]; the planned f32 [2, 2, 8, 24] with strides [384, "
              "192, 24, 1] is accepted");
  refused_run([](AttentionTensors& t) { t.o.dtype = DType::f64; },
              "o is f64 [2, 4, 6, 24] with strides [576, 144, 24, 1]; the planned f32 [2, 4, 6, 24] with strides [576, "
              "144, 24, 1] is accepted");
  refused_run([](AttentionTensors& t) { t.o.device = kGpu; }, "o is on cuda:0; the CPU, as planned, is accepted");
  refused_run([](AttentionTensors& t) { t.lse.reset(); }, "lse is not given; the plan was made with it");
}

}  // namespace
}  // namespace heddle::test
