// Nodes are made here, and equal ones found.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <mutex>
#include <unordered_map>

#include "base/hash.h"
#include "expr/node.h"
#include "expr/verify.h"
#include "heddle/error.h"

namespace heddle::expr {
namespace {

std::size_t mix(std::size_t hash, std::uint64_t value) { return base::hash_combine(hash, value); }
std::size_t mix(std::size_t hash, const std::string& text) {
  return mix(hash, base::hash_bytes(text.data(), text.size()));
}

struct HashPayload {
  std::size_t hash;
  std::size_t operator()(std::monostate) const { return hash; }
  std::size_t operator()(double x) const { return mix(hash, std::bit_cast<std::uint64_t>(x)); }
  std::size_t operator()(std::int32_t x) const { return mix(hash, static_cast<std::uint32_t>(x)); }
  std::size_t operator()(bool x) const { return mix(hash, x ? 1U : 0U); }
  std::size_t operator()(Leaf x) const { return mix(hash, static_cast<std::uint64_t>(x)); }
  std::size_t operator()(const ParamDecl& x) const { return mix(hash, x.name); }
  std::size_t operator()(const CaptureDecl& x) const {
    return mix(mix(mix(hash, x.name), static_cast<std::uint64_t>(x.dtype)), static_cast<std::uint64_t>(x.rank));
  }
};

std::size_t hash_of(const Node& node) {
  std::size_t hash = mix(static_cast<std::size_t>(node.op), static_cast<std::uint64_t>(node.type));
  for (const auto& operand : node.operands) hash = mix(hash, operand->hash);
  return std::visit(HashPayload{mix(hash, node.payload.index())}, node.payload);
}

bool equal(const Payload& x, const Payload& y) {
  const double* dx = std::get_if<double>(&x);
  const double* dy = std::get_if<double>(&y);
  if (dx != nullptr && dy != nullptr) return std::bit_cast<std::uint64_t>(*dx) == std::bit_cast<std::uint64_t>(*dy);
  return x == y;
}

bool equal(const Node& x, const Node& y) {
  return x.hash == y.hash && x.op == y.op && x.type == y.type && x.operands == y.operands &&
         equal(x.payload, y.payload);
}

/// All live nodes, weakly. A node takes itself out when its last handle goes, before its memory is freed; so every
/// pointer in a table may be looked at under the table's lock, even when its count is already zero.
class Interner {
 public:
  std::shared_ptr<const Node> find_or_add(Node&& candidate) {
    const std::size_t hash = candidate.hash;
    Shard& shard = shard_of(hash);
    {
      const std::lock_guard lock(shard.mutex);
      if (auto found = find(shard, candidate)) return found;
    }
    // Made outside the lock, because a failing allocation runs the deleter, which takes it.
    std::shared_ptr<const Node> made(new Node(std::move(candidate)), [](const Node* node) {
      interner().remove(node);
      delete node;
    });
    const std::lock_guard lock(shard.mutex);
    if (auto found = find(shard, *made)) return found;
    shard.nodes.emplace(hash, Entry{made.get(), made});
    return made;
  }

  std::size_t size() {
    std::size_t count = 0;
    for (Shard& shard : shards_) {
      const std::lock_guard lock(shard.mutex);
      count += shard.nodes.size();
    }
    return count;
  }

  /// Never destroyed: expressions in static storage may go after it.
  static Interner& interner() {
    static auto* const instance = new Interner;
    return *instance;
  }

 private:
  struct Entry {
    const Node* node;
    std::weak_ptr<const Node> handle;
  };
  struct Shard {
    std::mutex mutex;
    std::unordered_multimap<std::size_t, Entry> nodes;
  };

  Shard& shard_of(std::size_t hash) { return shards_[hash >> 58]; }

  static std::shared_ptr<const Node> find(Shard& shard, const Node& candidate) {
    const auto [begin, end] = shard.nodes.equal_range(candidate.hash);
    for (auto entry = begin; entry != end; ++entry) {
      if (!equal(*entry->second.node, candidate)) continue;
      if (auto found = entry->second.handle.lock()) return found;
    }
    return nullptr;
  }

  void remove(const Node* node) {
    Shard& shard = shard_of(node->hash);
    const std::lock_guard lock(shard.mutex);
    const auto [begin, end] = shard.nodes.equal_range(node->hash);
    const auto entry = std::find_if(begin, end, [node](const auto& pair) { return pair.second.node == node; });
    if (entry != end) shard.nodes.erase(entry);
  }

  std::array<Shard, 64> shards_;
};

/// The constant that an operation on a constant is by definition (see make); empty for all others.
Expr literal_of(Op op, std::span<const Expr> operands) {
  if ((op != Op::neg && op != Op::to_f32) || operands.size() != 1 || operands[0].empty()) return {};
  const Node& below = *operands[0].node();
  if (below.op != Op::constant) return {};
  if (op == Op::neg && below.type == ExprType::f32) return Expr(-below.f32());
  if (op == Op::neg && below.type == ExprType::i32) {
    return Expr(static_cast<std::int32_t>(0U - static_cast<std::uint32_t>(below.i32())));
  }
  if (op == Op::to_f32 && below.type == ExprType::i32) return Expr(static_cast<double>(below.i32()));
  return {};
}

}  // namespace

Expr make(Op op, ExprType type, std::span<const Expr> operands, Payload payload) {
  if (Expr literal = literal_of(op, operands); !literal.empty()) return literal;
  if (const double* x = std::get_if<double>(&payload); x != nullptr && std::isnan(*x)) {
    payload = std::numeric_limits<double>::quiet_NaN();
  }
  Node node{op, type, {}, std::move(payload), 0, 1, {}};
  node.operands.reserve(operands.size());
  for (const Expr& operand : operands) node.operands.push_back(operand.shared());
  node.type = result_type(op, type, node.operands, node.payload);
  if (op == Op::leaf) node.uses = LeafSet{node.leaf()};
  for (const auto& below : node.operands) {
    node.depth = std::max(node.depth, below->depth + 1);
    node.uses = node.uses | below->uses;
  }
  if (node.depth > kMaxDepth + 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("an expression nests more than {} operations deep", kMaxDepth));
  }
  node.hash = hash_of(node);
  return Expr(Interner::interner().find_or_add(std::move(node)));
}

Expr with_operands(const Node& node, std::span<const Expr> operands) {
  return make(node.op, node.type, operands, node.payload);
}

std::size_t live_nodes() { return Interner::interner().size(); }

}  // namespace heddle::expr
