// c.h as C++ reads it, and the border itself: each exception becomes its code.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "capi/errors.h"
#include "heddle/c.h"
#include "heddle/error.h"

namespace heddle::capi {
namespace {

// Nothing of these may change without a new struct or a larger struct_size.
static_assert(sizeof(heddle_tensor) == 152 && sizeof(heddle_param) == 24 && sizeof(heddle_capture) == 16);
static_assert(sizeof(heddle_bindings) >= 40 && sizeof(heddle_attention_options) >= 168);
static_assert(sizeof(heddle_attention_tensors) >= 48 && sizeof(heddle_block_mask_options) >= 104 &&
              sizeof(heddle_run_options) >= 32 && sizeof(heddle_backward_tensors) >= 128);
static_assert(sizeof(heddle_gradient) == 16);
static_assert(std::is_standard_layout_v<heddle_attention_options> && std::is_trivial_v<heddle_attention_options>);
static_assert(std::is_same_v<heddle_status, std::int32_t>);

struct Mapped {
  ErrorCode code;
  heddle_status status;
};
constexpr Mapped kMapped[] = {{ErrorCode::invalid_argument, HEDDLE_ERROR_INVALID_ARGUMENT},
                              {ErrorCode::unsupported, HEDDLE_ERROR_UNSUPPORTED},
                              {ErrorCode::out_of_memory, HEDDLE_ERROR_OUT_OF_MEMORY},
                              {ErrorCode::io, HEDDLE_ERROR_IO},
                              {ErrorCode::device, HEDDLE_ERROR_DEVICE},
                              {ErrorCode::compile, HEDDLE_ERROR_COMPILE},
                              {ErrorCode::internal, HEDDLE_ERROR_INTERNAL}};

TEST(CBoundary, EveryCodeHasItsStatus) {
  for (const Mapped& mapped : kMapped) {
    EXPECT_EQ(call([&] { throw Error(mapped.code, "a sentence"); }), mapped.status);
    EXPECT_STREQ(heddle_last_error(), "a sentence");
  }
}

TEST(CBoundary, OtherExceptionsAreMapped) {
  EXPECT_EQ(call([] { throw std::bad_alloc(); }), HEDDLE_ERROR_OUT_OF_MEMORY);
  EXPECT_STREQ(heddle_last_error(), "memory could not be allocated");
  EXPECT_EQ(call([] { throw std::logic_error("broken"); }), HEDDLE_ERROR_INTERNAL);
  EXPECT_STREQ(heddle_last_error(), "broken");
  EXPECT_EQ(call([] { throw 42; }), HEDDLE_ERROR_INTERNAL);
  EXPECT_STREQ(heddle_last_error(), "something that is no std::exception was thrown");
}

TEST(CBoundary, SuccessForgetsTheSentence) {
  call([] { throw std::bad_alloc(); });
  EXPECT_EQ(call([] {}), HEDDLE_OK);
  EXPECT_STREQ(heddle_last_error(), "");
}

TEST(CBoundary, TextsOutliveTheFollowingCalls) {
  const char* text = keep_text(std::string(1000, 'x'));
  call([] { throw std::bad_alloc(); });
  EXPECT_EQ(std::string(text), std::string(1000, 'x'));
}

}  // namespace
}  // namespace heddle::capi
