// A call that was right until a test made it wrong.
#pragma once

#include <functional>
#include <source_location>
#include <string>

#include "expect_error.h"
#include "problem/call.h"

namespace heddle::test {

inline constexpr Device kGpu = {DeviceKind::cuda, 0};

/// A call whose tensors all are on the first GPU, as far as their views say.
inline Call on_gpu(DType dtype = DType::bf16) {
  Call call(dtype);
  for (ConstTensorView* view : {&call.tensors.q, &call.tensors.k, &call.tensors.v}) view->device = kGpu;
  call.tensors.o.device = call.tensors.lse->device = kGpu;
  return call;
}
inline ConstTensorView on(ConstTensorView view, const Device& device) {
  view.device = device;
  return view;
}

/// Expects the sentence from a call that `spoil` made wrong.
inline void refused(const std::function<void(Call&)>& spoil, const testing::Matcher<std::string>& sentence,
                    Call call = Call(), ErrorCode code = ErrorCode::invalid_argument,
                    std::source_location where = std::source_location::current()) {
  call.validate_all();  // it was right before
  spoil(call);
  expect_error([&] { call.validate_all(); }, code, sentence, where);
}

}  // namespace heddle::test
