// How many registers a kernel's consumers are expected to need.
#include <algorithm>

#include "expr/node.h"
#include "families/forward_sm90/forward_sm90.h"

namespace heddle::plan {
namespace {

using shared::ForwardSm90Config;

// Registers that hold what a mod computes before its scores are told apart: addresses and values of reads, the steps
// of divisions and of draws. Comparisons and sums of the indices take their turn in the same few. Fitted to what
// bench_forward_sm90_registers finds: of 91 kernels one more spills than is expected.
int mod_registers(const Expr& mod, const expr::Node* streamed) {
  constexpr int kRead = 3, kDivision = 2, kDraw = 7;
  if (mod.empty()) return 0;
  int registers = 0;
  for (const expr::Node* node : expr::post_order(mod)) {
    switch (node->op) {
      case expr::Op::read:
      case expr::Op::at:
        registers += node == streamed ? 0 : kRead;
        break;
      case expr::Op::floor_div:
      case expr::Op::mod:
        registers += kDivision;
        break;
      case expr::Op::random_uniform:
        registers += kDraw;
        break;
      default:
        break;
    }
  }
  return registers;
}

}  // namespace

int forward_sm90_registers(const ForwardSm90Config& config, const KernelMods& mods) {
  constexpr int kOthers = 26;  // fitted like those of mods
  const int scores = config.kv_block / 2, weights = config.kv_block * config.element_bytes() / 8,
            output = config.v_columns() / 2;
  // They take their turns.
  int most = 0;
  const expr::Node* streamed = config.streamed_bytes > 0 ? mods.streamed->read.node() : nullptr;
  for (const Expr& mod : mods.of_scores(config.stores_mask())) {
    if (!config.dropped || mod.node() != mods.weight.node()) most = std::max(most, mod_registers(mod, streamed));
  }
  // Operations on each score or weight are done to several at once.
  if (config.capped) most += 7;
  if (config.scores == shared::ScoreForm::mapped ||
      (config.scores == shared::ScoreForm::added && streamed == nullptr)) {
    most += 16;
  }
  if (streamed != nullptr) most += 4;
  if (config.weighted) most += 12;
  return scores + weights + output + kOthers + most;
}

}  // namespace heddle::plan
