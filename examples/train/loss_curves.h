// A picture of two loss curves and of how far they are apart: an SVG for a browser.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

struct LossCurve {
  std::string name;
  std::vector<double> losses;  // one a step
};

/// Throws heddle::Error when the file cannot be written; an old one then stays. Shows the steps that both have.
void write_loss_curves(const std::filesystem::path& path, LossCurve ours, LossCurve expected);
