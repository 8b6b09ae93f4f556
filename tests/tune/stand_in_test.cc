// Tensors to measure with: nothing of the caller's is touched, and kernels can run on them.
#include "tune/stand_in.h"

#include <gtest/gtest.h>

#include <cmath>

#include "heddle/mods.h"
#include "request_case.h"

namespace heddle::tune {
namespace {

/// An address that must not be read or written.
void* nowhere() { return reinterpret_cast<void*>(std::uintptr_t{64}); }

TEST(StandIn, HasMemoryOfItsOwnForEachTensor) {
  RequestCase one;
  const ConstTensorView nowhere_f32(nowhere(), DType::f32, {4});
  one.options.sinks = nowhere_f32;
  one.options.bindings.captures["slopes"] = nowhere_f32;
  one.options.bindings.captures["kinds"] = ConstTensorView(nowhere(), DType::i32, {100});
  one.options.score_mod = parse("score + slopes[h] * kinds[q_idx]", Symbols(one.options.bindings));
  plan::Request request = one.request();
  for (ConstTensorView* view : {&one.tensors.q, &one.tensors.k, &one.tensors.v}) view->data = nowhere();
  one.tensors.o.data = one.tensors.lse->data = nowhere();

  const StandIn stand_in(request);
  const backend::RunArguments run = stand_in.arguments(nullptr, nullptr);
  for (const ConstTensorView& view :
       {run.tensors.q, run.tensors.k, run.tensors.v, ConstTensorView(run.tensors.o), ConstTensorView(*run.tensors.lse),
        *run.options->sinks, run.bindings->captures.at("slopes")}) {
    ASSERT_NE(view.data, nowhere());
    Dims last = view.shape;
    for (int axis = 0; axis < last.size(); ++axis) --last[axis];
    EXPECT_TRUE(std::isfinite(get_element(view, last)));
    EXPECT_NE(get_element(view, last), 0) << "reals are random";
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(view.data) % 64, 0U);
  }
  EXPECT_EQ(get_element(run.bindings->captures.at("kinds"), {99}), 0);
  EXPECT_EQ(run.options->progress, nullptr);
}

TEST(StandIn, TakesStridesOfAnySign) {
  RequestCase one;
  plan::Request request = one.request();
  one.tensors.q.strides = {0, -32, 200, 1};
  one.tensors.k.strides = {-100'000, 32, 64, 1};
  const StandIn stand_in(request);
  const backend::RunArguments run = stand_in.arguments(nullptr, nullptr);
  EXPECT_EQ(run.tensors.q.strides, one.tensors.q.strides);
  for (const Dims& index : {Dims{0, 0, 0, 0}, Dims{1, 3, 99, 31}, Dims{0, 3, 0, 0}, Dims{1, 0, 99, 31}}) {
    EXPECT_NE(get_element(run.tensors.q, index), 0);
  }
  EXPECT_NE(get_element(run.tensors.k, {1, 1, 119, 31}), 0);
}

TEST(StandIn, ReadsWhatTheMaskReads) {
  RequestCase one;
  const Tensor ids = Tensor::zeros(DType::i32, {120});
  one.options.mask_mod = mods::documents(Capture("ids", DType::i32, 1));
  one.options.bindings.captures["ids"] = ids;
  const StandIn stand_in(one.request());
  EXPECT_EQ(stand_in.arguments(nullptr, nullptr).bindings->captures.at("ids").data, ids.data());
}

TEST(StandIn, PagesStandInOrder) {
  RequestCase one;
  one.k = {3, 2, 16, 32}, one.v = {3, 2, 16, 32};
  const Tensor lengths = Tensor::zeros(DType::i32, {2});
  one.options.kv_lengths = lengths;
  one.options.page_table = ConstTensorView(nowhere(), DType::i32, {2, 4});
  const StandIn stand_in(one.request());
  const ConstTensorView table = *stand_in.arguments(nullptr, nullptr).options->page_table;
  for (std::int64_t i = 0; i < 8; ++i) EXPECT_EQ(get_element(table, {i / 4, i % 4}), i % 3);
}

TEST(StandIn, OfABackwardHasItsGradients) {
  RequestCase one;
  const plan::Request forward = one.request();
  BackwardTensors backward{.q = one.tensors.q,
                           .k = one.tensors.k,
                           .v = one.tensors.v,
                           .o = one.tensors.o,
                           .lse = *one.tensors.lse,
                           .d_o = one.tensors.o};
  backward.d_o.data = nowhere();
  backward.dq = TensorView(nowhere(), DType::f32, one.q);
  const plan::Request request = {forward.problem, forward.tensors, forward.options, forward.machine, &backward};
  const StandIn stand_in(request);
  const backend::RunArguments run = stand_in.arguments(nullptr, nullptr);
  EXPECT_EQ(run.backward->q.data, run.tensors.q.data);
  EXPECT_EQ(run.backward->lse->data, run.tensors.lse->data);
  EXPECT_NE(get_element(*run.backward->dq, {1, 3, 99, 31}), 0);
  EXPECT_NE(get_element(run.backward->d_o, {1, 3, 99, 31}), 0);
  EXPECT_FALSE(run.backward->dk);
}

}  // namespace
}  // namespace heddle::tune
