// The mods of an attention, compiled for tiles.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "families/cpu/target_data.h"
#include "problem/problem.h"
#include "tile_evaluator/tile_evaluator.h"

namespace heddle::cpu {

/// Programs that a tile runs on its scores. A mask and a score mod are one program, which computes shared parts once.
struct ModPrograms {
  std::optional<TileProgram> full;     // the score mod; none: t = s
  std::optional<TileProgram> partial;  // where(mask, score mod, -inf); none: as full
  std::optional<TileProgram> weight;

  explicit ModPrograms(const problem::AttentionProblem& problem);
  /// The size of one worker's registers.
  std::size_t register_bytes() const;
  /// A title and the lines of its instructions for each.
  std::vector<std::pair<std::string, std::vector<std::string>>> text() const;
};

/// The lines of a program's text that are not empty.
std::vector<std::string> lines_of(const std::string& text);

/// One worker's registers for the programs, which outlive it.
class WorkerMods {
 public:
  explicit WorkerMods(const ModPrograms& programs);
  /// Takes the values of a run, which outlive it.
  void bind(const Bindings& bindings);

  TileMod full() { return mod(programs_->full, full_); }
  TileMod partial() { return programs_->partial ? mod(programs_->partial, partial_) : full(); }
  TileMod weight() { return mod(programs_->weight, weight_); }

 private:
  using Scratch = std::optional<TileProgram::Scratch>;
  static TileMod mod(const std::optional<TileProgram>& program, Scratch& scratch) {
    return program ? TileMod{&*program, &*scratch} : TileMod{};
  }
  const ModPrograms* programs_;
  Scratch full_, partial_, weight_;
};

}  // namespace heddle::cpu
