#include "tile_evaluator/tile_lowering.h"

#include <algorithm>
#include <bit>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "expr/long_operations.h"
#include "heddle/error.h"
#include "tile_evaluator/tile_facts.h"

namespace heddle::cpu {
namespace {

using expr::Leaf;
using expr::Node;
using expr::Op;

/// Emits instructions, operands before users. Recursion is as deep as the expression, at most expr::kMaxDepth + 1.
class Lowering {
 public:
  Lowering(const Expr& root, bool diagonal_comparisons) : facts_(root, diagonal_comparisons) {
    program_.type = root.type();
    const Source value = lower(*root.node(), Extent::tile);
    const bool computed = value.extent == Extent::tile && value.index != kScore;
    if (!computed) emit({.code = Code::copy, .form = root.type(), .out = {Extent::tile, root.type()}, .in = {value}});
  }

  Program finish() {
    assign_registers();
    collect_spread();
    return std::move(program_);
  }

 private:
  /// A node is lowered for the extent of the instruction that uses it. For a row, column-dependent parts take column 0
  /// (they cancel, or the caller adds the column); for a column, row 0; for a scalar both; for a diagonal every part
  /// becomes a vector along one path of elements that crosses each diagonal once.
  static Extent extent_for(Extent own, Extent user) {
    switch (user) {
      case Extent::scalar:
        return Extent::scalar;
      case Extent::row:
        return varies_by_row(own) ? Extent::row : Extent::scalar;
      case Extent::column:
        return varies_by_column(own) ? Extent::column : Extent::scalar;
      case Extent::diagonal:
        return own == Extent::scalar ? Extent::scalar : Extent::diagonal;
      case Extent::tile:
        return own;
    }
    return Extent::tile;
  }

  Source lower(const Node& node, Extent user) {
    const Extent extent = extent_for(facts_[node].extent, user);
    const auto [known, added] = done_.try_emplace({&node, extent});
    if (!added) return known->second;
    const Source value = lower_new(node, extent);
    done_[{&node, extent}] = value;
    return value;
  }

  Source lower_new(const Node& node, Extent extent) {
    switch (node.op) {
      case Op::constant:
      case Op::param:
        return fixed(node.type, node.payload);
      case Op::leaf:
        return lower_leaf(node.leaf(), extent);
      case Op::read:
      case Op::at:
        return lower_read(node, extent);
      case Op::random_uniform:
        if (extent == Extent::tile && draws_by_row(node)) return lower_draw(node);
        break;
      case Op::where:
        if (extent == Extent::tile) return lower_where(node);
        break;
      case Op::add:
        if (extent == Extent::tile && node.type == ExprType::f32) return lower_add(node);
        break;
      case Op::floor_div:
      case Op::mod:
        if (expr::power_of_two(*node.operands[1]) >= 0) return lower_by_power_of_two(node, extent);
        break;
      default:
        break;
    }
    if (facts_.needs_guard(node)) add_guards(node);
    return emit_op(node, lower_operands(node, extent), extent);
  }

  std::vector<Source> lower_operands(const Node& node, Extent extent) {
    std::vector<Source> in;
    for (const auto& below : node.operands) in.push_back(lower(*below, extent));
    return in;
  }

  Source lower_leaf(Leaf leaf, Extent extent) {
    if (leaf == Leaf::score) return {Extent::tile, ExprType::f32, kScore};
    const Source out = new_slot(extent, ExprType::i32);
    program_.leaves.push_back({leaf, out});
    return out;
  }

  Source fixed(ExprType type, const expr::Payload& payload) {
    const Source out = new_slot(Extent::scalar, type);
    program_.fixed.push_back({payload, out});
    fixed_slots_.insert(out.index);
    return out;
  }

  /// Comparisons as lt, le, eq and ne alone.
  Source emit_op(const Node& node, std::vector<Source> in, Extent extent) {
    Op op = node.op;
    if (op == Op::gt || op == Op::ge) {
      op = op == Op::gt ? Op::lt : Op::le;
      std::swap(in[0], in[1]);
    }
    const ExprType form = in.back().type;
    return emit({.op = op, .form = form, .out = {extent, node.type}, .in = std::move(in)});
  }

  bool used_once(const Node& node) const { return facts_[node].users == 1; }
  bool is_tile(const Node& node) const { return facts_[node].extent == Extent::tile; }

