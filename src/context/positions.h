// Mods of a whole sequence over the rows that a rank has.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "heddle/attention.h"
#include "heddle/tensor.h"

namespace heddle::context {

inline constexpr std::int64_t kGranule = 128;  // rows that kernels look up at once
inline constexpr const char *kQueries = "context_queries", *kKeys = "context_keys";  // captures that are added

/// Where rows stand in the sequence of `length` rows, in the way that kernels know best:
/// - one piece of the sequence: its index begins elsewhere (`start`);
/// - whole granules of 128 rows: a capture has the granule of each 128 rows (mods::by_granules);
/// - else a capture has the position of each row.
class Positions {
 public:
  Positions() = default;
  /// `capture`: kQueries or kKeys.
  Positions(const char* capture, std::span<const std::int64_t> positions, std::int64_t length, const Device& device);

  /// The position of a row of the rank, as an expression over its index.
  Expr of(const Expr& index) const;
  /// The position of the first row, if all follow it; else empty.
  const std::optional<std::int64_t>& start() const { return start_; }
  /// Adds what of() reads.
  void bind(Bindings& bindings) const;

 private:
  const char* capture_ = nullptr;
  std::int64_t length_ = 0;
  std::optional<std::int64_t> start_{};
  bool granules_ = false;
  Tensor table_;
};

/// Rewrites the mods of a call to positions, and binds these where a mod reads them.
void over_rows(AttentionOptions& options, const Positions& queries, const Positions& keys);

}  // namespace heddle::context
