#include "expr/exact_integers.h"

#include <span>
#include <unordered_map>

#include "expr/integer_interval.h"
#include "expr/node.h"
#include "expr/wide_integer.h"
#include "heddle/error.h"

namespace heddle::expr {
namespace {

/// An integer node's values. `is_open`: it is made of an i32 that nobody knows, so operations on it may wrap.
struct Known {
  IntegerInterval range = kAnyI64;
  bool is_open = false;
};
/// A range that is known in spite of its open operands, such as that of `ids[kv_idx] % 1000`.
constexpr std::int64_t kKnown = 1 << 24;

constexpr Known kOpen = {kAnyI32, true};

bool wraps_in_i32(Op op) {
  return op == Op::add || op == Op::sub || op == Op::mul || op == Op::neg || op == Op::abs || op == Op::shift_left ||
         op == Op::floor_div;
}

IntegerInterval range_of(Op op, std::span<const Known> of) {
  const IntegerInterval& x = of[0].range;
  const IntegerInterval& y = of.back().range;
  switch (op) {
    case Op::add:
      return sum(x, y);
    case Op::sub:
      return difference(x, y);
    case Op::mul:
      return product(x, y);
    case Op::neg:
      return negated(x);
    case Op::abs:
      if (x.least == kAnyI64.least) return kAnyI64;  // whose magnitude wraps to itself
      if (x.greatest <= 0) return negated(x);
      return x.least >= 0 ? x : IntegerInterval{0, greatest_magnitude(x)};
    case Op::sign:
      return {x.least > 0 ? 1 : x.least == 0 ? 0 : -1, x.greatest < 0 ? -1 : x.greatest == 0 ? 0 : 1};
    case Op::floor_div:
      return quotient(x, y);
    case Op::mod:
      return remainder(x, y);
    case Op::min:
      return {std::min(x.least, y.least), std::min(x.greatest, y.greatest)};
    case Op::max:
      return {std::max(x.least, y.least), std::max(x.greatest, y.greatest)};
    case Op::bit_not:
      return difference({-1, -1}, x);
    case Op::bit_and:
    case Op::bit_or:
    case Op::bit_xor:
      return of_bits(x, y, op == Op::bit_and);
    case Op::shift_left:
      return shifted_left(x, y);
    case Op::shift_right:
      return shifted_right(x, y);
    default:
      return kAnyI32;
  }
}

IntegerInterval range_of_storage(DType dtype) {
  switch (dtype) {
    case DType::u8:
      return {0, 255};
    case DType::i8:
      return {-128, 127};
    case DType::u16:
      return {0, 65535};
    case DType::i16:
      return {-32768, 32767};
    default:
      return kAnyI32;
  }
}

Known known_leaf(Leaf leaf, const IntegerSizes& sizes) {
  const auto below = [](std::int64_t size) { return Known{{0, std::max<std::int64_t>(size - 1, 0)}}; };
  switch (leaf) {
    case Leaf::b:
      return below(sizes.batch);
    case Leaf::h:
      return below(sizes.heads);
    case Leaf::q_idx:
      return below(sizes.queries);
    case Leaf::kv_idx:
      return below(sizes.keys);
    case Leaf::q_len:
    case Leaf::q_start:
      return {{0, sizes.queries}};
    case Leaf::kv_len:
    case Leaf::kv_start:
      return {{0, sizes.keys}};
    default:
      return kOpen;
  }
}

/// The values that a node of type i32 can have. `of`: its operands.
Known known_of(const Node& node, std::span<const Known> of, const IntegerSizes& sizes) {
  switch (node.op) {
    case Op::constant:
      return {{node.i32(), node.i32()}};
    case Op::leaf:
      return known_leaf(node.leaf(), sizes);
    case Op::param: {
      const auto found = sizes.params.find(node.param().name);
      return found == sizes.params.end() ? kOpen : Known{{found->second, found->second}};
    }
    case Op::read:
    case Op::at: {
      const IntegerInterval range = range_of_storage(node.capture().dtype);
      const bool is_open = range == kAnyI32;
      return node.op == Op::read ? Known{range, is_open} : Known{hull(range, of.back().range), is_open};
    }
    case Op::to_i32:
      return node.operands[0]->type == ExprType::boolean ? Known{{0, 1}} : kOpen;
    case Op::where:
      return {hull(of[1].range, of[2].range), of[1].is_open || of[2].is_open};
    default: {
      bool is_open = false, is_wide = false;
      for (const Known& one : of) is_open = is_open || one.is_open, is_wide = is_wide || !one.range.fits_i32();
      const IntegerInterval range = range_of(node.op, of);
      if (!is_wide && is_open && wraps_in_i32(node.op) && !range.fits_i32()) return kOpen;
      return {range, is_open && (range.least < -kKnown || range.greatest > kKnown)};
    }
  }
}

struct Integer {
  Known known;
  Expr narrow;       // where it fits i32
  WideInteger wide;  // elsewhere

