// The mods of a backward and their derivatives, compiled for tiles.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "families/cpu/cpu_backward_split.h"
#include "families/cpu/mod_programs.h"

namespace heddle::cpu {

/// One read that gets a gradient.
struct ReadProgram {
  std::size_t sum;  // into CpuBackwardSplit::sums
  bool of_weight;
  plan::ReadDependence dependence;
  std::optional<TileProgram> slope;  // none: 1
  std::vector<TileProgram> indices;  // i32
  bool by_score = false;             // some index depends on the score
  bool skips_outside = false;        // an index outside adds nothing; else the nearest element inside is taken
};

struct BackwardPrograms {
  ModPrograms mods;
  std::optional<TileProgram> slope;  // of the score mod by the score; none: 1
  std::vector<ReadProgram> reads;

  BackwardPrograms(const problem::AttentionProblem& problem, const plan::CpuBackwardSplit& split);
  /// The size of one worker's registers.
  std::size_t register_bytes() const;
  /// A title and the lines of its instructions for each.
  std::vector<std::pair<std::string, std::vector<std::string>>> text() const;
};

/// One worker's registers for the programs, which outlive it.
class BackwardWorkerMods {
 public:
  explicit BackwardWorkerMods(const BackwardPrograms& programs);
  /// Takes the values of a run, which outlive it.
  void bind(const Bindings& bindings);

  WorkerMods& mods() { return mods_; }
  TileMod slope() { return slope_ ? TileMod{&*programs_->slope, &*slope_} : TileMod{}; }
  TileMod read_slope(std::size_t read) {
    ReadScratch& scratch = reads_[read];
    return scratch.slope ? TileMod{&*programs_->reads[read].slope, &*scratch.slope} : TileMod{};
  }
  /// A mod an axis.
  std::span<const TileMod> read_indices(std::size_t read) const { return reads_[read].index_mods; }

 private:
  struct ReadScratch {
    std::optional<TileProgram::Scratch> slope;
    std::vector<TileProgram::Scratch> indices;
    std::vector<TileMod> index_mods;  // of these
  };
  const BackwardPrograms* programs_;
  WorkerMods mods_;
  std::optional<TileProgram::Scratch> slope_;
  std::vector<ReadScratch> reads_;
};

}  // namespace heddle::cpu
