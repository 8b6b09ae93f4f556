// The tile evaluator: an expression run over a tile of elements with SIMD, one operation at a time over cache-resident
// registers. It is the CPU backend's engine for mods. Values that depend on the row or the column alone are kept as
// vectors, scalars as scalars: nothing is materialised to a tile that does not vary over it, and what does not vary
// over a run is computed once.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "expr/interpret.h"
#include "tile_evaluator/tile_form.h"
#include "tile_evaluator/tile_position.h"

namespace heddle::cpu {

/// An expression compiled for tiles. Immutable: threads share it, each with its own Scratch.
class TileProgram {
 public:
  TileProgram(const Expr& root, expr::Precision precision);
  ~TileProgram();
  TileProgram(TileProgram&&) noexcept;
  TileProgram& operator=(TileProgram&&) noexcept;

  ExprType type() const;
  /// The program as text, an instruction a line, with each operand's class; for explain and tests.
  std::string text() const;
  /// Operations on each element, for predictions: those whose results vary over rows and columns.
  struct Work {
    TileForm::Kind form;  // of start_form(), if the operands of a tile allow it
    int steps;            // all of them
    int functions;        // those that take several times as long: exp and the like, quotients, remainders
    int draws;            // of random numbers
  };
  Work work() const;
  /// The size of the registers of one Scratch, once it has run.
  std::size_t register_bytes() const;

  /// One thread's registers, and the values that the program's names have in one run. The program outlives it. The
  /// captures' memory is read when the program runs.
  class Scratch {
   public:
    /// Without values: bind() comes before a run.
    explicit Scratch(const TileProgram& program);
    Scratch(const TileProgram& program, const Bindings& bindings) : Scratch(program) { bind(bindings); }
    Scratch(const TileProgram& program, const Bindings&& gone) = delete;
    /// Takes the values of another run, in the same registers. Throws as expr::Interpreter's constructor does for a
    /// name without a value. The bindings outlive the runs.
    void bind(const Bindings& bindings);
    ~Scratch();
    Scratch(Scratch&&) noexcept;

   private:
    friend class TileProgram;
    struct Registers;
    std::unique_ptr<Registers> registers_;
  };

  /// A real result (Real = float for Precision::f32, double for f64): out[r * out_stride + c] for all rows and columns.
  /// `score` has the same layout and may be `out` itself; null when the expression reads no score. out and score are
  /// 64-byte aligned and out_stride is a multiple of 16; up to the next multiple of 16 columns may be overwritten.
  void run(const TilePosition& at, const float* score, float* out, std::int64_t out_stride, Scratch& scratch) const;
  void run(const TilePosition& at, const double* score, double* out, std::int64_t out_stride, Scratch& scratch) const;

  /// Computes all of a tile that does not depend on scores, if the rest has such a form; else nothing. At most
  /// kMostFormRows rows of f32. The terms last until the scratch begins another tile.
  static constexpr int kMostFormRows = 32;
  TileForm start_form(const TilePosition& at, Scratch& scratch) const;

  struct Count {
    std::int64_t yes, total;
  };
  /// A boolean result: how many elements are true. Stops early once both values were seen; total counts the elements
  /// looked at until then.
  Count count(const TilePosition& at, Scratch& scratch) const;
  /// A boolean or i32 result as i32 (boolean: 0 or 1), for tests.
  void run_i32(const TilePosition& at, const void* score, std::int32_t* out, std::int64_t out_stride,
               Scratch& scratch) const;

 private:
  template <class Real>
  void run_real(const TilePosition& at, const Real* score, Real* out, std::int64_t out_stride, Scratch& scratch) const;

  struct Code;
  std::unique_ptr<const Code> code_;
};

}  // namespace heddle::cpu
