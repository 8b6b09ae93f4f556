#include "bench_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <set>
#include <string_view>

namespace heddle::cli {
namespace {

// Pixels. The plot stands inside its panel, with room for the labels of its axes and the legend below.
constexpr double kPanelWidth = 440, kPlotLeft = 52, kPlotTop = 34, kPlotWidth = 366, kPlotHeight = 210;
constexpr double kLegendTop = kPlotTop + kPlotHeight + 60, kLegendRow = 18, kHead = 40;
constexpr int kPanelsInRow = 2, kNamesInRow = 2;
constexpr std::array kColors = {"#1f77b4", "#d1495b", "#2a9d4f", "#8e5bb5", "#b8860b", "#3b8ea5"};

std::string escaped(std::string_view text) {
  std::string out;
  for (const char character : text) {
    switch (character) {
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '&':
        out += "&amp;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += character;
    }
  }
  return out;
}

/// Where a panel's values stand, in pixels from its corner.
class Axes {
 public:
  explicit Axes(const Panel& panel) {
    double most = 1;
    for (const Curve& curve : panel.curves) {
      for (const Curve::Point& point : curve.points) {
        lengths_.insert(point.length);
        most = std::max(most, point.share);
      }
    }
    top_ = std::ceil(most / kStep) * kStep;
  }

  static constexpr double kStep = 0.25;  // between lines of the grid
  double top() const { return top_; }
  const std::set<double>& lengths() const { return lengths_; }
  double y(double share) const { return kPlotTop + kPlotHeight * (1 - share / top_); }
  double x(double length) const {
    constexpr double kMargin = 24;
    const double first = std::log2(*lengths_.begin()), last = std::log2(*lengths_.rbegin());
    if (first == last) return kPlotLeft + kPlotWidth / 2;
    return kPlotLeft + kMargin + (kPlotWidth - 2 * kMargin) * (std::log2(length) - first) / (last - first);
  }

 private:
  std::set<double> lengths_;
  double top_ = 1;
};

std::string grid(const Panel& panel, const Axes& axes) {
  std::string text =
      fmt::format("<text x=\"{}\" y=\"20\" class=\"title\">{}</text>\n", kPlotLeft, escaped(panel.title));
  for (double share = 0; share <= axes.top() + 1e-9; share += Axes::kStep) {
    const double y = axes.y(share);
    text += fmt::format("<line x1=\"{0}\" x2=\"{1}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" class=\"{3}\"/>\n", kPlotLeft,
                        kPlotLeft + kPlotWidth, y, share == 1 ? "peak" : "grid");
    text +=
        fmt::format("<text x=\"{}\" y=\"{:.1f}\" class=\"left\">{:.0f} %</text>\n", kPlotLeft - 6, y + 4, 100 * share);
  }
  for (const double length : axes.lengths()) {
    text += fmt::format("<text x=\"{:.1f}\" y=\"{}\" class=\"below\">{:.0f}</text>\n", axes.x(length),
                        kPlotTop + kPlotHeight + 18, length);
  }
  return text + fmt::format("<text x=\"{}\" y=\"{}\" class=\"below\">{}</text>\n", kPlotLeft + kPlotWidth / 2,
                            kPlotTop + kPlotHeight + 36, escaped(panel.axis));
}

std::string curve_text(const Panel& panel, const Curve& curve, const Axes& axes, const std::string& style,
                       const char* color) {
  std::string points;
  for (const Curve::Point& point : curve.points) {
    points += fmt::format("{}{:.1f},{:.1f}", points.empty() ? "" : " ", axes.x(point.length), axes.y(point.share));
  }
  std::string text = fmt::format("<polyline data-case=\"{}\" points=\"{}\" {}/>\n",
                                 escaped(panel.title + ", " + curve.name), points, style);
  for (const Curve::Point& point : curve.points) {
    text += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}</title></circle>\n",
                        axes.x(point.length), axes.y(point.share), color, escaped(point.note));
  }
  return text;
}

std::string panel_text(const Panel& panel) {
  const Axes axes(panel);
  std::string text = grid(panel, axes);
  std::vector<std::string> solids;  // curves of one name but for the dash share a colour
  for (std::size_t i = 0; i < panel.curves.size(); ++i) {
    const Curve& curve = panel.curves[i];
    const std::string family = curve.name.substr(0, curve.name.find(','));
    auto known = std::ranges::find(solids, family);
    if (known == solids.end()) known = solids.insert(known, family);
    const char* color = kColors[static_cast<std::size_t>(known - solids.begin()) % kColors.size()];
    const std::string style = fmt::format("stroke=\"{}\" fill=\"none\" stroke-width=\"2\"{}", color,
                                          curve.dashed ? " stroke-dasharray=\"5 4\"" : "");
    text += curve_text(panel, curve, axes, style, color);
    const double x = kPlotLeft + static_cast<double>(i % kNamesInRow) * kPlotWidth / kNamesInRow;
    const double y = kLegendTop + static_cast<double>(i / kNamesInRow) * kLegendRow;
    text += fmt::format("<line x1=\"{}\" x2=\"{}\" y1=\"{}\" y2=\"{}\" {}/>\n", x, x + 30, y - 4, y - 4, style);
    text += fmt::format("<text x=\"{}\" y=\"{}\">{}</text>\n", x + 36, y, escaped(curve.name));
  }
  return text;
}

}  // namespace

std::string bench_picture(const std::string& heading, const std::vector<Panel>& panels) {
  std::size_t names = 1;
  for (const Panel& panel : panels) names = std::max(names, panel.curves.size());
  const double height = kLegendTop + kLegendRow * static_cast<double>((names + kNamesInRow - 1) / kNamesInRow);
  const double columns = static_cast<double>(std::clamp<std::size_t>(panels.size(), 1, kPanelsInRow));
  const double rows = static_cast<double>((panels.size() + kPanelsInRow - 1) / kPanelsInRow);
  const double whole_width = kPanelWidth * columns, whole_height = kHead + height * rows;
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\">\n"
      "<style>text {{ font: 12px sans-serif; fill: #222 }} .head {{ font-size: 13px }} .title {{ font-weight: bold }}\n"
      ".left {{ text-anchor: end }} .below {{ text-anchor: middle }} .grid {{ stroke: #ddd }} .peak {{ stroke: #222 "
      "}}\n"
      "</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n<text x=\"{2}\" y=\"24\" "
      "class=\"head\">{3}</text>\n",
      whole_width, whole_height, 12, escaped(heading));
  for (std::size_t i = 0; i < panels.size(); ++i) {
    text += fmt::format("<g transform=\"translate({:.0f} {:.0f})\">\n{}</g>\n",
                        static_cast<double>(i % kPanelsInRow) * kPanelWidth,
                        kHead + static_cast<double>(i / kPanelsInRow) * height, panel_text(panels[i]));
  }
  return text + "</svg>\n";
}

}  // namespace heddle::cli
