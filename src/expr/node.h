// The expression graph: immutable nodes, shared by construction (equal nodes are one node), and walks over it that
// never recurse.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "heddle/expr.h"

namespace heddle::expr {

enum class Op : std::uint8_t {
#define HEDDLE_OP(name, form, text, arity, kind, ulp) name,
#include "expr/ops.def"
};

inline constexpr int kOpCount = 0
#define HEDDLE_OP(name, form, text, arity, kind, ulp) +1
#include "expr/ops.def"
    ;

enum class Form : std::uint8_t { leaf, call, prefix, infix };
enum class Kind : std::uint8_t { num, bits, real, cmp, test, logic, where, cast, read, random };

struct OpInfo {
  std::string_view name;  // the enumerator
  Form form;
  std::string_view text;  // as read and printed
  int arity;              // -1: as many as the capture has dimensions (at: one more)
  Kind kind;
  int ulp;
};
const OpInfo& info(Op op);

enum class Leaf : std::uint8_t { score, b, h, q_idx, kv_idx, q_token, kv_token, q_len, kv_len, q_start, kv_start };
inline constexpr int kLeafCount = 11;
std::string_view name(Leaf leaf);

/// A set of leaves.
class LeafSet {
 public:
  constexpr LeafSet() = default;
  constexpr LeafSet(std::initializer_list<Leaf> leaves) {
    for (Leaf leaf : leaves) bits_ |= bit(leaf);
  }
  constexpr bool has(Leaf leaf) const { return (bits_ & bit(leaf)) != 0; }
  constexpr bool intersects(LeafSet other) const { return (bits_ & other.bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr LeafSet operator|(LeafSet other) const { return LeafSet(static_cast<std::uint16_t>(bits_ | other.bits_)); }
  constexpr bool operator==(const LeafSet&) const = default;

 private:
  constexpr explicit LeafSet(std::uint16_t bits) : bits_(bits) {}
  static constexpr std::uint16_t bit(Leaf leaf) {
    return static_cast<std::uint16_t>(1U << static_cast<unsigned>(leaf));
  }
  std::uint16_t bits_ = 0;
};

struct ParamDecl {
  std::string name;
  bool operator==(const ParamDecl&) const = default;
};
struct CaptureDecl {
  std::string name;
  DType dtype;
  int rank;
  bool operator==(const CaptureDecl&) const = default;
};

/// A node's data besides its operands: nothing; a constant (double for f32, compared by bits); a leaf; a param; a
/// capture.
using Payload = std::variant<std::monostate, double, std::int32_t, bool, Leaf, ParamDecl, CaptureDecl>;

struct Node {
  Op op;
  ExprType type;
  std::vector<std::shared_ptr<const Node>> operands;
  Payload payload;
  std::size_t hash;
  int depth;     // 1 for a leaf
  LeafSet uses;  // the leaves below this node

  double f32() const { return std::get<double>(payload); }
  std::int32_t i32() const { return std::get<std::int32_t>(payload); }
  bool boolean() const { return std::get<bool>(payload); }
  Leaf leaf() const { return std::get<Leaf>(payload); }
  const ParamDecl& param() const { return std::get<ParamDecl>(payload); }
  const CaptureDecl& capture() const { return std::get<CaptureDecl>(payload); }
};

/// Operations nest at most this deep, a leaf or literal below them not counted; building a deeper one throws
/// invalid_argument.
inline constexpr int kMaxDepth = 1000;

/// The one way to make a node: finds the equal one or makes it. Operands must fit the operation's kind (verify.h says
/// how), or it throws internal; no promotion is done here. `type` matters only where neither operands nor payload
/// determine it (param). Two operations on constants give constants, so that text reads back as the same node: neg
/// (`-3` is a literal) and to_f32 of an integer (`2.0`). NaN constants are one constant.
Expr make(Op op, ExprType type, std::span<const Expr> operands, Payload payload = {});

/// An operation with the checks and promotions of the public operators: throws invalid_argument, naming the operand.
/// Not for leaves and reads.
Expr build(Op op, std::span<const Expr> operands);

/// How many nodes are alive in this process. A node leaves when its last handle goes.
std::size_t live_nodes();

/// Every node below `root` once, operands before users.
std::vector<const Node*> post_order(const Expr& root);
std::vector<const Node*> post_order(std::span<const Expr> roots);

/// The operand as a handle.
inline Expr operand(const Node& node, std::size_t i) { return Expr(node.operands[i]); }

/// Rebuilds `root` bottom-up: `replace(node, new_operands)` returns what stands in the node's place. Every node is
/// visited once.
template <class F>
Expr rewrite(const Expr& root, F&& replace) {
  std::unordered_map<const Node*, Expr> done;
  std::vector<Expr> operands;
  for (const Node* node : post_order(root)) {
    operands.clear();
    for (const auto& below : node->operands) operands.push_back(done.at(below.get()));
    done.emplace(node, replace(*node, std::span<const Expr>(operands)));
  }
  return done.at(root.node());
}

/// Copies the node over other operands.
Expr with_operands(const Node& node, std::span<const Expr> operands);

/// The text form cut to one line of an error message, in back quotes: `score + slopes[h] * ...`.
std::string quote(const Expr& e);

/// The type that reading a capture of this storage gives.
ExprType read_type(DType dtype);

}  // namespace heddle::expr
