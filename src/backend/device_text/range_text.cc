#include "backend/device_text/range_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "backend/device_text/words.h"
#include "expr/range_program.h"
#include "expr/real_ranges.h"
#include "heddle/error.h"

namespace heddle::device_text {
namespace {

using expr::Kind;
using expr::Leaf;
using expr::Node;
using expr::Op;
using expr::RangeProgram;

constexpr std::array<std::string_view, 6> kRelations = {"lt", "le", "gt", "ge", "eq", "ne"};
std::string relation_text(shared::Relation relation) {
  return fmt::format("shared::Relation::{}", kRelations[static_cast<std::size_t>(relation)]);
}

std::string_view range_type_text(ExprType type) {
  return type == ExprType::f32 ? "ranges::Real" : type == ExprType::i32 ? "shared::Interval" : "shared::Truth";
}

/// The axes of a read whose index changes inside a block.
std::vector<int> moving_axes(const Node& read) {
  std::vector<int> axes;
  for (int axis = 0; axis < read.capture().rank; ++axis) {
    const expr::LeafSet uses = read.operands[static_cast<std::size_t>(axis)]->uses;
    if (uses.intersects({Leaf::q_idx, Leaf::kv_idx, Leaf::q_token, Leaf::kv_token})) axes.push_back(axis);
  }
  return axes;
}

class RangeWriter {
 public:
  RangeWriter(const Expr& mod, const ModLayout& layout, const ZoneAxes& axes)
      : program_(mod, expr::Precision::f32, nullptr, false), layout_(layout), axes_(axes) {}

  /// The function's body.
  std::string text() {
    for (const RangeProgram::Step& step : program_.steps()) {
      const auto [type, value] = std::visit([this](const auto& of_kind) { return this->write(of_kind); }, step);
      body_ += wrapped(fmt::format("  const {} s{} = {};\n", range_type_text(type), types_.size(), value));
      types_.push_back(type);
    }
    return body_ + fmt::format("  return s{};\n", types_.size() - 1);
  }

 private:
  struct Value {
    ExprType type;
    std::string text;
  };

  static std::string slot(int step) { return fmt::format("s{}", step); }
  ExprType type_of(int step) const { return types_[static_cast<std::size_t>(step)]; }

  static Value write(const RangeProgram::Constant& constant) {
    const expr::Range& range = constant.range;
    if (constant.type == ExprType::boolean) {
      return {ExprType::boolean, fmt::format("shared::point({})", range.always_true())};
    }
    return {ExprType::f32, fmt::format("{{{}, {}, {}}}", literal(static_cast<float>(range.lo)),
                                       literal(static_cast<float>(range.hi)), range.nan)};
  }

  Value write(const RangeProgram::Param& param) const {
    return {param.node->type, fmt::format("ranges::point({})", param_text(layout_, *param.node))};
  }

  static Value write(const RangeProgram::LeafValue& value) {
    switch (value.leaf) {
      case Leaf::b:
      case Leaf::h:
        return {ExprType::i32, fmt::format("shared::point({})", expr::name(value.leaf))};
      case Leaf::q_idx:
      case Leaf::kv_idx:
        return {ExprType::i32, std::string(expr::name(value.leaf))};
      case Leaf::q_len:
      case Leaf::kv_len:
      case Leaf::q_start:
        return {ExprType::i32, fmt::format("shared::point(mod.{})", expr::name(value.leaf))};
      default:
        throw Error(ErrorCode::internal, fmt::format("a mask's intervals know no {}", expr::name(value.leaf)));
    }
  }

  std::string sum_text(const RangeProgram::Sum& sum) const {
    std::string text = fmt::format("shared::Interval{{{0}, {0}}}", sum.constant);
    // By step: the form's own order is that of addresses, and equal masks have equal text.
    const std::span given = program_.terms(sum);
    std::vector<RangeProgram::Term> terms(given.begin(), given.end());
    std::ranges::sort(terms, {}, &RangeProgram::Term::slot);
    for (const RangeProgram::Term& term : terms) {
      text = fmt::format("shared::plus({}, {}, s{})", text, term.coefficient, term.slot);
    }
    return text;
  }

  Value write(const RangeProgram::Sum& sum) const {
    return {ExprType::i32, fmt::format("shared::modulo_period({})", sum_text(sum))};
  }

  static std::string comparison_text(const shared::SumComparison& what) {
    return fmt::format("shared::SumComparison{{{}, {}, {}, {}, {}}}", relation_text(what.relation), what.always_exact,
                       what.has_terms, what.constant, what.divisor);
  }

  Value write(const RangeProgram::Comparison& comparison) const {
    return {ExprType::boolean,
            fmt::format("shared::compare({}, {}, {}, {})", comparison_text(comparison.what), sum_text(comparison.left),
                        sum_text(comparison.right), sum_text(comparison.difference))};
  }

  std::string exact_text(int step) const {
    const auto& comparison = std::get<RangeProgram::Comparison>(program_.steps()[static_cast<std::size_t>(step)]);
    return fmt::format("shared::is_exact({}, {}, {})", comparison_text(comparison.what), sum_text(comparison.left),
                       sum_text(comparison.right));
  }

