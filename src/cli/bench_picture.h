// The picture of `heddle bench`.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace heddle::cli {

/// One line of a panel: shares of the peak over lengths.
struct Curve {
  std::string name;  // "D 64, causal"
  bool dashed = false;
  struct Point {
    double length = 0, share = 0;
    std::string note;  // shown where the pointer rests: "S 512: 120.3 GFLOP/s"
  };
  std::vector<Point> points;
};

struct Panel {
  std::string title, axis;  // "forward, f32", "S"
  std::vector<Curve> curves;
};

/// SVG 1.1 without scripts and fonts of its own. Lengths are drawn on a logarithmic axis. A curve is a <polyline> whose
/// data-case is "TITLE, NAME".
std::string bench_picture(const std::string& heading, const std::vector<Panel>& panels);

}  // namespace heddle::cli
