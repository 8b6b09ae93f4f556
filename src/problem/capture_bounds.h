// Bounds of bound captures, found by looking at every element: enough to prove indices that come from a tensor (tables
// of positions, parents, ids) inside another one.
#pragma once

#include <map>
#include <string>

#include "expr/ranges.h"

namespace heddle::problem {

/// Integer and boolean captures are scanned once, when first asked for, an axis of stride 0 at one index; floating
/// ones, and those on a GPU, count as any value. Not for use by several threads. The bindings must outlive it.
class WholeCaptureBounds final : public expr::CaptureBounds {
 public:
  explicit WholeCaptureBounds(const Bindings& bindings) : bindings_(bindings) {}

  expr::Range bounds(const expr::CaptureDecl& capture, std::span<const expr::Range> indices) const override;
  const Dims& shape(const expr::CaptureDecl& capture) const override;

 private:
  const Bindings& bindings_;
  mutable std::map<std::string, expr::Range> scanned_;
};

}  // namespace heddle::problem