  Value write(const RangeProgram::Pair& pair) const {
    return {ExprType::boolean, fmt::format("shared::decided(s{}, {} && {}, {})", pair.operation, exact_text(pair.first),
                                           exact_text(pair.second), pair.value)};
  }

  Value write(const RangeProgram::Read& read) {
    const std::size_t capture = capture_slot(layout_, *read.capture);
    const auto rank = static_cast<std::size_t>(read.capture->rank);
    if (rank == 0) {  // one element; an array of no indices is no C++
      return {read.type, fmt::format("ranges::element<ops::{}, 0>(mod.captures[{}], 0)",
                                     storage_text(read.capture->dtype, expr::Precision::f32), capture)};
    }
    std::string indices;
    for (std::size_t axis = 0; axis < rank; ++axis) {
      indices += fmt::format("{}s{}", axis == 0 ? "" : ", ", read.operands[axis]);
    }
    // A local array, since C++ deduces no array bound from a braced list alone.
    const std::string array = fmt::format("i{}", types_.size());
    body_ += fmt::format("  const shared::Interval {}[] = {{{}}};\n", array, indices);
    const std::string arguments =
        fmt::format("<ops::{}, {}>(mod.captures[{}], zones[{}], {}",
                    storage_text(read.capture->dtype, expr::Precision::f32), axes_[capture], capture, capture, array);
    if (!read.with_fill) return {read.type, fmt::format("ranges::read{})", arguments)};
    return {read.type, fmt::format("ranges::at{}, s{})", arguments, read.operands[rank])};
  }

  ExprType result_of(const RangeProgram::Operation& operation) const {
    switch (expr::info(operation.op).kind) {
      case Kind::cmp:
      case Kind::test:
      case Kind::logic:
        return ExprType::boolean;
      case Kind::num:
      case Kind::bits:
        return operation.operand_type;
      case Kind::where:
        return type_of(operation.operands[1]);
      case Kind::cast:
        return operation.op == Op::to_i32 ? ExprType::i32 : ExprType::f32;
      default:
        return ExprType::f32;
    }
  }

  Value write(const RangeProgram::Operation& operation) const {
    const ExprType result = result_of(operation);
    const expr::OpInfo& info = expr::info(operation.op);
    // Backends may differ in its last bits.
    if (info.ulp > 0) return {result, "ranges::any_real()"};
    if (info.kind == Kind::random) return {result, "ranges::random_uniform()"};
    std::string list = slot(operation.operands[0]);
    for (int i = 1; i < operation.operand_count; ++i) {
      list += ", " + slot(operation.operands[static_cast<std::size_t>(i)]);
    }
    if (info.kind == Kind::cmp) {
      return {result, fmt::format("ranges::compare({}, {}, {})", relation_text(expr::real::relation(operation.op)),
                                  list, operation.same)};
    }
    if (operation.op == Op::logical_xor) list += fmt::format(", {}", operation.same);
    if (info.kind == Kind::logic && operation.op != Op::logical_not) list += fmt::format(", {}", operation.opposite);
    if (info.kind == Kind::logic) return {result, fmt::format("shared::{}({})", info.name, list)};
    if (operation.same && operation.op == Op::mul)
      return {result, spelled(result, "square", slot(operation.operands[0]))};
    if (operation.same && operation.op == Op::sub && result == ExprType::f32) {
      return {result, spelled(result, "sub_same", slot(operation.operands[0]))};
    }
    const bool of_integers = (info.kind == Kind::num || info.kind == Kind::bits) && result == ExprType::i32;
    return {result, spelled(of_integers ? ExprType::i32 : ExprType::f32, info.name, list)};
  }
  static std::string spelled(ExprType type, std::string_view function, const std::string& list) {
    return fmt::format("{}::{}({})", type == ExprType::i32 ? "shared" : "ranges", function, list);
  }

  RangeProgram program_;
  const ModLayout& layout_;
  const ZoneAxes& axes_;
  std::string body_;
  std::vector<ExprType> types_;  // of the steps written so far
};

}  // namespace

ZoneAxes zone_axes(const Expr& mask, const ModLayout& layout) {
  ZoneAxes axes(layout.captures.size(), -1);
  for (const Node* node : expr::post_order(mask)) {
    if (expr::info(node->op).kind != Kind::read) continue;
    int& axis = axes[capture_slot(layout, node->capture())];
    const std::vector<int> moving = moving_axes(*node);
    if (moving.size() == 1 && axis < 0) axis = moving[0];
  }
  return axes;
}

std::string range_text(const std::string& name, const Expr& mod, const ModLayout& layout, const ZoneAxes& axes) {
  if (mod.type() != ExprType::boolean) throw Error(ErrorCode::internal, "intervals are asked of a mod that is no mask");
  return fmt::format(
      "#include \"mods/ranges.cuh\"\n\nnamespace heddle {{\n\n"
      "__device__ __noinline__ shared::Truth {}_range(const shared::ModValues& mod,\n"
      "    const shared::ZoneCell* const* zones, int b, int h, shared::Interval q_idx, shared::Interval kv_idx) {{\n"
      "{}}}\n\n}}  // namespace heddle\n",
      name, RangeWriter(mod, layout, axes).text());
}

}  // namespace heddle::device_text
