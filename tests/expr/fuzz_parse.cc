// Properties of parse for any bytes: a refusal is an Error with a caret, and an accepted text reads back from its
// printed form. A libFuzzer target (clang -fsanitize=fuzzer); the tests drive it with seeded mutations.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "expr/grammar.h"
#include "expr/random_expression.h"
#include "expr/verify.h"
#include "heddle/error.h"

namespace {

using heddle::Error;
using heddle::Expr;

const heddle::Symbols& symbols() {
  static const heddle::Symbols symbols(heddle::test::RandomExpressions(0).bindings());
  return symbols;
}

[[noreturn]] void broken(const char* what, std::string_view text) {
  std::fprintf(stderr, "%s for: %.*s\n", what, static_cast<int>(text.size()), text.data());
  std::abort();
}

/// Printing may give a text that is too long to read, or nests deeper: brackets that only casts and clips add.
bool is_limit(const Error& error) {
  const std::string_view sentence = error.what();
  return sentence.starts_with("the text nests deeper") ||
         sentence.starts_with("the text of this expression is longer") ||
         sentence.starts_with("an expression nests more");
}

void check_reads_back(const Expr& e, std::string_view text) {
  try {
    if (!same(heddle::parse(print(e), symbols()), e)) broken("another expression reads back", text);
  } catch (const Error& error) {
    if (!is_limit(error)) broken(error.what(), text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Expr e;
  try {
    e = heddle::parse(text, symbols());
  } catch (const Error& error) {
    if (error.code() != heddle::ErrorCode::invalid_argument) broken(error.what(), text);
    const bool has_caret = std::string_view(error.what()).ends_with('^');
    if (!has_caret && size <= heddle::expr::kMaxTextLength) broken("a refusal without a caret", text);
    return 0;
  }
  heddle::expr::verify(e);
  check_reads_back(e, text);
  return 0;
}
