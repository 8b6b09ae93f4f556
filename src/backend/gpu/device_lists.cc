#include "backend/gpu/device_lists.h"

#include <algorithm>
#include <atomic>
#include <random>

namespace heddle::gpu {
shared::TicketWord next_launch() {
  constexpr shared::TicketWord kEnd = shared::TicketWord{1} << (64 - shared::kTicketBits);
  static std::atomic<shared::TicketWord> run = [] {
    std::random_device random;
    return (shared::TicketWord{random()} << 32 | random()) % kEnd;
  }();
  for (;;) {
    const shared::TicketWord number = ++run % kEnd;
    if (number != 0) return number;
  }
}

int slot_of(const device_text::ModLayout& layout, std::string_view capture) {
  const auto at = std::ranges::find(layout.captures, capture, &device_text::ModLayout::CaptureSlot::name);
  return at == layout.captures.end() ? -1 : static_cast<int>(at - layout.captures.begin());
}

DeviceLists::DeviceLists(const backend::DeviceInterface& devices, int device, const plan::TileSchedule& schedule,
                         const std::vector<shared::SequenceSpan>& spans) {
  const auto items = arrays_.add(schedule.items);
  const auto runs = arrays_.add(schedule.runs);
  const auto fills = arrays_.add(schedule.fills);
  const auto sequences = arrays_.add(spans);
  const auto mask_words_at = arrays_.add(schedule.mask_words_at);
  arrays_.upload(devices, device);
  tiles_.items = arrays_.at(items);
  tiles_.item_count = static_cast<int>(schedule.items.size());
  tiles_.runs = arrays_.at(runs);
  fills_.fills = arrays_.at(fills);
  fills_.count = static_cast<int>(schedule.fills.size());
  fills_.unattending = schedule.unattending_fills;
  if (!schedule.mask_words_at.empty()) mask_words_at_ = arrays_.at(mask_words_at);
  if (!spans.empty()) sequences_ = arrays_.at(sequences);
}

void DeviceLists::set(shared::TileList& tiles, shared::RowFills& fills, shared::ModValues& mod) const {
  tiles.items = tiles_.items;
  tiles.item_count = tiles_.item_count;
  tiles.runs = tiles_.runs;
  fills = fills_;
  if (sequences_ != nullptr) mod.sequences = sequences_;
}

}  // namespace heddle::gpu
