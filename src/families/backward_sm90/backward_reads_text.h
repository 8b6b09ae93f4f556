// The kernels of backward_sm90 that sum gradients of captures and params
// (families/backward_sm90/shared/backward_reads_params.h).
#pragma once

#include <vector>

#include "backend/device_text/expression_text.h"
#include "backend/jit/source.h"
#include "families/backward_sm90/backward_reads.h"
#include "families/backward_sm90/shared/backward_sm90_config.h"
#include "plan/mods/backward_mods.h"
#include "shared/storage.h"

namespace heddle::backward_sm90 {

/// The pass over all pairs: backward_reads(). `config`: plan::reads_config(); `types`: of each sum's gradient, none of
/// them `same`; `layout` has the params and captures of the mods and the reads.
jit::Source reads_source(const shared::BackwardSm90Config& config, const plan::BackwardMods& mods,
                         const plan::BackwardReads& reads, const std::vector<shared::StorageType>& types,
                         const device_text::ModLayout& layout);

/// The kernels around it: clear_reads(), collect_reads(), scatter_reads() and store_reads().
jit::Source sums_source(const shared::BackwardSm90Config& config, const plan::BackwardReads& reads,
                        const std::vector<shared::StorageType>& types, const device_text::ModLayout& layout);

}  // namespace heddle::backward_sm90
