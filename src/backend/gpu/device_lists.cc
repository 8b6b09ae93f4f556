#include "backend/gpu/device_lists.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>

namespace heddle::gpu {
namespace {

// Returns where the list begins. Items and runs are read 16 bytes at a time.
template <class T>
std::size_t append(std::vector<char>& bytes, const std::vector<T>& list) {
  constexpr std::size_t kAlignment = 16;
  const std::size_t begin = (bytes.size() + kAlignment - 1) / kAlignment * kAlignment;
  bytes.resize(begin + list.size() * sizeof(T));
  if (!list.empty()) std::memcpy(bytes.data() + begin, list.data(), list.size() * sizeof(T));
  return begin;
}

}  // namespace

shared::TicketWord next_run() {
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
  std::vector<char> bytes;
  const std::size_t items = append(bytes, schedule.items), runs = append(bytes, schedule.runs),
                    fills = append(bytes, schedule.fills), sequences = append(bytes, spans),
                    mask_words_at = append(bytes, schedule.mask_words_at);
  memory_ = Memory(devices, device, bytes.size());
  devices.copy_and_wait(device, memory_.data(), bytes.data(), bytes.size());
  const char* base = static_cast<const char*>(memory_.data());
  tiles_.items = reinterpret_cast<const shared::WorkItem*>(base + items);
  tiles_.item_count = static_cast<int>(schedule.items.size());
  tiles_.runs = reinterpret_cast<const shared::KvRun*>(base + runs);
  fills_.fills = reinterpret_cast<const shared::RowFill*>(base + fills);
  fills_.count = static_cast<int>(schedule.fills.size());
  fills_.unattending = schedule.unattending_fills;
  if (!schedule.mask_words_at.empty()) mask_words_at_ = reinterpret_cast<const int*>(base + mask_words_at);
  if (!spans.empty()) sequences_ = reinterpret_cast<const shared::SequenceSpan*>(base + sequences);
}

void DeviceLists::set(shared::TileList& tiles, shared::RowFills& fills, shared::ModValues& mod) const {
  tiles.items = tiles_.items;
  tiles.item_count = tiles_.item_count;
  tiles.runs = tiles_.runs;
  fills = fills_;
  if (sequences_ != nullptr) mod.sequences = sequences_;
}

}  // namespace heddle::gpu
