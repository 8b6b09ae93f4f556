// Runs one lowered program over tiles: owns the memory of its values and walks a tile in strips of rows, so that the
// registers of a strip stay in the first cache.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "expr/interpret.h"
#include "tile_evaluator/tile_form.h"
#include "tile_evaluator/tile_kernels.h"
#include "tile_evaluator/tile_position.h"
#include "tile_evaluator/tile_program.h"

namespace heddle::cpu {

class Machine {
 public:
  /// The program outlives the machine. bind() comes before the first tile.
  Machine(const Program& program, expr::Precision precision);

  /// The size of a machine's registers.
  static std::size_t register_bytes(const Program& program, expr::Precision precision);
  /// Takes the values of a run, and computes what depends on them alone; allocates nothing. `bindings` has a value for
  /// every name (expr::check_bound).
  void bind(const Bindings& bindings);

  /// Begins a tile: computes its scalars. False when a guard fails; the tile then needs another program.
  bool enter(const TilePosition& at);

  /// Runs the tile entered. `score` and `out` lie as TileOperands over the whole tile; without an out.base the result
  /// of each strip is in result(). after(first_row, rows) returns whether to go on.
  template <class F>
  void run(const TileOperand& score, const TileOperand& out, F&& after) {
    prepare_columns();
    const int most_rows = strip_rows(out.base != nullptr);
    for (int panel = 0; panel < at_.rows; panel += kPanelRows) {
      const int panel_rows = std::min(kPanelRows, at_.rows - panel);
      prepare_panel(panel, panel_rows);
      for (int row = 0; row < panel_rows; row += most_rows) {
        const int rows = std::min(most_rows, panel_rows - row);
        run_strip(panel, row, rows, score, out);
        if (!after(panel + row, rows)) return;
      }
    }
  }
  /// The form that a program's tiles may have.
  static TileForm::Kind form_of(const Program& program);
  /// Computes the form of the tile entered, as TileProgram::start_form says.
  TileForm start_form(TileForm::Kind form);
  /// The last strip's result when it was not written to the caller's memory.
  TileOperand result() const;
  const TileKernels& kernels() const { return *kernels_; }

 private:
  /// Row and diagonal values are made for this many rows at a time.
  static constexpr int kPanelRows = 256;
  /// A register holds a strip: 8 KiB, 2048 floats or 1024 doubles.
  static constexpr int kRegisterBytes = 8192;
  /// Rows of a strip that uses the caller's memory alone, without registers: only spread values must fit the cache.
  static constexpr int kRowsInPlace = 64;

  void bind_fixed(const FixedValue& value, const Bindings& bindings);
  static BoundCapture bound(const ConstTensorView& view);
  /// Where registers stand, in bytes.
  struct Layout {
    std::array<std::ptrdiff_t, kExtentCount> begin{}, slot_bytes{};
    std::ptrdiff_t spread = 0, spread_bytes = 0, total = 0;
  };
  static Layout layout_of(const Program& program, int real_bytes);

  int strip_rows(bool to_caller) const;
  void prepare_columns();
  void prepare_panel(int first_row, int rows);
  void run_strip(int panel, int row, int rows, const TileOperand& score, const TileOperand& out);
  void start_strip(int panel, int row, int rows);
  void run_steps(std::size_t count, int rows, const TileOperand& score, const TileOperand& out);
  /// An instruction with its kernel and its arguments, of which those in `moving` change from strip to strip.
  struct Step {
    const Instruction* instruction;
    TileKernel kernel;
    TileArguments arguments;
    std::vector<std::size_t> moving;
  };
  void set_arguments(Step& step, int rows, const TileOperand& score, const TileOperand& out) const;
  std::vector<Step> steps_of(const std::vector<Instruction>& instructions) const;
  void run_flat(std::vector<Step>& steps, int count);

  TileForm added_form();
  static TileForm streamed_form(const TileArguments& read);
  TileForm capped_form() const;
  void set_leaf(const LeafValue& leaf);
  std::int32_t leaf_at_origin(expr::Leaf leaf) const;
  TileKernel kernel(const Instruction& step) const;
  bool takes_rows_as_they_are(const Instruction& step) const {
    return step.code == Code::read || step.code == Code::draw_row;
  }
  TileOperand fixed_operand(const Source& source, const Instruction& user) const;
  TileOperand moving_operand(const Source& source, const TileOperand& score, const TileOperand& out) const;

  int element_bytes(ExprType type) const { return type == ExprType::f32 ? real_bytes_ : 4; }
  std::byte* slot(const Source& source) const;

  const Program* program_;
  const TileKernels* kernels_;
  int real_bytes_;
  std::vector<BoundCapture> captures_;                 // steps point there
  std::array<std::vector<Step>, kExtentCount> steps_;  // by extent
  std::vector<Step> once_;                             // computed once a run

  struct FreeAligned {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte, FreeAligned> memory_;
  std::array<std::byte*, kExtentCount> slots_{};  // of each extent, apart by slot_bytes_
  std::array<std::ptrdiff_t, kExtentCount> slot_bytes_{};
  std::byte* spread_ = nullptr;
  std::ptrdiff_t spread_bytes_ = 0;

  // The tile entered, and where in it the machine is.
  TilePosition at_;
  int columns_ = 0;  // rounded up to kColumnStep
  int panel_ = 0;    // first row of the panel
  int panel_rows_ = 0;
  int strip_ = 0;  // first row of the strip, in the panel
};

}  // namespace heddle::cpu
