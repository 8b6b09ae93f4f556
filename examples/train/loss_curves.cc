#include "loss_curves.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "heddle/files.h"

namespace {

constexpr double kWidth = 640, kLeft = 70, kRight = 20;

/// A rectangle of the picture with axes: steps to the right, values upward.
struct Panel {
  double top, height;
  double least, most;  // values at the lower and the upper edge
  std::size_t steps;

  double x(double step) const { return kLeft + kWidth * step / static_cast<double>(steps); }
  double y(double value) const { return top + height * (most - std::clamp(value, least, most)) / (most - least); }
};

std::string text_at(double x, double y, std::string_view text, std::string_view anchor, int size = 12) {
  return fmt::format(R"svg(<text x="{:.1f}" y="{:.1f}" text-anchor="{}" font-size="{}">{}</text>)svg"
                     "\n",
                     x, y, anchor, size, text);
}

/// The frame, a line and a name for each whole value, and a number for every fifth of the steps.
template <class Name>
std::string frame(const Panel& panel, std::string_view title, Name name_of) {
  std::string svg = text_at(kLeft, panel.top - 8, title, "start", 14);
  for (double value = std::ceil(panel.least); value <= panel.most; ++value) {
    svg += fmt::format(R"svg(<path d="M{:.1f} {:.1f}h{}" stroke="#ddd"/>)svg"
                       "\n",
                       kLeft, panel.y(value), kWidth);
    svg += text_at(kLeft - 6, panel.y(value) + 4, name_of(value), "end");
  }
  for (std::size_t fifth = 0; fifth <= 5; ++fifth) {
    const std::size_t step = panel.steps * fifth / 5;
    svg += text_at(panel.x(static_cast<double>(step)), panel.top + panel.height + 16, fmt::to_string(step), "middle");
  }
  return svg + fmt::format(R"svg(<rect x="{}" y="{}" width="{}" height="{}" fill="none" stroke="#888"/>)svg"
                           "\n",
                           kLeft, panel.top, kWidth, panel.height);
}

std::string line(const Panel& panel, const std::vector<double>& values, std::string_view style) {
  std::string points;
  for (std::size_t step = 0; step < values.size(); ++step) {
    points += fmt::format("{:.1f},{:.1f} ", panel.x(static_cast<double>(step)), panel.y(values[step]));
  }
  return fmt::format(R"svg(<polyline points="{}" fill="none" {}/>)svg"
                     "\n",
                     points, style);
}

constexpr std::string_view kOurs = R"(stroke="#c0392b" stroke-width="1.2")";
constexpr std::string_view kExpected = R"(stroke="#a9c7e8" stroke-width="5")";

}  // namespace

void write_loss_curves(const std::filesystem::path& path, LossCurve ours, LossCurve expected) {
  const std::size_t steps = std::min(ours.losses.size(), expected.losses.size());
  ours.losses.resize(steps), expected.losses.resize(steps);
  const Panel losses{40, 300, 0, std::ceil(std::ranges::max(ours.losses)), std::max<std::size_t>(steps, 1)};
  std::vector<double> logarithms;
  for (std::size_t step = 0; step < steps; ++step) {
    logarithms.push_back(std::log10(std::max(std::abs(ours.losses[step] - expected.losses[step]), 1e-9)));
  }
  const double most = logarithms.empty() ? 0 : std::ceil(std::ranges::max(logarithms) + 1e-6);
  const Panel differences{390, 120, -9, most, losses.steps};

  std::string svg =
      fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" )"
                  R"(font-family="sans-serif">)"
                  "\n"
                  R"(<rect width="{0}" height="{1}" fill="white"/>)"
                  "\n",
                  kLeft + kWidth + kRight, differences.top + differences.height + 40);
  svg += frame(losses, "Loss by step, in nats a character", [](double value) { return fmt::format("{:.0f}", value); });
  svg += line(losses, expected.losses, kExpected) + line(losses, ours.losses, kOurs);
  const double right = kLeft + kWidth - 12;
  for (const auto& [name, style, y] :
       {std::tuple{&ours.name, kOurs, losses.top + 24}, std::tuple{&expected.name, kExpected, losses.top + 44}}) {
    svg += fmt::format(R"svg(<path d="M{:.1f} {:.1f}h40" {}/>)svg"
                       "\n",
                       right - 40, y - 4, style);
    svg += text_at(right - 48, y, *name, "end");
  }
  svg += frame(differences, "The curves' absolute difference",
               [](double value) { return fmt::format("1e{:.0f}", value); });
  svg += line(differences, logarithms, R"(stroke="#555" stroke-width="1")");
  heddle::save_text(path, svg + "</svg>\n");
}