  Source lower_add(const Node& node) {
    for (std::size_t i : {0U, 1U}) {
      const Node& product = *node.operands[i];
      if (product.op != Op::mul || !is_tile(product) || !used_once(product)) continue;
      std::vector<Source> in = lower_operands(product, Extent::tile);
      in.push_back(lower(*node.operands[1 - i], Extent::tile));
      return emit({.code = Code::mul_add, .out = {Extent::tile, node.type}, .in = std::move(in)});
    }
    return emit_op(node, lower_operands(node, Extent::tile), Extent::tile);
  }

  Source lower_where(const Node& node) {
    const Source yes = lower(*node.operands[1], Extent::tile);
    const Source no = lower(*node.operands[2], Extent::tile);
    return select(*node.operands[0], yes, no);
  }

  /// A condition of one use is not stored: a comparison selects at once, and conjunctions become selections in turn.
  Source select(const Node& condition, const Source& yes, const Source& no) {
    if (is_tile(condition) && used_once(condition)) {
      const auto operand = [&condition](std::size_t i) -> const Node& { return *condition.operands[i]; };
      if (condition.op == Op::logical_not) return select(operand(0), no, yes);
      if (condition.op == Op::logical_and && no.extent != Extent::tile) {
        return select(operand(0), select(operand(1), yes, no), no);
      }
      if (condition.op == Op::logical_or && yes.extent != Extent::tile) {
        return select(operand(0), yes, select(operand(1), yes, no));
      }
      if (is_comparison(condition.op) && yes.type == ExprType::f32) return select_compared(condition, yes, no);
    }
    const Source chosen = lower(condition, Extent::tile);
    return emit({.op = Op::where, .form = yes.type, .out = {Extent::tile, yes.type}, .in = {chosen, yes, no}});
  }

  Source select_compared(const Node& condition, Source yes, Source no) {
    Source x = lower(*condition.operands[0], Extent::tile);
    Source y = lower(*condition.operands[1], Extent::tile);
    if (condition.op == Op::gt || condition.op == Op::ge) std::swap(x, y);
    if (condition.op == Op::ne) std::swap(yes, no);
    const Code code = is_equality(condition.op)                          ? Code::select_eq
                      : condition.op == Op::lt || condition.op == Op::gt ? Code::select_lt
                                                                         : Code::select_le;
    return emit({.code = code, .form = x.type, .out = {Extent::tile, yes.type}, .in = {x, y, yes, no}});
  }

  Source lower_by_power_of_two(const Node& node, Extent extent) {
    const std::int32_t divisor = node.operands[1]->i32();
    const bool quotient = node.op == Op::floor_div;
    const std::int32_t operand = quotient ? std::countr_zero(static_cast<std::uint32_t>(divisor)) : divisor - 1;
    const Source x = lower(*node.operands[0], extent);
    return emit({.code = quotient ? Code::shift_right : Code::bit_and,
                 .form = ExprType::i32,
                 .out = {extent, ExprType::i32},
                 .in = {x, fixed(ExprType::i32, operand)}});
  }

  /// Whether an index grows by one from column to column, whatever it does from row to row.
  bool grows_by_column(const Node& index) const { return facts_[index].linear && facts_[index].per_column == 1; }

  bool draws_by_row(const Node& node) const {
    for (std::size_t i = 0; i < 4; ++i) {
      if (varies_by_column(facts_.operand(node, i).extent)) return false;
    }
    return grows_by_column(*node.operands[4]);
  }
  Source lower_draw(const Node& node) {
    return emit({.code = Code::draw_row, .out = {Extent::tile, node.type}, .in = lower_operands(node, Extent::row)});
  }

  /// The one axis along which a row of the tile reads neighbours; -1 when there is none.
  int column_axis(const Node& node, std::size_t axes) const {
    int found = -1;
    for (std::size_t axis = 0; axis < axes; ++axis) {
      if (!varies_by_column(facts_.operand(node, axis).extent)) continue;
      if (found >= 0 || !grows_by_column(*node.operands[axis])) return -1;
      found = static_cast<int>(axis);
    }
    return found;
  }

