#include "families/forward_sm90/forward_sm90_ranking.h"

#include <fmt/format.h>

#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/forward_sm90_costs.h"
#include "plan/factors.h"
#include "plan/tiles/packed_heads.h"

namespace heddle::plan {

using shared::ForwardSm90Config;

double ForwardSm90Candidate::weighed_seconds() const {
  if (steady > 0) return steady;
  const ForwardSm90Config& config = choice.plan.part<shared::ForwardSm90Config>();
  const double gain = (copies_more ? kPlannerFactors.copy_gain : 1) * (reads_table ? kPlannerFactors.table_reads : 1);
  if (config.stores_mask() && is_spare(config)) return seconds() * gain * kPlannerFactors.spare_gain;
  if (!config.packs()) return seconds() * gain;
  const bool idles = choice.plan.packed_heads <= (config.warpgroups - 1) * config.warpgroup_heads();
  return seconds() * gain * kPlannerFactors.packing_gain * (idles ? kPlannerFactors.idle_gain : 1);
}

std::string describe(const ForwardSm90Config& config) {
  if (config.packs()) {
    return fmt::format("{} x {} keys, {} warpgroups", describe_packed(config.tile()), config.kv_block,
                       config.warpgroups);
  }
  return fmt::format("{} queries x {} keys, {} warpgroups", config.rows(), config.kv_block, config.warpgroups);
}

std::string describe(const Plan& plan) {
  const bool copied = plan.copies[1] && plan.copies[1]->paged;
  const std::string_view rows = copied                                             ? ", of copied pages"
                                : plan.part<shared::ForwardSm90Config>().gathers() ? ", of gathered rows"
                                                                                   : "";
  return fmt::format("{}{}", describe(plan.part<shared::ForwardSm90Config>()), rows);
}

std::string standing_behind(const ForwardSm90Candidate& other, const ForwardSm90Candidate& first) {
  const ForwardSm90Config& config = other.choice.plan.part<shared::ForwardSm90Config>();
  const KernelMods& mods = other.choice.plan.mods;
  if (other.weighs_each && !first.weighs_each) {
    return fmt::format("{}: {} does not divide its keys, so draws would be compared one by one",
                       describe(other.choice.plan), shared::kKeysOfDraw);
  }
  if (other.masks_each && !first.masks_each) {
    return fmt::format("{}: words have bits for 128 keys, so the mask would be evaluated for each pair",
                       describe(other.choice.plan));
  }
  if (other.places_each && !first.places_each) {
    return fmt::format("{}: would look up the position of each row and key", describe(other.choice.plan));
  }
  if (other.numbers_each && !first.numbers_each) {
    return fmt::format("{}: would compute for each pair what depends on the key alone", describe(other.choice.plan));
  }
  if (other.reads_table && !first.reads_table) {
    return fmt::format("{}: would read the table of {} entries for each pair", describe(other.choice.plan),
                       first.choice.plan.mods.table_entries);
  }
  if (first.reads_table && !other.reads_table) {
    return fmt::format("{}: has the table of {} entries in shared memory, but is predicted {:.4g} ms, {:.1f} % slower",
                       describe(other.choice.plan), mods.table_entries, other.seconds() * 1e3,
                       100 * (other.seconds() / first.seconds() - 1));
  }
  if (other.reads_each && !first.reads_each) {
    return fmt::format("{}: would read capture '{}' element by element", describe(other.choice.plan),
                       mods.streamed->capture);
  }
  if (other.may_spill && !first.may_spill) {
    return fmt::format("{}: needs about {} registers of the {} that a thread has", describe(other.choice.plan),
                       forward_sm90_registers(config, mods), config.consumer_registers());
  }
  if (other.seconds() < first.seconds()) {
    return fmt::format("{}: predicted {:.4g} ms, too little faster", describe(other.choice.plan),
                       other.seconds() * 1e3);
  }
  return fmt::format("{}: predicted {:.4g} ms, {:.1f} % slower", describe(other.choice.plan), other.seconds() * 1e3,
                     100 * (other.seconds() / first.seconds() - 1));
}

}  // namespace heddle::plan
