#include "backend/amd/simulator/waits.h"

#include <algorithm>

namespace heddle::amd::simulator {

void Waits::reset() {
  for (auto& queue : queues_) queue.clear();
  marks_.fill({});
  next_ = 1;
  marked_ = 0;
}

std::uint32_t Waits::issue(Counter counter, bool in_order, std::span<const RegisterRange> filled) {
  Operation operation{.number = next_++, .in_order = in_order};
  for (const RegisterRange& range : filled) {
    operation.filled[operation.filled_count++] = range;
    for (int r = range.first; r < range.first + range.count; ++r) {
      Mark& mark = marks_[static_cast<std::size_t>(r)];
      if (mark.number == 0) ++marked_;
      mark = {operation.number, counter, in_order};
    }
  }
  queues_[static_cast<std::size_t>(counter)].push_back(operation);
  return operation.number;
}

void Waits::release(const Operation& operation) {
  for (int i = 0; i < operation.filled_count; ++i) {
    const RegisterRange& range = operation.filled[static_cast<std::size_t>(i)];
    for (int r = range.first; r < range.first + range.count; ++r) {
      Mark& mark = marks_[static_cast<std::size_t>(r)];
      if (mark.number != operation.number) continue;  // a later operation fills it again
      mark.number = 0;
      --marked_;
    }
  }
}

void Waits::wait(Counter counter, std::uint32_t left) {
  std::deque<Operation>& queue = queues_[static_cast<std::size_t>(counter)];
  const auto unordered = static_cast<std::uint32_t>(
      std::count_if(queue.begin(), queue.end(), [](const Operation& o) { return !o.in_order; }));
  if (left == 0) {
    for (const Operation& operation : queue) release(operation);
    queue.clear();
    return;
  }
  // Nobody knows which of the unordered operations came back. Certainly done are the oldest ordered ones: as many as
  // are done if all unordered ones are done too.
  if (queue.size() <= left + unordered) return;
  std::size_t done = queue.size() - left - unordered;
  for (auto it = queue.begin(); it != queue.end() && done > 0;) {
    if (!it->in_order) {
      ++it;
      continue;
    }
    release(*it);
    it = queue.erase(it);
    --done;
  }
}

int Waits::pending(const RegisterRange& range) const {
  for (int r = range.first; r < range.first + range.count; ++r) {
    if (marks_[static_cast<std::size_t>(r)].number != 0) return r;
  }
  return -1;
}

int Waits::pending_beside(const RegisterRange& range, Counter same) const {
  for (int r = range.first; r < range.first + range.count; ++r) {
    const Mark& mark = marks_[static_cast<std::size_t>(r)];
    if (mark.number != 0 && !(mark.counter == same && mark.in_order)) return r;
  }
  return -1;
}

bool Waits::is_out(Counter counter, std::uint32_t number) const {
  const auto& queue = queues_[static_cast<std::size_t>(counter)];
  return std::any_of(queue.begin(), queue.end(), [&](const Operation& o) { return o.number == number; });
}

}  // namespace heddle::amd::simulator
