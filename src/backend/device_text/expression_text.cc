#include "backend/device_text/expression_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "backend/device_text/words.h"
#include "expr/long_operations.h"
#include "expr/node.h"
#include "heddle/error.h"

namespace heddle::device_text {
namespace {

using expr::is_long;
using expr::Leaf;
using expr::LeafSet;
using expr::Node;
using expr::Op;
using expr::power_of_two;

// ---- stages: how often something is computed

enum class Stage : std::uint8_t { uniform, row, column, element };
constexpr std::array<Stage, 4> kStages = {Stage::uniform, Stage::row, Stage::column, Stage::element};

Stage stage_of(LeafSet uses) {
  if (uses.has(Leaf::score)) return Stage::element;
  const bool row = uses.intersects({Leaf::q_idx, Leaf::q_token});
  const bool column = uses.intersects({Leaf::kv_idx, Leaf::kv_token});
  return row && column ? Stage::element : row ? Stage::row : column ? Stage::column : Stage::uniform;
}

/// Names the stage's locals, and the struct that brings them to later stages.
std::string letter(Stage stage) { return std::string(1, "urce"[static_cast<int>(stage)]); }

struct StageWords {
  std::string function, type, extra_parameters, indices;
};
StageWords words_of(Stage stage, std::string_view real, bool takes_score, bool takes_streamed) {
  switch (stage) {
    case Stage::uniform:
      return {"uniform", "Uniform", "", "int b, int h"};
    case Stage::row:
      return {"row", "Row", "const {0}Uniform& u, ", "int b, int h, int q_idx"};
    case Stage::column:
      return {"column", "Column", "const {0}Uniform& u, ", "int b, int h, int kv_idx"};
    case Stage::element:
      break;
  }
  return {"element", "",
          std::string("const {0}Uniform& u, const {0}Row& r, const {0}Column& c, ") +
              (takes_score ? fmt::format("{} score, ", real) : "") +
              (takes_streamed ? fmt::format("{} streamed, ", real) : ""),
          "int b, int h, int q_idx, int kv_idx"};
}

bool is_of_sequence(Leaf leaf) {
  return LeafSet{Leaf::q_token, Leaf::kv_token, Leaf::q_len, Leaf::kv_len, Leaf::q_start}.has(leaf);
}

// ---- what stands around the functions

constexpr const char* kHead =
    "#include \"mods/captures.cuh\"\n#include \"mods/columns.cuh\"\n#include \"mods/contracted.cuh\"\n#include "
    "\"mods/operations.cuh\"\n";

// Takes, in this order: a type's name; a function's name; the columns' locals; how columns get them; whether an element
// needs its query beside the row's locals; the row's locals taken from another lane; their comparison; whether an
// element is long work.
constexpr const char* kColumns = R"(
struct {0}Mod {{
  using Uniform = {0}Uniform;
  using Row = {0}Row;
  using Column = {0}Column;
  static __device__ __forceinline__ Uniform uniform(const shared::ModValues& mod, int b, int h) {{
    return {1}_uniform(mod, b, h);
  }}
  static __device__ __forceinline__ Row row(const shared::ModValues& mod, const Uniform& u, int b, int h, int q_idx) {{
    return {1}_row(mod, u, b, h, q_idx);
  }}
  static __device__ __forceinline__ Column column(const shared::ModValues& mod, const Uniform& u, int b, int h,
      int kv_idx) {{
    return {1}_column(mod, u, b, h, kv_idx);
  }}
  static __device__ __forceinline__ Column from_lane(const Column& c, int lane) {{
    return {{{2}}};
  }}
  static constexpr bool kReadsQuery = {4}, kLongElement = {7};
  static __device__ __forceinline__ Row row_from_lane(const Row& r, int lane) {{
    return {{{5}}};
  }}
  static __device__ __forceinline__ bool same_row(const Row& r, const Row& other) {{
    return true{6};
  }}
}};
template <int kKeys>
using {0}Columns = ops::{3}Columns<{0}Mod, kKeys>;
)";

// Takes a type's name, a function's name, an element's value, and whether it takes the score.
constexpr const char* kNone = R"(
struct {0}Uniform {{}};
struct {0}Row {{}};
struct {0}Column {{}};
__device__ {0}Uniform {1}_uniform(const shared::ModValues& mod, int b, int h);
__device__ {0}Row {1}_row(const shared::ModValues& mod, const {0}Uniform& u, int b, int h, int q_idx);
__device__ {0}Column {1}_column(const shared::ModValues& mod, const {0}Uniform& u, int b, int h, int kv_idx);
__device__ {2} {1}_element(const shared::ModValues& mod, const {0}Uniform& u, const {0}Row& r, const {0}Column& c, {3}int b,
    int h, int q_idx, int kv_idx);
struct {0}Mod {{
  using Uniform = {0}Uniform;
  using Row = {0}Row;
  using Column = {0}Column;
  static constexpr bool kReadsQuery = false, kLongElement = false;
  static __device__ Uniform uniform(const shared::ModValues& mod, int b, int h);
  static __device__ {0}Row row_from_lane(const {0}Row& r, int lane);
  static __device__ bool same_row(const {0}Row& r, const {0}Row& other);
}};
template <int kKeys>
struct {0}Columns;
)";

