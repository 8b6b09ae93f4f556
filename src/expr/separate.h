// Takes score mods apart into what depends on the query, on the key, and on both: kernels compute the first two once a
// row and once a column of scores, not for each score.
#pragma once

#include <optional>

#include "expr/ranges.h"

namespace heddle::expr {

/// A real term as a sum. An empty part is zero. Folding the parts rounds otherwise than the term as written does.
struct SeparatedTerm {
  Expr of_query;  // reads no key
  Expr of_key;    // reads the key, and not the query
  Expr of_both;
};
/// `term` does not read the score. Sums, differences, and their products with and quotients by what reads neither
/// query nor key are taken apart; so is `where`, if its condition reads neither.
SeparatedTerm separate_term(const Expr& term);

/// t = scale * factor * score + offset. `factor` reads neither the score nor the query; it may be 0, NaN or infinite,
/// depending on what it reads.
struct ScoreOfKey {
  double scale;
  Expr factor;
  Expr offset;  // free of the score; empty: zero
};
/// Empty if the score mod is no such product, or if its factor is a constant (linear_in_score).
std::optional<ScoreOfKey> factor_of_key(const Expr& score_mod);

/// A term of b, h and one integer, which is the sum of a number of the query and one of the key: a relative position in
/// two dimensions, say.
struct TermOfSum {
  Expr of_query, of_key;  // i32; at least 0, whatever the indices are, and their sum below `entries`
  Expr entry;             // the term, with kv_idx in place of the sum; reads no query
  int entries;
};
/// Empty when it depends on more, or on no key, or on no query, or when more than `most` sums are possible.
std::optional<TermOfSum> term_of_sum(const Expr& e, const LeafRanges& leaves, int most);

}  // namespace heddle::expr
