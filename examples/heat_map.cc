#include "heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "heddle/files.h"

namespace {

/// White over orange and purple to black: dark is much, and it stays readable in grey.
constexpr std::array<std::array<double, 3>, 5> kColours = {
    {{255, 255, 255}, {253, 202, 148}, {232, 96, 96}, {122, 40, 125}, {10, 5, 40}}};

std::array<std::uint8_t, 3> colour_of(double value) {
  const double index = std::clamp(value, 0.0, 1.0) * (kColours.size() - 1);
  const std::size_t below = std::min(static_cast<std::size_t>(index), kColours.size() - 2);
  std::array<std::uint8_t, 3> colour{};
  for (std::size_t c = 0; c < 3; ++c) {
    colour[c] = static_cast<std::uint8_t>(
        std::lround(std::lerp(kColours[below][c], kColours[below + 1][c], index - static_cast<double>(below))));
  }
  return colour;
}

void append_u32(std::string& bytes, std::uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift);
}

std::uint32_t crc32(std::string_view bytes) {
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) {
    crc ^= static_cast<std::uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0xEDB88320u & (0u - (crc & 1)));
  }
  return ~crc;
}

std::uint32_t adler32(std::string_view bytes) {
  std::uint32_t low = 1, high = 0;
  for (const char byte : bytes) {
    low = (low + static_cast<std::uint8_t>(byte)) % 65521;
    high = (high + low) % 65521;
  }
  return high << 16 | low;
}

/// zlib's container around blocks that are stored as they are.
std::string stored_deflate(std::string_view bytes) {
  constexpr std::size_t kBlock = 65535;
  std::string out = "\x78\x01";
  for (std::size_t begin = 0; begin < bytes.size(); begin += kBlock) {
    const std::string_view block = bytes.substr(begin, kBlock);
    const auto size = static_cast<std::uint16_t>(block.size());
    out += begin + kBlock >= bytes.size() ? '\1' : '\0';
    for (const unsigned field : {unsigned{size}, ~unsigned{size}}) {
      out += static_cast<char>(field);
      out += static_cast<char>(field >> 8);
    }
    out += block;
  }
  append_u32(out, adler32(bytes));
  return out;
}

void append_chunk(std::string& png, std::string_view type, std::string_view content) {
  append_u32(png, static_cast<std::uint32_t>(content.size()));
  const std::string checked = std::string(type) + std::string(content);
  png += checked;
  append_u32(png, crc32(checked));
}

constexpr double kSide = 720, kLeft = 110, kTop = 130;  // of the matrix in the picture

