// Zone maps: minima and maxima of captured tensors over aligned ranges, so that an expression that reads a tensor has a
// range over a whole block of indices. The longest axis and the second longest carry pyramids of power-of-two groups;
// bounds over a box are the union of the groups that cover it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "expr/ranges.h"
#include "heddle/expr.h"

namespace heddle::mask {

/// Bounds of the captures that one expression reads, as the interpreter reads them. A pyramid is built on the first
/// query that covers more than a few elements, so a tensor that is read at single indices costs nothing. Threads may
/// share it.
class ZoneMap final : public expr::CaptureBounds {
 public:
  /// `bindings` were checked (expr::check_bound), their memory is on the CPU and outlives the map. Reals are rounded to
  /// `precision`.
  ZoneMap(const Expr& root, const Bindings& bindings, expr::Precision precision);
  ~ZoneMap() override;

  /// Exact when the box has at most 64 elements, or is one element wide along all axes but the longest; else it may be
  /// wider, never narrower.
  expr::Range bounds(const expr::CaptureDecl& capture, std::span<const expr::Range> indices) const override;
  const Dims& shape(const expr::CaptureDecl& capture) const override;

  class Zones;  // of one tensor

 private:
  const Zones& zones_of(const std::string& name) const;

  std::vector<std::pair<std::string, std::unique_ptr<const Zones>>> zones_;
};

}  // namespace heddle::mask
