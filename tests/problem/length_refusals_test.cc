// Refusals of lengths, cumulative lengths and starts that are on a GPU, as far as the views say, and of what bounds
// them.
#include <gtest/gtest.h>

#include "expect_error.h"
#include "heddle/mods.h"
#include "problem/refused.h"

namespace heddle::test {
namespace {

using testing::HasSubstr;

/// On cuda:0, with lengths there.
Call with_device_lengths() {
  Call call = on_gpu();
  call.options.q_lengths = on(call.keep(i32s({5, 6})), kGpu);
  call.options.kv_lengths = on(call.keep(i64s({5, 8})), kGpu);
  call.options.q_start = on(call.keep(i32s({0, -3})), kGpu);
  return call;
}
Call packed_with_device_lengths() {
  Call call = Call::packed();
  for (ConstTensorView* view : {&call.tensors.q, &call.tensors.k, &call.tensors.v}) view->device = kGpu;
  call.tensors.o.device = call.tensors.lse->device = kGpu;
  call.options.cu_seqlens_q->device = call.options.cu_seqlens_kv->device = kGpu;
  call.options.max_q_len = 4;
  call.options.max_kv_len = 5;
  return call;
}

// Kernels that take lengths from the host write the rows of sequences alone.
TEST(Refusals, RowsBehindTheLastSequenceOfAGpusWhoseLengthsAreTheHosts) {
  refused(
      [](Call& c) {
        c.options.cu_seqlens_q = c.keep(i32s({0, 2, 2, 5}));
        c.options.cu_seqlens_kv = c.keep(i64s({0, 3, 3, 8}));
      },
      "cu_seqlens_q ends at 5; the tensor's 6 rows are accepted, and less where cu_seqlens_q is on the GPU",
      packed_with_device_lengths());
}

// Views without strides have any number of elements and no memory.
TEST(Refusals, CountsBeforeTheyAreListed) {
  const std::int64_t many = std::int64_t{1} << 30;
  const std::int32_t zero = 0;
  const ConstTensorView integers(&zero, DType::i32, Dims{many}, Dims{0});
  refused([&](Call& call) { call.options.q_start = integers; },
          "q_start has shape [1073741824]; [2] is accepted, an entry a sequence");
  refused([&](Call& call) { call.options.cu_seqlens_q = call.options.cu_seqlens_kv = integers; },
          "cu_seqlens_q has 1073741823 sequences; up to 16777216 are accepted", Call::packed());
  refused(
      [&](Call& call) {
        AttentionTensors& tensors = call.tensors;
        for (ConstTensorView* view : {&tensors.q, &tensors.k, &tensors.v}) view->shape[0] = many, view->strides[0] = 0;
        tensors.o.shape[0] = tensors.lse->shape[0] = many;
      },
      HasSubstr("q has 1073741824 sequences; up to 16777216 are accepted"));
}

TEST(Refusals, LengthsOnTheDevice) {
  const std::string one_device =
      "; lengths, cu_seqlens, q_start, kv_start, page_starts and prefixes all on the CPU, or all where q is, are "
      "accepted";
  refused([](Call& c) { c.options.kv_lengths->device = Device{}; },
          "q_lengths is on cuda:0 and kv_lengths on the CPU" + one_device, with_device_lengths());
  refused(
      [](Call& c) {
        c.options.q_lengths = c.options.kv_lengths = {};
        c.options.kv_lengths = c.keep(i32s({1, 2}));
      },
      "kv_lengths is on the CPU and q_start on cuda:0" + one_device, with_device_lengths());
  refused([](Call& c) { c.options.kv_lengths->device.index = 1; },
          "kv_lengths is on cuda:1; cuda:0 is accepted, where q is", with_device_lengths());
  refused(
      [](Call& c) {
        c.options.kv_lengths = on(c.keep(i32s({5, 8})), kGpu);
      },
      "kv_lengths is on cuda:0; the CPU is accepted, where it is read");
  refused(
      [](Call& c) {
        c.options.q_lengths = on(c.keep(i32s({5, 6, 6})), kGpu);
      },
      "q_lengths has shape [3]; [2] is accepted, an entry a sequence", with_device_lengths());
  refused(
      [](Call& c) {
        c.options.q_start = on(c.keep(f32s({5, 6})), kGpu);
      },
      "q_start is f32; i32 and i64 are accepted", with_device_lengths());
  refused([](Call& c) { c.options.kv_lengths->data = nullptr; },
          HasSubstr("kv_lengths is i64 [2] but its data is null"), with_device_lengths());
  refused([](Call& c) { c.options.max_kv_len.reset(); },
          "max_kv_len is not given; with cu_seqlens_kv on a GPU the largest length is accepted, which planning does "
          "not read",
          packed_with_device_lengths());
  refused(
      [](Call& c) {
        c.options.cu_seqlens_q = on(c.keep(i32s({0, 6})), kGpu);
      },
      "cu_seqlens_q has 2 entries and cu_seqlens_kv 4; the same number is accepted", packed_with_device_lengths());
  refused([](Call& c) { c.options.cu_seqlens_q = c.options.cu_seqlens_kv = on(c.keep(i32s({0})), kGpu); },
          "cu_seqlens_q has 1 entry, for no sequence, but the tensor 6 rows; at least 2 are accepted",
          packed_with_device_lengths());
  refused([](Call& c) { c.options.kv_lengths->data = c.tensors.o.data; }, HasSubstr("o overlaps kv_lengths in memory"),
          with_device_lengths());
}

/// The packed queries beside keys in 3 pages of 8 rows, of which a table there lists 2 for each sequence.
Call paged_with_device_lengths() {
  Call call = packed_with_device_lengths();
  call.k(DType::f32, {3, 2, 8, 16});
  call.v(DType::f32, {3, 2, 8, 24});
  call.tensors.k.device = call.tensors.v.device = kGpu;
  call.options.page_table = on(call.keep(Tensor::zeros(DType::i32, {3, 2})), kGpu);
  call.options.cu_seqlens_kv = {};
  call.options.kv_lengths = on(call.keep(i32s({5, 0, 16})), kGpu);
  call.options.max_kv_len = {};
  return call;
}

TEST(Refusals, PagesBesideLengthsOnTheDevice) {
  const problem::AttentionProblem problem = paged_with_device_lengths().validate();
  EXPECT_TRUE(problem.device_lengths && problem.packed);
  EXPECT_EQ(problem.sequences[2], (Sequence{.q_len = 4, .kv_len = 16}));
  // A packed query's token is what only the device knows; a key's in pages is its index.
  EXPECT_TRUE(problem::reads_device_lengths(problem, leaf::q_token() >= leaf::kv_idx()));
  EXPECT_FALSE(problem::reads_device_lengths(problem, leaf::q_idx() >= leaf::kv_token()));
  EXPECT_TRUE(
      problem::reads_device_lengths(packed_with_device_lengths().validate(), leaf::q_idx() >= leaf::kv_token()));
  refused(
      [](Call& c) {
        c.options.cu_seqlens_kv = on(c.keep(i32s({0, 3, 3, 8})), kGpu);
      },
      "cu_seqlens_kv is given together with page_table; kv_lengths is accepted", paged_with_device_lengths());
  refused([](Call& c) { c.options.max_q_len.reset(); },
          "max_q_len is not given; with cu_seqlens_q on a GPU the largest length is accepted, which planning does not "
          "read",
          paged_with_device_lengths());
  refused([](Call& c) { c.options.kv_lengths->device = Device{}; },
          "kv_lengths is on the CPU and cu_seqlens_q on cuda:0; lengths, cu_seqlens, q_start, kv_start, page_starts "
          "and prefixes all on the CPU, or all where q is, are accepted",
          paged_with_device_lengths());
  refused(
      [](Call& c) {
        c.options.kv_lengths = on(c.keep(i32s({5, 8})), kGpu);
      },
      "kv_lengths has shape [2]; [3] is accepted, an entry a sequence", paged_with_device_lengths());
  refused([](Call& c) { c.options.page_table->device = Device{}; },
          "page_table is on the CPU; cuda:0 is accepted, where q is", paged_with_device_lengths());
  refused(
      [](Call& c) {
        c.options.page_table = on(c.keep(Tensor::zeros(DType::i32, {4, 2})), kGpu);
      },
      "page_table has shape [4, 2]; [3, max_pages] is accepted, a row a sequence", paged_with_device_lengths());
  Call loose = paged_with_device_lengths();
  loose.options.max_kv_len = 17;
  EXPECT_EQ(loose.validate().sequences[2].kv_len, 16);
  refused(
      [](Call& c) {
        c.k(DType::f32, {0, 2, 8, 16});
        c.v(DType::f32, {0, 2, 8, 24});
        c.tensors.k.device = c.tensors.v.device = kGpu;
      },
      "k has 0 pages, and sequences may have keys; at least 1 is accepted", paged_with_device_lengths());
}

TEST(Refusals, LargestLengths) {
  refused([](Call& c) { c.options.max_q_len = 6; },
          "max_q_len is given without q_lengths and cu_seqlens_q; it bounds those");
  const auto with = [](std::int64_t most) {
    return [most](Call& c) {
      c.options.kv_lengths = c.keep(i32s({5, 3}));
      c.options.max_kv_len = most;
    };
  };
  refused(with(-1), "max_kv_len is -1; 0 and more are accepted");
  refused(with(4), "kv_lengths[0] is 5; lengths from 0 to max_kv_len 4 are accepted");
  refused([](Call& c) { c.options.max_q_len = 3; },
          "cu_seqlens_q[3] is 6 after 2; sequences of up to max_q_len 3 rows are accepted", Call::packed());
  for (const std::int64_t most : {5, 8, 9, 1 << 30}) {  // a bound may exceed the rows
    Call right;
    with(most)(right);
    right.validate_all();
    EXPECT_EQ(right.validate().sequences[0].kv_len, 5);
  }
  refused(
      [&](Call& c) {
        with(100)(c);
        c.options.kv_lengths = c.keep(i32s({5, 9}));
      },
      "kv_lengths[1] is 9; lengths from 0 to the padded size 8 are accepted");
  Call packed = packed_with_device_lengths();
  packed.options.max_q_len = packed.options.max_kv_len = 4096;
  const problem::AttentionProblem problem = packed.validate();
  EXPECT_EQ(problem.sequences[0], (Sequence{.q_len = 6, .kv_len = 8}));
}

TEST(Refusals, LengthsOfPackedKeysOnTheDevice) {
  Call call = packed_with_device_lengths();
  call.options.kv_lengths = on(call.keep(i32s({3, 0, 2})), kGpu);
  const problem::AttentionProblem problem = call.validate();
  EXPECT_TRUE(problem.device_lengths && problem.packed);
  EXPECT_EQ(problem.sequences[2], (Sequence{.q_len = 4, .kv_len = 5}));
  refused(
      [](Call& c) {
        c.options.kv_lengths = on(c.keep(i32s({3, 0})), kGpu);
      },
      "kv_lengths has shape [2]; [3] is accepted, an entry a sequence", call);
  refused([](Call& c) { c.options.kv_lengths->device = Device{}; },
          testing::HasSubstr("kv_lengths is on the CPU and cu_seqlens_q on cuda:0"), call);
}

// Nothing of the lengths is read: the mods' indices are bounded by the largest alone, and by i32 where q_start is
// there.
TEST(Refusals, ReadsThatLengthsOnTheDeviceMayLeadOut) {
  const auto reads = [](std::int64_t extent, const char* mod) {
    return [extent, mod](Call& c) {
      c.options.bindings.captures["x"] = on(c.keep(Tensor::zeros(DType::f32, {extent})), kGpu);
      c.options.score_mod = parse(mod, Symbols(c.options.bindings));
    };
  };
  Call call = with_device_lengths();
  reads(8, "score + x[kv_idx]")(call);
  call.validate_all();
  refused(reads(7, "score + x[kv_idx]"), HasSubstr("x"), with_device_lengths());
  refused(reads(1000000, "score + x[q_idx]"), HasSubstr("x"), with_device_lengths());
  call = with_device_lengths();
  reads(6, "score + at(x, q_idx, 0.0)")(call);
  call.validate_all();
  call = with_device_lengths();
  reads(6, "score + x[q_idx]")(call);
  call.options.q_start.reset();
  call.validate_all();
  call = packed_with_device_lengths();
  reads(4, "score + x[q_idx]")(call);
  call.validate_all();
}

// A start alone makes the lengths those of the device, and the mods' kv_idx any.
TEST(Refusals, ReadsThatKvStartOnTheDeviceMayLeadOut) {
  const auto with_start = [] {
    Call call = on_gpu();
    call.options.kv_start = on(call.keep(i64s({0, 8})), kGpu);
    return call;
  };
  const auto reads = [](const char* mod) {
    return [mod](Call& c) {
      c.options.bindings.captures["x"] = on(c.keep(Tensor::zeros(DType::f32, {1000})), kGpu);
      c.options.score_mod = parse(mod, Symbols(c.options.bindings));
    };
  };
  const problem::AttentionProblem problem = with_start().validate();
  EXPECT_TRUE(problem.device_lengths && problem.device_kv_starts && !problem.device_starts);
  EXPECT_EQ(problem.kv_start_dtype, DType::i64);
  EXPECT_TRUE(problem::reads_device_lengths(problem, leaf::kv_idx() > 3));
  EXPECT_TRUE(problem::reads_device_lengths(problem, leaf::kv_start() > 3));
  EXPECT_FALSE(problem::reads_device_lengths(problem, leaf::q_idx() > 3));
  EXPECT_THAT(problem::to_string(problem), HasSubstr(", kv_start there"));
  refused(reads("score + x[kv_idx]"), HasSubstr("x"), with_start());
  for (const char* mod : {"score + at(x, kv_idx, 0.0)", "score + x[q_idx]", "score + x[kv_token]"}) {
    Call call = with_start();
    reads(mod)(call);
    call.validate_all();
  }
  refused(
      [](Call& c) {
        c.options.kv_start = on(c.keep(i32s({0, 8, 16})), kGpu);
      },
      "kv_start has shape [3]; [2] is accepted, an entry a sequence", with_start());
  refused(
      [](Call& c) {
        c.options.q_lengths = c.keep(i32s({5, 6}));
      },
      HasSubstr("q_lengths is on the CPU and kv_start on cuda:0"), with_start());
}

TEST(Refusals, KvStartsWhosePositionsDoNotFit) {
  constexpr std::int64_t kMost = 2147483647;
  const auto with = [](std::int64_t second) {
    return [second](Call& c) { c.options.kv_start = c.keep(i64s({0, second})); };
  };
  refused(with(kMost - 6),
          "kv_start[1] is 2147483641; every kv_idx = kv_start + position must fit i32, so -2147483648 to 2147483640 "
          "are accepted");
  refused(with(-kMost - 2), HasSubstr("kv_start[1] is -2147483649"));
  for (const std::int64_t second : {kMost - 7, -kMost - 1}) {
    Call call;
    with(second)(call);
    call.validate_all();
  }
  // Reads are held to the positions of all sequences.
  const auto reading = [&](std::int64_t start, std::int64_t extent) {
    return [=](Call& c) {
      with(start)(c);
      c.options.bindings.captures["x"] = c.keep(Tensor::zeros(DType::f32, {extent}));
      c.options.score_mod = parse("score + x[kv_idx]", Symbols(c.options.bindings));
    };
  };
  Call inside;
  reading(100, 108)(inside);
  inside.validate_all();
  refused(reading(100, 107), HasSubstr("x"));
  refused(reading(-1, 107), HasSubstr("x"));
}

TEST(Refusals, BlockMasksOfOtherKvStarts) {
  Call call;
  call.options.kv_start = call.keep(i32s({0, 64}));
  MaskShape shape = {4, std::vector<Sequence>(2, {.q_len = 6, .kv_len = 8})};
  const auto given = [&shape](Call& c) {
    c.options.block_mask = std::make_shared<BlockMask>(BlockMask::build(mods::causal(), shape, {64, 64}, {}, 1));
  };
  refused(given,
          "block_mask was made for sequence 1 with q_begin 0, q_len 6, kv_begin 0, kv_len 8, q_start 0, kv_start 0; "
          "this attention's 0, 6, 0, 8, 0, 64 are accepted",
          call);
  shape.sequences[1].kv_start = 64;
  given(call);
  call.validate_all();
}

TEST(Refusals, BlockMasksOfWhatOnlyTheDeviceKnows) {
  const auto given = [](const Expr& mask) {
    return [mask](Call& c) {
      c.options.block_mask = std::make_shared<BlockMask>(
          BlockMask::build(mask, {4, std::vector<Sequence>(2, {.q_len = 6, .kv_len = 8})}, {64, 64}));
    };
  };
  Call call = with_device_lengths();
  call.options.q_start.reset();
  given(mods::causal())(call);
  call.validate_all();
  const std::string sentence = ", which reads what only cuda:0 knows: the lengths; no block_mask is accepted";
  refused(given(mods::causal()), HasSubstr(sentence), with_device_lengths());
  refused(given(leaf::kv_idx() < leaf::kv_len()), HasSubstr(sentence), with_device_lengths());
}

// Both arrays or none, an entry a sequence, where the lengths are.
TEST(Refusals, Prefixes) {
  const auto with_prefixes = [](Call call, bool there) {
    call.options.prefix_group = call.keep(i32s({4, 4}));
    call.options.prefix_len = call.keep(i64s({3, -1}));
    if (there) call.options.prefix_group->device = call.options.prefix_len->device = kGpu;
    return call;
  };
  const problem::AttentionProblem known = with_prefixes(Call(), false).validate();
  EXPECT_TRUE(known.with_prefixes);
  EXPECT_EQ(known.prefix_group, (std::vector<std::int64_t>{4, 4}));
  EXPECT_EQ(known.prefix_len, (std::vector<std::int64_t>{3, -1}));
  EXPECT_FALSE(Call().validate().with_prefixes);
  const problem::AttentionProblem there = with_prefixes(with_device_lengths(), true).validate();
  EXPECT_TRUE(there.with_prefixes && there.device_lengths && there.prefix_group.empty());
  refused([](Call& c) { c.options.prefix_len = {}; },
          "prefix_group is given without prefix_len; both are accepted, or none", with_prefixes(Call(), false));
  refused([](Call& c) { c.options.prefix_group = {}; },
          "prefix_len is given without prefix_group; both are accepted, or none", with_prefixes(Call(), false));
  refused(
      [](Call& c) {
        c.options.prefix_len = c.keep(i32s({1, 2, 3}));
      },
      "prefix_len has shape [3]; [2] is accepted, an entry a sequence", with_prefixes(Call(), false));
  refused([](Call& c) { c.options.prefix_group = on(c.keep(i32s({1})), kGpu); },
          "prefix_group has shape [1]; [2] is accepted, an entry a sequence",
          with_prefixes(with_device_lengths(), true));
  refused(
      [](Call& c) {
        c.options.prefix_group = c.keep(f32s({1, 2}));
      },
      "prefix_group is f32; i32 and i64 are accepted", with_prefixes(Call(), false));
  refused([](Call& c) { c.options.prefix_len->device = Device{}; },
          HasSubstr("q_lengths is on cuda:0 and prefix_len on the CPU"), with_prefixes(with_device_lengths(), true));
}

}  // namespace
}  // namespace heddle::test