  Source lower_read(const Node& node, Extent extent) {
    const std::size_t axes = node.operands.size() - (node.op == Op::at ? 1 : 0);
    const int along = extent == Extent::tile ? column_axis(node, axes) : -1;
    std::vector<Source> in;
    for (std::size_t i = 0; i < node.operands.size(); ++i) {
      in.push_back(lower(*node.operands[i], along >= 0 && i < axes ? Extent::row : extent));
    }
    program_.captures.push_back(node.capture());
    return emit({.code = Code::read,
                 .op = node.op,
                 .form = node.type,
                 .out = {extent, node.type},
                 .in = std::move(in),
                 .capture = static_cast<int>(program_.captures.size()) - 1,
                 .column_axis = along});
  }

  void add_guards(const Node& node) {
    for (const auto& side : node.operands) {
      const Fact& fact = facts_[*side];
      program_.guards.push_back({lower(*side, Extent::scalar), static_cast<std::int32_t>(fact.per_row),
                                 static_cast<std::int32_t>(fact.per_column)});
    }
  }

  Source new_slot(Extent extent, ExprType type) {
    return {extent, type, program_.slots[static_cast<std::size_t>(extent)]++};
  }

  Source emit(Instruction instruction) {
    instruction.out = new_slot(instruction.out.extent, instruction.out.type);
    const Source out = instruction.out;
    std::vector<Instruction>& list = is_fixed(instruction) ? program_.once : program_.steps[index(out.extent)];
    if (&list == &program_.once) fixed_slots_.insert(out.index);
    list.push_back(std::move(instruction));
    return out;
  }

  bool is_fixed(const Instruction& instruction) const {
    if (instruction.out.extent != Extent::scalar || instruction.code == Code::read) return false;
    return std::all_of(instruction.in.begin(), instruction.in.end(),
                       [this](const Source& source) { return fixed_slots_.contains(source.index); });
  }

  static std::size_t index(Extent extent) { return static_cast<std::size_t>(extent); }

  void assign_registers();
  void collect_spread();

  Facts facts_;
  Program program_;
  std::map<std::pair<const Node*, Extent>, Source> done_;
  std::unordered_set<int> fixed_slots_;  // scalars
};

/// Numbers the registers of the tile anew, by life time: an operand that ends gives its register to the result, except
/// between values of different width in memory.
void Lowering::assign_registers() {
  std::vector<Instruction>& steps = program_.steps[index(Extent::tile)];
  std::unordered_map<int, std::size_t> last_use;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    for (const Source& source : steps[i].in) {
      if (source.extent == Extent::tile) last_use[source.index] = i;
    }
  }
  std::unordered_map<int, int> assigned = {{kScore, kScore}};
  std::vector<int> free;
  int count = kResult + 1;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Instruction& step = steps[i];
    std::vector<int> ending;
    bool one_width = true;
    for (Source& source : step.in) {
      if (source.extent != Extent::tile) continue;
      one_width = one_width && (source.type == ExprType::f32) == (step.out.type == ExprType::f32);
      const int own = source.index;
      source.index = assigned.at(own);
      const bool ends = own != kScore && last_use.at(own) == i;
      if (ends && std::find(ending.begin(), ending.end(), source.index) == ending.end()) ending.push_back(source.index);
    }
    if (one_width) free.insert(free.end(), ending.begin(), ending.end());
    const int own = step.out.index;
    if (i + 1 == steps.size()) {
      step.out.index = kResult;
    } else if (free.empty()) {
      step.out.index = count++;
    } else {
      step.out.index = free.back();
      free.pop_back();
    }
    if (!one_width) free.insert(free.end(), ending.begin(), ending.end());
    assigned[own] = step.out.index;
  }
  program_.slots[index(Extent::tile)] = count;
}

void Lowering::collect_spread() {
  for (const Instruction& step : program_.steps[index(Extent::tile)]) {
    if (step.code == Code::read || step.code == Code::draw_row) continue;  // they take a row's value as it is
    for (const Source& source : step.in) {
      auto& spread = program_.spread;
      if (source.extent != Extent::row || std::find(spread.begin(), spread.end(), source) != spread.end()) continue;
      spread.push_back(source);
    }
  }
}

}  // namespace

Program lower(const Expr& root, bool diagonal_comparisons) {
  if (root.empty()) throw Error(ErrorCode::invalid_argument, "an empty expression cannot be evaluated");
  return Lowering(root, diagonal_comparisons).finish();
}

}  // namespace heddle::cpu
