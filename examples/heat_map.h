// A picture of a matrix: an SVG with axes around a PNG, for a browser.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// A matrix of values in [0, 1], row-major, and what its axes say.
struct HeatMap {
  std::int64_t rows = 0, columns = 0;
  std::vector<float> values;
  std::string title, row_axis, column_axis;
  std::string least, most;                           // what 0 and 1 stand for, beside the colour scale
  std::vector<std::string> row_names, column_names;  // one per row and column, or empty: the axes then show numbers
};

/// Throws heddle::Error when the file cannot be written; an old one then stays.
void write_heat_map(const std::filesystem::path& path, const HeatMap& map);
