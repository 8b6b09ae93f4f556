// Names that the texts of these tests may use, and what becomes of a text.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "expr/grammar.h"
#include "heddle/error.h"

namespace heddle::expr {

inline const Symbols& text_symbols() {
  static const Symbols symbols = [] {
    Symbols s;
    s.captures["slopes"] = {DType::f32, 1};
    s.captures["bias"] = {DType::bf16, 2};
    s.captures["doc"] = {DType::i64, 1};
    s.captures["open"] = {DType::boolean, 1};
    s.captures["gain"] = {DType::f32, 0};
    s.captures["bytes"] = {DType::u8, 1};
    s.captures["both"] = {DType::f32, 1};
    s.captures["h"] = {DType::f32, 1};
    s.params["both"] = ExprType::f32;
    s.params["window"] = ExprType::i32;
    s.params["alpha"] = ExprType::f32;
    s.params["causal"] = ExprType::boolean;
    return s;
  }();
  return symbols;
}

/// "accepted: " and the expression printed, or the sentence of the refusal.
inline std::string outcome_of(std::string_view text) {
  try {
    const Expr e = parse(text, text_symbols());
    return "accepted: " + print(e);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.what();
  }
}

}  // namespace heddle::expr
