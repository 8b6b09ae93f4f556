// The runs of one row of a block mask, read one after the other, in whichever of two forms the row is kept: as runs, or
// by windows of columns, if it has many runs.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

namespace heddle {

enum class RunKind : std::uint8_t { partial, full };

/// Key blocks [begin, end) of one row of query blocks, all of one kind.
struct Run {
  std::int32_t begin, end;
  RunKind kind;
  bool operator==(const Run&) const = default;
};

/// A run's columns in one window, counted from the window's first.
struct WindowRun {
  std::uint8_t begin, end;
  RunKind kind;
  bool operator==(const WindowRun&) const = default;
};

/// Contents of windows of kColumns columns, each content once: content i is runs[offset[i]] up to runs[offset[i + 1]].
struct RunWindows {
  static constexpr std::int32_t kColumns = 128;
  std::vector<std::int64_t> offset{0};
  std::vector<WindowRun> runs;
};

/// The runs of one row of query blocks, sorted; two runs of one kind never touch. A view, as std::span is: it lives as
/// long as the mask, and a change of the mask ends it. Iterators hand out runs by value.
class RowRuns {
 public:
  class iterator;

  RowRuns() = default;
  RowRuns(std::span<const Run> runs) : runs_(runs) {}  // NOLINT(google-explicit-constructor): as a span is made
  /// `contents`: of the row's windows, from column 0 on; there are no runs behind the last.
  RowRuns(std::span<const std::int32_t> contents, const RunWindows& windows)
      : contents_(contents), offset_(windows.offset.data()), window_runs_(windows.runs.data()) {}

  iterator begin() const;
  iterator end() const;
  bool empty() const;
  /// Counts them.
  std::size_t size() const;
  /// Walks to run `i`, which must be there.
  Run operator[](std::size_t i) const;
  Run front() const;

  /// The columns from `column` on: runs before them are left out, and a run that reaches across begins there.
  RowRuns from(std::int32_t column) const;
  /// All runs side by side: in `room`, unless they are kept so.
  std::span<const Run> side_by_side(std::vector<Run>& room) const;

  /// Whether both have the same runs.
  bool operator==(const RowRuns& other) const;

 private:
  std::span<const Run> runs_;
  std::span<const std::int32_t> contents_;
  const std::int64_t* offset_ = nullptr;
  const WindowRun* window_runs_ = nullptr;
  std::int32_t first_window_ = 0;  // of contents_
  std::int32_t least_ = 0;         // column at which the first run begins at the earliest
};

class RowRuns::iterator {
 public:
  using iterator_concept = std::forward_iterator_tag;
  using iterator_category = std::input_iterator_tag;
  using value_type = Run;
  using difference_type = std::ptrdiff_t;
  using reference = Run;
  using pointer = const Run*;

  iterator() = default;
  Run operator*() const { return run_; }
  const Run* operator->() const { return &run_; }
  iterator& operator++() {
    if (next_ != last_) {
      run_ = *next_++;
    } else {
      advance_in_windows();
    }
    return *this;
  }
  iterator operator++(int) {
    const iterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const iterator& other) const {
    if (done_ || other.done_) return done_ == other.done_;
    return next_ == other.next_ && window_run_ == other.window_run_ && content_ == other.content_;
  }

 private:
  friend class RowRuns;

  explicit iterator(const RowRuns& row)
      : next_(row.runs_.data()),
        last_(row.runs_.data() + row.runs_.size()),
        content_(row.contents_.data()),
        last_content_(row.contents_.data() + row.contents_.size()),
        offset_(row.offset_),
        window_runs_(row.window_runs_),
        base_((row.first_window_ - 1) * RunWindows::kColumns),
        done_(false) {
    do {
      ++*this;
    } while (!done_ && run_.end <= row.least_);
    run_.begin = std::max(run_.begin, row.least_);
  }

  /// Joins what a run has in windows that stand beside each other.
  void advance_in_windows() {
    done_ = true;
    for (;;) {
      if (window_run_ == last_window_run_) {
        const bool ends = !done_ && run_.end != base_ + RunWindows::kColumns;
        if (ends || content_ == last_content_) return;
        window_run_ = window_runs_ + offset_[*content_];
        last_window_run_ = window_runs_ + offset_[*content_ + 1];
        base_ += RunWindows::kColumns;
        ++content_;
        continue;
      }
      const Run part = {base_ + window_run_->begin, base_ + window_run_->end, window_run_->kind};
      if (done_) {
        run_ = part;
        done_ = false;
      } else if (part.begin == run_.end && part.kind == run_.kind) {
        run_.end = part.end;
      } else {
        return;
      }
      ++window_run_;
    }
  }

  Run run_{};
  const Run *next_ = nullptr, *last_ = nullptr;                         // runs that follow run_
  const WindowRun *window_run_ = nullptr, *last_window_run_ = nullptr;  // those of the present window
  const std::int32_t *content_ = nullptr, *last_content_ = nullptr;     // of the windows behind it
  const std::int64_t* offset_ = nullptr;
  const WindowRun* window_runs_ = nullptr;
  std::int32_t base_ = 0;  // first column of the present window
  bool done_ = true;
};

inline RowRuns::iterator RowRuns::begin() const { return iterator(*this); }
inline RowRuns::iterator RowRuns::end() const { return {}; }
inline bool RowRuns::empty() const { return begin() == end(); }
inline std::size_t RowRuns::size() const { return static_cast<std::size_t>(std::ranges::distance(begin(), end())); }
inline Run RowRuns::operator[](std::size_t i) const {
  return *std::ranges::next(begin(), static_cast<std::ptrdiff_t>(i));
}
inline Run RowRuns::front() const { return *begin(); }

inline RowRuns RowRuns::from(std::int32_t column) const {
  RowRuns rest = *this;
  const auto is_before = [&](const Run& run) { return run.end <= column; };
  rest.runs_ = runs_.subspan(static_cast<std::size_t>(std::ranges::partition_point(runs_, is_before) - runs_.begin()));
  const std::int32_t windows = std::max(column / RunWindows::kColumns - first_window_, 0);
  rest.contents_ = contents_.subspan(std::min(static_cast<std::size_t>(windows), contents_.size()));
  rest.first_window_ = first_window_ + windows;
  rest.least_ = std::max(least_, column);
  return rest;
}

inline std::span<const Run> RowRuns::side_by_side(std::vector<Run>& room) const {
  if (contents_.empty() && least_ == 0) return runs_;
  room.assign(begin(), end());
  return room;
}

inline bool RowRuns::operator==(const RowRuns& other) const {
  if (window_runs_ == other.window_runs_ && least_ == 0 && other.least_ == 0) {
    return std::ranges::equal(contents_, other.contents_) && std::ranges::equal(runs_, other.runs_);
  }
  return std::ranges::equal(begin(), end(), other.begin(), other.end());
}

}  // namespace heddle