  bool is_wide() const { return narrow.empty(); }
  WideInteger widened() const { return is_wide() ? wide : WideInteger::of(narrow); }
  Expr low() const { return is_wide() ? wide.low : narrow; }
};

/// Rewrites an expression, from the leaves up.
class Exact {
 public:
  explicit Exact(const IntegerSizes& sizes) : sizes_(sizes) {}

  void visit(const Node* node) {
    if (node->type == ExprType::i32) {
      integers_[node] = integer(*node);
    } else {
      others_[node] = other(*node);
    }
  }
  Expr result(const Expr& root) {
    if (root.type() != ExprType::i32) return others_.at(root.node());
    return saturated_of(integers_.at(root.node()));
  }
  bool changes() const { return changes_; }

 private:
  const Integer& integer_of(const Node& node, std::size_t i) const { return integers_.at(node.operands[i].get()); }

  static Expr saturated_of(const Integer& x) { return x.is_wide() ? saturated(x.wide) : x.narrow; }

  /// An operand of an operation that takes i32 alone.
  Expr plain(const Node& node, std::size_t i) const {
    const Node* below = node.operands[i].get();
    return below->type == ExprType::i32 ? saturated_of(integers_.at(below)) : others_.at(below);
  }
  std::vector<Expr> plain_operands(const Node& node) const {
    std::vector<Expr> made;
    for (std::size_t i = 0; i < node.operands.size(); ++i) made.push_back(plain(node, i));
    return made;
  }
  bool has_wide(const Node& node) const {
    for (const auto& below : node.operands) {
      if (below->type == ExprType::i32 && integers_.at(below.get()).is_wide()) return true;
    }
    return false;
  }

  Integer integer(const Node& node) {
    std::vector<Known> of;
    for (const auto& below : node.operands) {
      of.push_back(below->type == ExprType::i32 ? integers_.at(below.get()).known : Known{});
    }
    Integer made{known_of(node, of, sizes_), {}, {}};
    if (!has_wide(node) && made.known.range.fits_i32()) {
      made.narrow = with_operands(node, plain_operands(node));
      return made;
    }
    changes_ = true;
    const IntegerInterval& range = made.known.range;
    made.wide = range.is_number() ? WideInteger::constant(range.least) : wide(node);
    if (range.fits_i32()) made.narrow = made.wide.low;
    return made;
  }

  WideInteger wide(const Node& node) const {
    const auto operand = [&](std::size_t i) { return integer_of(node, i).widened(); };
    switch (node.op) {
      case Op::add:
        return operand(0) + operand(1);
      case Op::sub:
        return operand(0) - operand(1);
      case Op::mul:
        return operand(0) * operand(1);
      case Op::neg:
        return -operand(0);
      case Op::abs:
        return where(is_negative(operand(0)), -operand(0), operand(0));
      case Op::sign:
        return WideInteger::of(sign(operand(0).high | to_i32(operand(0).low != Expr(0))));
      case Op::min:
      case Op::max: {
        const Expr less = is_less(operand(0), operand(1));
        return node.op == Op::min ? where(less, operand(0), operand(1)) : where(less, operand(1), operand(0));
      }
      case Op::bit_and:
        return operand(0) & operand(1);
      case Op::bit_or:
        return operand(0) | operand(1);
      case Op::bit_xor:
        return operand(0) ^ operand(1);
      case Op::bit_not:
        return ~operand(0);
      case Op::shift_left:
      case Op::shift_right:
        return shifted(node);
      case Op::floor_div:
      case Op::mod:
        return quotient_or_rest(node);
      case Op::where:
        return where(others_.at(node.operands[0].get()), operand(1), operand(2));
      case Op::read:
        return WideInteger::of(with_operands(node, plain_operands(node)));
      default:
        break;
    }
    throw Error(ErrorCode::invalid_argument,
                quote(shared_of(node)) +
                    " may be beyond 32 bits for these lengths and numbers; arithmetic on integers up to "
                    "64 bits is accepted, but not there");
  }

  WideInteger shifted(const Node& node) const {
    const WideInteger x = integer_of(node, 0).widened();
    const Integer& count = integer_of(node, 1);
    const bool left = node.op == Op::shift_left;
    const std::int64_t by = count.known.range.least;
    if (count.known.range.is_number() && by >= 0 && by < 64) {
      return left ? shifted_left(x, static_cast<int>(by)) : shifted_right(x, static_cast<int>(by));
    }
    return left ? shifted_left(x, saturated_of(count)) : shifted_right(x, saturated_of(count));
  }

