#include "expr/mod_arguments.h"

#include <fmt/format.h>

#include "expr/node.h"
#include "heddle/error.h"

namespace heddle::mods {

void refuse(const std::string& sentence) { throw Error(ErrorCode::invalid_argument, sentence); }

Expr literal(std::string_view argument, std::int64_t value, std::int64_t least, std::int64_t largest) {
  if (value < least || value > largest) {
    refuse(fmt::format("{} must be {} to {}, but is {}", argument, least, largest, value));
  }
  return Expr(value);
}

void require_i32(std::string_view argument, const Expr& x) {
  if (!x.empty() && x.type() == ExprType::i32) return;
  refuse(fmt::format("{} must be an i32 expression, but is {}", argument, x.empty() ? "empty" : name(x.type())));
}

void require_integers(std::string_view argument, const Capture& capture, int least_rank, int largest_rank) {
  const bool integers = expr::read_type(capture.dtype()) == ExprType::i32;
  if (integers && capture.rank() >= least_rank && capture.rank() <= largest_rank) return;
  refuse(fmt::format("{} must be of integers, of rank {}{}, but '{}' is {} of rank {}", argument, least_rank,
                     largest_rank > least_rank ? fmt::format(" or {}", largest_rank) : "", capture.name(),
                     name(capture.dtype()), capture.rank()));
}

void require_reals(std::string_view argument, const Capture& capture, int rank) {
  if (is_floating(capture.dtype()) && capture.rank() == rank) return;
  refuse(fmt::format("{} must be floating of rank {}, but '{}' is {} of rank {}", argument, rank, capture.name(),
                     name(capture.dtype()), capture.rank()));
}

}  // namespace heddle::mods
