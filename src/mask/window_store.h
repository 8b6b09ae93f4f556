// Contents of windows under construction, each stored once: how rows of many runs are kept (row_runs.h). Rows that all
// differ often differ in few windows, and a run takes 3 bytes in a window instead of 12.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "heddle/row_runs.h"
#include "mask/index_table.h"

namespace heddle::mask {

class WindowStore {
 public:
  WindowStore() = default;
  /// Begins with these contents, under their indices.
  explicit WindowStore(const RunWindows& windows);

  /// The index of a content: runs in order, of which no two of one kind touch.
  std::int32_t add(std::span<const WindowRun> content);
  /// The contents of a row's windows, from column 0 up to that of its last run.
  void cut(const RowRuns& row, std::vector<std::int32_t>& contents);

  const RunWindows& windows() const { return windows_; }
  std::span<const WindowRun> content(std::int32_t index) const;
  RunWindows take();

 private:
  RunWindows windows_;
  IndexTable indices_;
  std::vector<WindowRun> content_;  // that cut() collects
};

/// Runs of a row of windows: its windows' runs, those that two windows share once.
std::int64_t count_runs(std::span<const std::int32_t> contents, const WindowStore& store);

}  // namespace heddle::mask