  WideInteger quotient_or_rest(const Node& node) const {
    const Integer &x = integer_of(node, 0), &y = integer_of(node, 1);
    const IntegerInterval of = x.known.range, by = y.known.range;
    const bool gives_quotient = node.op == Op::floor_div;
    const auto power = static_cast<std::uint64_t>(by.least);
    if (by.is_number() && by.least > 0 && std::has_single_bit(power)) {
      const WideInteger mask = WideInteger::constant(by.least - 1);
      return gives_quotient ? shifted_right(x.widened(), std::countr_zero(power)) : x.widened() & mask;
    }
    if (by.least > greatest_magnitude(of)) {
      const Expr below = is_negative(x.widened());
      if (gives_quotient) return WideInteger::of(heddle::where(below, Expr(-1), Expr(0)));
      return where(below, x.widened() + y.widened(), x.widened());
    }
    if (!y.is_wide() && greatest_magnitude(by) <= kAnyI32.greatest) {
      const Quotient made = divided(x.widened(), bits_of(of), y.narrow, greatest_magnitude(by));
      return gives_quotient ? made.quotient : made.remainder;
    }
    const std::int64_t least = by.least > 0 ? by.least : -by.greatest;
    if (least > 0 && bits_of(of) <= 62 && bits_of(by) <= 62) {
      const int least_bits = bits_of({least, least});
      const Quotient made = divided(x.widened(), bits_of(of), y.widened(), least_bits);
      return gives_quotient ? made.quotient : made.remainder;
    }
    throw Error(ErrorCode::invalid_argument,
                quote(shared_of(node)) +
                    " divides by an integer that may be 0, or one of more than 62 bits, for these lengths "
                    "and numbers; other divisors of more than 32 bits are accepted there");
  }

  Expr other(const Node& node) {
    if (!has_wide(node)) return with_operands(node, plain_operands(node));
    if (info(node.op).kind == Kind::cmp) return compared(node);
    if (node.op == Op::to_f32) {
      const Integer& x = integer_of(node, 0);
      return x.known.range.is_number() ? Expr(static_cast<double>(x.known.range.least)) : real_of(x.wide);
    }
    return with_operands(node, low_operands(node));  // reads, which are clamped, and draws, of arguments modulo 2^32
  }

  std::vector<Expr> low_operands(const Node& node) const {
    if (node.op != Op::random_uniform) return plain_operands(node);
    std::vector<Expr> made;
    for (std::size_t i = 0; i < node.operands.size(); ++i) made.push_back(integer_of(node, i).low());
    return made;
  }

  Expr compared(const Node& node) const {
    const Integer &x = integer_of(node, 0), &y = integer_of(node, 1);
    const IntegerInterval &of = x.known.range, &with = y.known.range;
    if (of.greatest < with.least || with.greatest < of.least) {
      const bool less = of.greatest < with.least;
      return Expr(node.op == Op::ne ||
                  (less ? node.op == Op::lt || node.op == Op::le : node.op == Op::gt || node.op == Op::ge));
    }
    if (difference(of, with).fits_i32()) {
      const Expr operands[] = {x.low() - y.low(), Expr(0)};
      return build(node.op, operands);
    }
    const WideInteger a = x.widened(), b = y.widened();
    switch (node.op) {
      case Op::lt:
        return is_less(a, b);
      case Op::gt:
        return is_less(b, a);
      case Op::le:
        return !is_less(b, a);
      case Op::ge:
        return !is_less(a, b);
      case Op::eq:
        return is_equal(a, b);
      default:
        return !is_equal(a, b);
    }
  }

  Expr shared_of(const Node& node) const { return with_operands(node, given_operands(node)); }
  static std::vector<Expr> given_operands(const Node& node) {
    std::vector<Expr> made;
    for (std::size_t i = 0; i < node.operands.size(); ++i) made.push_back(operand(node, i));
    return made;
  }

  const IntegerSizes& sizes_;
  std::unordered_map<const Node*, Integer> integers_;
  std::unordered_map<const Node*, Expr> others_;
  bool changes_ = false;
};

/// Whether an operation can leave i32 where sizes and params are up to n.
bool can_leave_i32(std::span<const Node* const> order, std::int64_t n) {
  const IntegerSizes sizes{n, n, n, n, {}};
  std::unordered_map<const Node*, Known> known;
  for (const Node* node : order) {
    if (node->type != ExprType::i32) continue;
    std::vector<Known> of;
    for (const auto& below : node->operands) {
      of.push_back(below->type == ExprType::i32 ? known.at(below.get()) : Known{});
    }
    const Known made = node->op == Op::param ? Known{{-n, n}} : known_of(*node, of, sizes);
    if (!made.range.fits_i32()) return true;
    known[node] = made;
  }
  return false;
}

}  // namespace

Expr exact_integers(const Expr& e, const IntegerSizes& sizes) {
  Exact exact(sizes);
  for (const Node* node : post_order(e)) exact.visit(node);
  return exact.changes() ? exact.result(e) : e;
}

std::int64_t exact_up_to(const Expr& e) {
  const std::vector<const Node*> order = post_order(e);
  for (int bits = 30; bits >= 0; --bits) {
    if (!can_leave_i32(order, std::int64_t{1} << bits)) return std::int64_t{1} << bits;
  }
  return 0;
}

}  // namespace heddle::expr