std::string type_name_of(std::string name) {
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return name;
}

// ---- the graph

class ModWriter {
 public:
  ModWriter(std::string name, const Expr& mod, const ModLayout& layout, bool takes_score, Rounding rounding,
            const std::optional<Streamed>& streamed)
      : name_(std::move(name)),
        mod_(mod),
        layout_(layout),
        takes_score_(takes_score),
        rounding_(layout.reals == expr::Precision::f64 ? Rounding::exact : rounding),
        streamed_(streamed) {
    type_name_ = type_name_of(name_);
  }

  std::string text() {
    for (const Node* node : expr::post_order(mod_)) values_.emplace(node, value_of(*node));
    const std::string result = use(values_.at(mod_.node()), Stage::element);
    std::string text = kHead;
    if (layout_.reals == expr::Precision::f64) text += "#include \"mods/f64_operations.cuh\"\n";
    text += "\nnamespace heddle {\n\n";
    for (const Stage stage : kStages) {
      if (stage != Stage::element) text += struct_text(stage);
    }
    for (const Stage stage : kStages) text += function_text(stage, result);
    return text + columns_text(result) + "\n}  // namespace heddle\n";
  }

 private:
  /// A computed value, or one so short that it is written out wherever it is used (`local` is then -1).
  struct Value {
    Stage stage;
    int local;
    std::string text;
  };
  struct Local {
    std::string type, text;
    bool used_later = false;
  };
  std::vector<Local>& locals(Stage stage) { return locals_[static_cast<std::size_t>(stage)]; }

  std::string_view type_of(ExprType type) const { return type_text(type, layout_.reals); }
  /// A local of a stage; one that is there already when the text is the same (offsets of two reads, say).
  Value add_local(Stage stage, std::string_view type, std::string text) {
    std::vector<Local>& all = locals(stage);
    auto at = std::find_if(all.begin(), all.end(), [&](const Local& local) { return local.text == text; });
    if (at == all.end()) at = all.insert(all.end(), {std::string(type), std::move(text)});
    return {stage, static_cast<int>(at - all.begin()), ""};
  }

  /// How `value` is written in a function of `here`, a stage that sees it.
  std::string use(const Value& value, Stage here) {
    if (value.local < 0) return value.text;
    std::string name = letter(value.stage) + std::to_string(value.local);
    if (value.stage == here) return name;
    locals(value.stage)[static_cast<std::size_t>(value.local)].used_later = true;
    return letter(value.stage) + "." + name;
  }

  Value value_of(const Node& node) {
    if (streamed_ && !streamed_->read.empty() && &node == streamed_->read.node())
      return {Stage::element, -1, "streamed"};
    const Stage stage = stage_of(node.uses);
    if (stage == Stage::column && is_long(node)) long_column_ = true;
    if (stage == Stage::element && is_long(node)) long_element_ = true;
    if (node.op == Op::constant) return {stage, -1, constant_text(node, layout_.reals)};
    if (node.op == Op::leaf && layout_.by_sequence && is_of_sequence(node.leaf())) return sequence_value(node.leaf());
    if (node.op == Op::leaf && node.leaf() != Leaf::q_token) return {stage, -1, leaf_text(node.leaf())};
    if (node.op == Op::leaf) return add_local(stage, "int", leaf_text(node.leaf()));
    if (node.op == Op::param) return {stage, -1, param_text(layout_, node)};
    if (node.op == Op::read) return read_value(node);
    if (node.op == Op::at) return at_value(node);
    return add_local(stage, type_of(node.type), operation_text(node, stage));
  }

  /// A leaf of a sequence, where they differ: the list is read once a tile.
  Value sequence_value(Leaf leaf) {
    const auto word = [&](std::string_view field, Stage stage) {
      return use(add_local(Stage::uniform, "int", fmt::format("{}.{}", layout_.sequence, field)), stage);
    };
    if (leaf == Leaf::q_token) {
      return add_local(
          Stage::row, "int",
          fmt::format("ops::add(ops::sub(q_idx, {}), {})", word("q_start", Stage::row), word("q_begin", Stage::row)));
    }
    if (leaf == Leaf::kv_token) {
      return add_local(Stage::column, "int", fmt::format("ops::add(kv_idx, {})", word("kv_begin", Stage::column)));
    }
    return add_local(Stage::uniform, "int", fmt::format("{}.{}", layout_.sequence, expr::name(leaf)));
  }

