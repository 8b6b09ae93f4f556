#include "backend/device_text/range_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include "backend/device_text/words.h"
#include "expr/key_bounds.h"
#include "expr/real_ranges.h"
#include "heddle/error.h"

namespace heddle::device_text {
namespace {

using expr::Kind;
using expr::Leaf;
using expr::Op;
using expr::RangeProgram;

constexpr std::array<std::string_view, 6> kRelations = {"lt", "le", "gt", "ge", "eq", "ne"};
std::string_view range_type_text(ExprType type) {
  return type == ExprType::f32 ? "ranges::Real" : type == ExprType::i32 ? "shared::Interval" : "shared::Truth";
}

std::string slot(int step) { return fmt::format("s{}", step); }
std::string comparison_text(const shared::SumComparison& what) {
  return fmt::format("shared::SumComparison{{{}, {}, {}, {}, {}}}", relation_text(what.relation), what.always_exact,
                     what.has_terms, what.constant, what.divisor);
}
std::string spelled(ExprType type, std::string_view function, const std::string& list) {
  return fmt::format("{}::{}({})", type == ExprType::i32 ? "shared" : "ranges", function, list);
}

}  // namespace

// A switch and not a table: each leaf is a member. Switches over other enums have this shape and nothing else in
// common.
const std::string& LeafTexts::of(Leaf leaf) const {
  static const std::string none;
  switch (leaf) {
    case Leaf::b:
      return b;
    case Leaf::h:
      return h;
    case Leaf::q_idx:
      return q_idx;
    case Leaf::kv_idx:
      return kv_idx;
    case Leaf::q_len:
      return q_len;
    case Leaf::kv_len:
      return kv_len;
    case Leaf::q_start:
      return q_start;
    default:
      return none;
  }
}

std::string relation_text(shared::Relation relation) {
  return fmt::format("shared::Relation::{}", kRelations[static_cast<std::size_t>(relation)]);
}

RangeSteps::RangeSteps(const RangeProgram& program, const ModLayout& layout, const ZoneAxes& axes,
                       const LeafTexts& leaves)
    : program_(program), layout_(layout), axes_(axes), leaves_(leaves) {
  for (const RangeProgram::Step& step : program_.steps()) {
    before_.clear();
    const auto [type, value] = std::visit([this](const auto& of_kind) { return this->write(of_kind); }, step);
    declarations_.push_back(
        before_ + wrapped(fmt::format("  const {} s{} = {};\n", range_type_text(type), types_.size(), value)));
    types_.push_back(type);
  }
}

std::vector<int> RangeSteps::reads_of(const RangeProgram::Sum& sum) const {
  std::vector<int> reads;
  for (const RangeProgram::Term& term : program_.terms(sum)) reads.push_back(term.slot);
  return reads;
}

std::vector<int> RangeSteps::reads_of(int number) const {
  const RangeProgram::Step& step = program_.steps()[static_cast<std::size_t>(number)];
  if (const auto* sum = std::get_if<RangeProgram::Sum>(&step)) return reads_of(*sum);
  if (const auto* comparison = std::get_if<RangeProgram::Comparison>(&step)) {
    std::vector<int> reads = reads_of(comparison->left);
    for (const int slot : reads_of(comparison->right)) reads.push_back(slot);
    return reads;
  }
  if (const auto* read = std::get_if<RangeProgram::Read>(&step)) {
    return {read->operands.begin(), read->operands.begin() + read->capture->rank + (read->with_fill ? 1 : 0)};
  }
  if (const auto* operation = std::get_if<RangeProgram::Operation>(&step)) {
    return {operation->operands.begin(), operation->operands.begin() + operation->operand_count};
  }
  if (const auto* pair = std::get_if<RangeProgram::Pair>(&step)) return {pair->operation, pair->first, pair->second};
  return {};
}

RangeSteps::Value RangeSteps::write(const RangeProgram::Constant& constant) const {
  const expr::Range& range = constant.range;
  if (constant.type == ExprType::boolean) {
    return {ExprType::boolean, fmt::format("shared::point({})", range.always_true())};
  }
  return {ExprType::f32, fmt::format("{{{}, {}, {}}}", literal(static_cast<float>(range.lo)),
                                     literal(static_cast<float>(range.hi)), range.nan)};
}

RangeSteps::Value RangeSteps::write(const RangeProgram::Param& param) const {
  const std::string& name = param.node->param().name;
  if (name == expr::kQTokenParam && !leaves_.q_token.empty()) return {ExprType::i32, leaves_.q_token};
  if (name == expr::kKvTokenParam && !leaves_.kv_token.empty()) return {ExprType::i32, leaves_.kv_token};
  return {param.node->type, fmt::format("ranges::point({})", param_text(layout_, *param.node))};
}

RangeSteps::Value RangeSteps::write(const RangeProgram::LeafValue& value) const {
  const std::string& text = leaves_.of(value.leaf);
  if (text.empty()) {
    throw Error(ErrorCode::internal, fmt::format("a mask's intervals know no {}", expr::name(value.leaf)));
  }
  return {ExprType::i32, text};
}

std::string RangeSteps::sum_text(const RangeProgram::Sum& sum, int without) const {
  std::string text = fmt::format("shared::Interval{{{0}, {0}}}", sum.constant);
  // By step: the form's own order is that of addresses, and equal masks have equal text.
  const std::span given = program_.terms(sum);
  std::vector<RangeProgram::Term> terms(given.begin(), given.end());
  if (without >= 0) terms.erase(terms.begin() + without);
  std::ranges::sort(terms, {}, &RangeProgram::Term::slot);
  for (const RangeProgram::Term& term : terms) {
    text = fmt::format("shared::plus({}, {}, s{})", text, term.coefficient, term.slot);
  }
  return text;
}

RangeSteps::Value RangeSteps::write(const RangeProgram::Sum& sum) const {
  return {ExprType::i32, fmt::format("shared::modulo_period({})", sum_text(sum))};
}

RangeSteps::Value RangeSteps::write(const RangeProgram::Comparison& comparison) const {
  return {ExprType::boolean,
          fmt::format("shared::compare({}, {}, {}, {})", comparison_text(comparison.what), sum_text(comparison.left),
                      sum_text(comparison.right), sum_text(comparison.difference))};
}

std::string RangeSteps::exact_text(int step) const {
  const auto& comparison = std::get<RangeProgram::Comparison>(program_.steps()[static_cast<std::size_t>(step)]);
  return fmt::format("shared::is_exact({}, {}, {})", comparison_text(comparison.what), sum_text(comparison.left),
                     sum_text(comparison.right));
}

RangeSteps::Value RangeSteps::write(const RangeProgram::Pair& pair) const {
  return {ExprType::boolean, fmt::format("shared::decided(s{}, {} && {}, {})", pair.operation, exact_text(pair.first),
                                         exact_text(pair.second), pair.value)};
}

RangeSteps::Value RangeSteps::write(const RangeProgram::Read& read) {
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
  before_ += fmt::format("  const shared::Interval {}[] = {{{}}};\n", array, indices);
  const std::string_view storage = storage_text(read.capture->dtype, expr::Precision::f32);
  const std::string call = axes_.empty() ? fmt::format("few<ops::{}>(mod.captures[{}], {}", storage, capture, array)
                                         : fmt::format("<ops::{}, {}>(mod.captures[{}], zones[{}], {}", storage,
                                                       axes_[capture], capture, capture, array);
  const std::string_view few = axes_.empty() ? "_" : "";
  if (!read.with_fill) return {read.type, fmt::format("ranges::read{}{})", few, call)};
  return {read.type, fmt::format("ranges::at{}{}, s{})", few, call, read.operands[rank])};
}

ExprType RangeSteps::result_of(const RangeProgram::Operation& operation) const {
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

RangeSteps::Value RangeSteps::write(const RangeProgram::Operation& operation) const {
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
    return {result, fmt::format("ranges::compare({}, {}, {})", relation_text(expr::real::relation(operation.op)), list,
                                operation.same)};
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

}  // namespace heddle::device_text
