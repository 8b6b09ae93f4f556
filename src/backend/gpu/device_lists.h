// The needs of a launch of any family beside its kernel: its lists in the device's memory, and a number of its own.
#pragma once

#include <string_view>
#include <vector>

#include "backend/device_text/expression_text.h"
#include "backend/gpu/device_arrays.h"
#include "plan/tiles/schedule.h"
#include "shared/mod_values.h"
#include "shared/sequence_span.h"
#include "shared/tile_walk.h"

namespace heddle::gpu {

/// A number for each launch of this process, from a start that other processes hardly share. By it a run tells its own
/// words in the workspace from others' leftovers.
shared::TicketWord next_launch();

/// Where a capture stands in the layout; -1: it is none of the layout's.
int slot_of(const device_text::ModLayout& layout, std::string_view capture);

/// A schedule, and where sequences stand if they differ, in device memory.
class DeviceLists {
 public:
  DeviceLists(const backend::DeviceInterface& devices, int device, const plan::TileSchedule& schedule,
              const std::vector<shared::SequenceSpan>& spans);
  /// Lets a kernel's parameters point here.
  void set(shared::TileList& tiles, shared::RowFills& fills, shared::ModValues& mod) const;
  /// Null where no mask is stored.
  const int* mask_words_at() const { return mask_words_at_; }
  std::size_t bytes() const { return arrays_.bytes(); }

 private:
  DeviceArrays arrays_;
  shared::TileList tiles_{};
  shared::RowFills fills_{};
  const shared::SequenceSpan* sequences_ = nullptr;
  const int* mask_words_at_ = nullptr;
};

}  // namespace heddle::gpu