  std::string operation_text(const Node& node, Stage stage) {
    const auto operand = [&](std::size_t i) { return use(values_.at(node.operands[i].get()), stage); };
    if (node.op == Op::floor_div || node.op == Op::mod) {
      const int power = power_of_two(*node.operands[1]);
      if (power >= 0) return fmt::format("ops::{}_power<{}>({})", expr::info(node.op).name, power, operand(0));
    }
    if (rounding_ == Rounding::contracted && node.type == ExprType::f32) {
      if (const std::optional<float> factor = inverse_divisor(node)) {
        return fmt::format("ops::contracted::mul({}, {})", operand(0), literal(*factor));
      }
    }
    std::string list = operand(0);
    for (std::size_t i = 1; i < node.operands.size(); ++i) list += ", " + operand(i);
    const bool to_wide = node.op == Op::to_f32 && layout_.reals == expr::Precision::f64;
    return fmt::format("{}{}({})", space_of(node), to_wide ? "to_f64" : expr::info(node.op).name, list);
  }

  std::string_view space_of(const Node& node) const {
    const bool has_form = node.op == Op::add || node.op == Op::sub || node.op == Op::mul || node.op == Op::tanh;
    const bool contracted = rounding_ == Rounding::contracted && node.type == ExprType::f32 && has_form;
    return contracted ? "ops::contracted::" : "ops::";
  }

  /// 1 / y of x / y, for a constant y whose inverse is far from the ends of f32.
  static std::optional<float> inverse_divisor(const Node& node) {
    if (node.op != Op::div || node.operands[1]->op != Op::constant) return {};
    const auto inverse = static_cast<float>(1 / node.operands[1]->f32());
    if (!(std::abs(inverse) > 1e-30F && std::abs(inverse) < 1e30F)) return {};
    return inverse;
  }

  std::string capture_text(const expr::CaptureDecl& capture) const {
    return fmt::format("mod.captures[{}]", capture_slot(layout_, capture));
  }

  /// The stage of the indices of a read.
  Stage read_stage(const Node& node) const {
    LeafSet uses;
    for (int axis = 0; axis < node.capture().rank; ++axis)
      uses = uses | node.operands[static_cast<std::size_t>(axis)]->uses;
    return stage_of(uses);
  }

  /// `function` of each axis whose index belongs to `stage`, joined by `joint`.
  std::string over_axes_of(Stage stage, const Node& node, std::string_view function, std::string_view joint) {
    std::string text;
    for (int axis = 0; axis < node.capture().rank; ++axis) {
      const Node& index = *node.operands[static_cast<std::size_t>(axis)];
      if (stage_of(index.uses) != stage) continue;
      append(text, joint,
             fmt::format("ops::{}({}, {}, {})", function, capture_text(node.capture()), axis,
                         use(values_.at(&index), stage)));
    }
    return text;
  }

  /// `function` of every axis, joined by `joint`: each stage joins its own axes to those of the stage before, so that
  /// the read itself is left with little. `nothing` is what no axes give.
  std::string over_axes(const Node& node, std::string_view function, std::string_view type, std::string_view joint,
                        std::string_view nothing) {
    const Stage here = read_stage(node);
    std::vector<Value> parts;
    for (const Stage stage : kStages) {
      std::string text = over_axes_of(stage, node, function, joint);
      if (stage != here && text.empty()) continue;
      // A column does not see what belongs to the row.
      if (stage == Stage::row || stage == here) {
        for (const Value& part : parts) append(text, joint, use(part, stage));
        parts.clear();
      }
      if (stage == here) return text.empty() ? std::string(nothing) : text;
      parts.push_back(add_local(stage, type, text));
    }
    return std::string(nothing);
  }
  static void append(std::string& text, std::string_view joint, const std::string& more) {
    if (!text.empty()) text += joint;
    text += more;
  }

  Value read_value(const Node& node) {
    const std::string offset = over_axes(node, "clamped_offset", "long long", " + ", "0");
    return add_local(read_stage(node), type_of(node.type),
                     fmt::format("ops::load<ops::{}, {}>({}, {})", storage_text(node.capture().dtype, layout_.reals),
                                 node.capture().rank, capture_text(node.capture()), offset));
  }

