#include "tile_evaluator/tile_evaluator.h"

#include <fmt/format.h>

#include <optional>

#include "heddle/error.h"
#include "tile_evaluator/tile_lowering.h"
#include "tile_evaluator/tile_machine.h"

namespace heddle::cpu {
namespace {

template <class Real>
constexpr expr::Precision kPrecisionOf = sizeof(Real) == 4 ? expr::Precision::f32 : expr::Precision::f64;

/// Memory of elements, a row every `stride` elements.
template <class T>
TileOperand surface(const T* base, std::int64_t stride) {
  return {reinterpret_cast<const std::byte*>(base), static_cast<std::ptrdiff_t>(stride) * std::ptrdiff_t{sizeof(T)},
          std::ptrdiff_t{sizeof(T)}};
}

bool draws(const Instruction& step) {
  return step.code == Code::draw_row || (step.code == Code::op && step.op == expr::Op::random_uniform);
}
bool is_function(const Instruction& step) {
  using expr::Op;
  const Op op = step.op;
  return step.code == Code::op && (op == Op::div || op == Op::floor_div || op == Op::mod || expr::info(op).ulp > 0);
}

}  // namespace

struct TileProgram::Code {
  Expr root;
  Symbols symbols;  // of the root
  expr::Precision precision;
  Program guarded;
  std::optional<Program> plain;  // when `guarded` has guards
  TileForm::Kind form;           // of both
};

TileProgram::TileProgram(const Expr& root, expr::Precision precision) {
  Program guarded = lower(root, /*diagonal_comparisons=*/true);
  std::optional<Program> plain;
  if (!guarded.guards.empty()) plain = lower(root, /*diagonal_comparisons=*/false);
  TileForm::Kind form = precision == expr::Precision::f32 ? Machine::form_of(guarded) : TileForm::Kind::other;
  if (plain && Machine::form_of(*plain) != form) form = TileForm::Kind::other;
  code_ =
      std::make_unique<const Code>(Code{root, symbols_of(root), precision, std::move(guarded), std::move(plain), form});
}
TileProgram::~TileProgram() = default;
TileProgram::TileProgram(TileProgram&&) noexcept = default;
TileProgram& TileProgram::operator=(TileProgram&&) noexcept = default;

ExprType TileProgram::type() const { return code_->root.type(); }
std::string TileProgram::text() const { return to_string(code_->guarded); }

TileProgram::Work TileProgram::work() const {
  Work work{.form = code_->form, .steps = 0, .functions = 0, .draws = 0};
  for (const Instruction& step : code_->guarded.steps[static_cast<std::size_t>(Extent::tile)]) {
    ++work.steps;
    work.functions += is_function(step) ? 1 : 0;
    work.draws += draws(step) ? 1 : 0;
  }
  return work;
}

std::size_t TileProgram::register_bytes() const { return Machine::register_bytes(code_->guarded, code_->precision); }

struct TileProgram::Scratch::Registers {
  /// A machine, made and bound for the first tile that needs it: most small runs need one.
  struct Lazy {
    std::optional<Machine> machine{};
    bool bound = false;

    Machine& get(const Program& program, const Registers& own) {
      if (!machine) machine.emplace(program, own.code.precision);
      if (!bound) machine->bind(*own.bindings);
      bound = true;
      return *machine;
    }
  };
  const Code& code;
  const Bindings* bindings = nullptr;
  Lazy guarded{}, plain{};

  /// The machine that may run this tile, entered.
  Machine& enter(const TilePosition& at) {
    Machine& first = guarded.get(code.guarded, *this);
    if (first.enter(at)) return first;
    Machine& second = plain.get(*code.plain, *this);
    second.enter(at);
    return second;
  }
};

TileProgram::Scratch::Scratch(const TileProgram& program)
    : registers_(std::make_unique<Registers>(Registers{*program.code_})) {}
void TileProgram::Scratch::bind(const Bindings& bindings) {
  expr::check_bound(registers_->code.symbols, bindings);
  registers_->bindings = &bindings;
  registers_->guarded.bound = registers_->plain.bound = false;
}
TileProgram::Scratch::~Scratch() = default;
TileProgram::Scratch::Scratch(Scratch&&) noexcept = default;

void TileProgram::run(const TilePosition& at, const float* score, float* out, std::int64_t out_stride,
                      Scratch& scratch) const {
  run_real(at, score, out, out_stride, scratch);
}
void TileProgram::run(const TilePosition& at, const double* score, double* out, std::int64_t out_stride,
                      Scratch& scratch) const {
  run_real(at, score, out, out_stride, scratch);
}

template <class Real>
void TileProgram::run_real(const TilePosition& at, const Real* score, Real* out, std::int64_t out_stride,
                           Scratch& scratch) const {
  if (type() != ExprType::f32 || code_->precision != kPrecisionOf<Real>) {
    throw Error(ErrorCode::internal, "a tile program was run for another type of result than its own");
  }
  if (at.rows <= 0 || at.columns <= 0) return;
  scratch.registers_->enter(at).run(surface(score, out_stride), surface(out, out_stride),
                                    [](int, int) { return true; });
}

TileForm TileProgram::start_form(const TilePosition& at, Scratch& scratch) const {
  if (code_->form == TileForm::Kind::other || at.rows > kMostFormRows) return {};
  return scratch.registers_->enter(at).start_form(code_->form);
}

TileProgram::Count TileProgram::count(const TilePosition& at, Scratch& scratch) const {
  if (type() != ExprType::boolean) throw Error(ErrorCode::internal, "only booleans can be counted");
  Count count{0, 0};
  if (at.rows <= 0 || at.columns <= 0) return count;
  Machine& machine = scratch.registers_->enter(at);
  machine.run({}, {}, [&](int, int rows) {
    count.yes += machine.kernels().count_true(machine.result(), rows, at.columns);
    count.total += std::int64_t{rows} * at.columns;
    return count.yes == 0 || count.yes == count.total;
  });
  return count;
}

void TileProgram::run_i32(const TilePosition& at, const void* score, std::int32_t* out, std::int64_t out_stride,
                          Scratch& scratch) const {
  if (type() == ExprType::f32) throw Error(ErrorCode::internal, "only integers and booleans can be had as integers");
  if (at.rows <= 0 || at.columns <= 0) return;
  const TileOperand scores = code_->precision == expr::Precision::f32
                                 ? surface(static_cast<const float*>(score), out_stride)
                                 : surface(static_cast<const double*>(score), out_stride);
  Machine& machine = scratch.registers_->enter(at);
  machine.run(scores, {}, [&](int first_row, int rows) {
    const TileOperand result = machine.result();
    for (int r = 0; r < rows; ++r) {
      const auto* row = reinterpret_cast<const std::int32_t*>(result.base + r * result.row);
      for (int c = 0; c < at.columns; ++c) {
        out[(first_row + r) * out_stride + c] = type() == ExprType::boolean ? row[c] & 1 : row[c];
      }
    }
    return true;
  });
}

}  // namespace heddle::cpu