/// An 8-bit palette image whose palette is the colour scale. Each element is a square of pixels about as large as the
/// picture shows it, for not every viewer scales without blurring.
std::string png_of(const HeatMap& map) {
  const std::int64_t zoom =
      std::max(std::int64_t{1}, static_cast<std::int64_t>(kSide) / std::max(map.rows, map.columns));
  std::string header, palette, pixels;
  append_u32(header, static_cast<std::uint32_t>(map.columns * zoom));
  append_u32(header, static_cast<std::uint32_t>(map.rows * zoom));
  header += std::string("\x08\x03\0\0\0", 5);
  for (int i = 0; i < 256; ++i) {
    for (const std::uint8_t channel : colour_of(i / 255.0)) palette += static_cast<char>(channel);
  }
  for (std::int64_t row = 0; row < map.rows; ++row) {
    std::string line(1, '\0');
    for (std::int64_t column = 0; column < map.columns; ++column) {
      const float value = map.values[static_cast<std::size_t>(row * map.columns + column)];
      line.append(static_cast<std::size_t>(zoom), static_cast<char>(std::lround(std::clamp(value, 0.0f, 1.0f) * 255)));
    }
    for (std::int64_t copy = 0; copy < zoom; ++copy) pixels += line;
  }
  std::string png = "\x89PNG\r\n\x1a\n";
  append_chunk(png, "IHDR", header);
  append_chunk(png, "PLTE", palette);
  append_chunk(png, "IDAT", stored_deflate(pixels));
  append_chunk(png, "IEND", "");
  return png;
}

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t group = 0;
    for (std::size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < bytes.size() ? static_cast<std::uint8_t>(bytes[i + j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      out += i + j <= bytes.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return out;
}

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '&') {
      out += "&amp;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string text_at(double x, double y, std::string_view text, std::string_view anchor, int turn = 0, int size = 12) {
  return fmt::format(R"svg(<text x="{0:.1f}" y="{1:.1f}" text-anchor="{2}" font-size="{3}" )svg"
                     R"svg(transform="rotate({4} {0:.1f} {1:.1f})">{5}</text>)svg"
                     "\n",
                     x, y, anchor, size, turn, escaped(text));
}

/// Marks along one axis: all names, or round numbers about eight times.
std::string marks(std::int64_t count, const std::vector<std::string>& names, bool along_rows) {
  std::int64_t step = 1;
  while (names.empty() && count / step > 8) step *= 2;
  const double cell = kSide / static_cast<double>(count);
  std::string svg;
  for (std::int64_t i = 0; i < count; i += step) {
    const double middle = (static_cast<double>(i) + 0.5) * cell;
    if (names.empty()) {
      svg += along_rows ? text_at(kLeft - 6, kTop + middle + 4, std::to_string(i), "end")
                        : text_at(kLeft + middle, kTop - 6, std::to_string(i), "middle");
      continue;
    }
    const std::string& name = names[static_cast<std::size_t>(i)];
    const int size = static_cast<int>(std::clamp(cell, 6.0, 12.0));
    svg += along_rows ? text_at(kLeft - 6, kTop + middle + 0.35 * size, name, "end", 0, size)
                      : text_at(kLeft + middle + 0.35 * size, kTop - 6, name, "start", -90, size);
  }
  return svg;
}

/// The colour scale with its ends' meaning, to the right of the title.
std::string scale_bar(const HeatMap& map) {
  constexpr double kWidth = 120, kHeight = 12, kRight = kLeft + kSide - 70, kY = 14;
  std::string svg = R"(<defs><linearGradient id="scale">)";
  for (std::size_t i = 0; i < kColours.size(); ++i) {
    svg += fmt::format(R"svg(<index offset="{}" stop-color="rgb({},{},{})"/>)svg",
                       static_cast<double>(i) / (kColours.size() - 1), kColours[i][0], kColours[i][1], kColours[i][2]);
  }
  svg += fmt::format(R"svg(</linearGradient></defs><rect x="{}" y="{}" width="{}" height="{}" )svg"
                     R"svg(fill="url(#scale)" stroke="#888"/>)svg"
                     "\n",
                     kRight - kWidth, kY, kWidth, kHeight);
  return svg + text_at(kRight - kWidth - 6, kY + 10, map.least, "end") +
         text_at(kRight + 6, kY + 10, map.most, "start");
}

std::string svg_of(const HeatMap& map) {
  const double width = kLeft + kSide + 30, height = kTop + kSide + 30;
  std::string svg =
      fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}" )"
                  R"(font-family="sans-serif">)"
                  "\n"
                  R"(<rect width="{0}" height="{1}" fill="white"/>)"
                  "\n",
                  width, height);
  svg += text_at(kLeft, 24, map.title, "start", 0, 16);
  svg += scale_bar(map);
  svg += text_at(kLeft + kSide / 2, 52, map.column_axis, "middle");
  svg += text_at(20, kTop + kSide / 2, map.row_axis, "middle", -90);
  svg += marks(map.columns, map.column_names, false);
  svg += marks(map.rows, map.row_names, true);
  svg += fmt::format(R"(<image x="{0}" y="{1}" width="{2}" height="{2}" preserveAspectRatio="none" )"
                     R"(style="image-rendering:pixelated" href="data:image/png;base64,{3}"/>)"
                     "\n",
                     kLeft, kTop, kSide, base64(png_of(map)));
  svg += fmt::format(R"(<rect x="{0}" y="{1}" width="{2}" height="{2}" fill="none" stroke="#888"/>)"
                     "\n</svg>\n",
                     kLeft, kTop, kSide);
  return svg;
}

}  // namespace

void write_heat_map(const std::filesystem::path& path, const HeatMap& map) { heddle::save_text(path, svg_of(map)); }