  Value at_value(const Node& node) {
    const Stage here = read_stage(node), stage = stage_of(node.uses);
    const Value inside = add_local(here, "bool", over_axes(node, "inside", "bool", " && ", "true"));
    const std::string offset = over_axes(node, "offset", "long long", " + ", "0");
    const Value element =
        add_local(here, type_of(node.type),
                  fmt::format("ops::load_if<ops::{}>({}, {}, {})", storage_text(node.capture().dtype, layout_.reals),
                              capture_text(node.capture()), use(inside, here), offset));
    return add_local(stage, type_of(node.type),
                     fmt::format("ops::where({}, {}, {})", use(inside, stage), use(element, stage),
                                 use(values_.at(node.operands.back().get()), stage)));
  }

  std::string struct_text(Stage stage) {
    std::string fields;
    for (std::size_t i = 0; i < locals(stage).size(); ++i) {
      const Local& local = locals(stage)[i];
      if (local.used_later) fields += fmt::format("  {} {}{};\n", local.type, letter(stage), i);
    }
    const std::string head = fmt::format("struct {}{} {{", type_name_, words_of(stage, "", false, false).type);
    return head + (fields.empty() ? "" : "\n") + fields + "};\n";
  }

  std::string function_text(Stage stage, const std::string& result) {
    const StageWords words = words_of(stage, type_of(ExprType::f32), takes_score_, streamed_.has_value());
    const bool last = stage == Stage::element;
    std::string text =
        "\n" +
        wrapped(fmt::format("__device__ __forceinline__ {} {}_{}(const shared::ModValues& mod, {}{}) {{\n",
                            last ? std::string(type_of(mod_.type())) : type_name_ + words.type, name_, words.function,
                            fmt::format(fmt::runtime(words.extra_parameters), type_name_), words.indices));
    std::string later;
    for (std::size_t i = 0; i < locals(stage).size(); ++i) {
      const Local& local = locals(stage)[i];
      text += fmt::format("  const {} {}{} = {};\n", local.type, letter(stage), i, local.text);
      if (local.used_later) later += fmt::format("{}{}{}", later.empty() ? "" : ", ", letter(stage), i);
    }
    return text + fmt::format("  return {};\n}}\n", last ? result : "{" + later + "}");
  }

  /// How a warp comes by a block's columns: see kernels/common/mods/columns.cuh.
  std::string columns_text(const std::string& result) {
    std::string columns, rows, same;
    for (std::size_t i = 0; i < locals(Stage::column).size(); ++i) {
      if (locals(Stage::column)[i].used_later) append(columns, ", ", fmt::format("ops::from_lane(c.c{}, lane)", i));
    }
    for (std::size_t i = 0; i < locals(Stage::row).size(); ++i) {
      if (!locals(Stage::row)[i].used_later) continue;
      append(rows, ", ", fmt::format("ops::from_lane(r.r{}, lane)", i));
      same += fmt::format(" & ops::same(r.r{0}, other.r{0})", i);
    }
    const bool dealt = long_column_ && !columns.empty();
    const auto reads_query = [](const std::string& text) { return text.find("q_idx") != std::string::npos; };
    const bool reads = reads_query(result) || std::ranges::any_of(locals(Stage::element), [&](const Local& local) {
                         return reads_query(local.text);
                       });
    return fmt::format(kColumns, type_name_, name_, columns, dealt ? "Dealt" : "Own", reads, rows, same, long_element_);
  }

  std::string name_, type_name_;
  const Expr& mod_;
  const ModLayout& layout_;
  bool takes_score_;
  Rounding rounding_;
  const std::optional<Streamed>& streamed_;
  bool long_column_ = false, long_element_ = false;
  std::unordered_map<const Node*, Value> values_;
  std::array<std::vector<Local>, kStages.size()> locals_;
};

}  // namespace

std::string no_mod_text(const std::string& name, ExprType type, TakesScore takes_score, bool takes_streamed) {
  return "namespace heddle {\n" +
         fmt::format(kNone, type_name_of(name), name, type_text(type, expr::Precision::f32),
                     std::string(takes_score == TakesScore::yes ? "float score, " : "") +
                         (takes_streamed ? "float streamed, " : "")) +
         "\n}  // namespace heddle\n";
}

std::string mod_text(const std::string& name, const Expr& mod, const ModLayout& layout, TakesScore takes_score,
                     Rounding rounding, const std::optional<Streamed>& streamed) {
  if (mod.empty()) throw Error(ErrorCode::internal, "an empty mod has no text");
  if (takes_score == TakesScore::no && mod.node()->uses.has(Leaf::score)) {
    throw Error(ErrorCode::internal, fmt::format("{} was given no score, but reads it", expr::quote(mod)));
  }
  return ModWriter(name, mod, layout, takes_score == TakesScore::yes, rounding, streamed).text();
}

}  // namespace heddle::device_text
