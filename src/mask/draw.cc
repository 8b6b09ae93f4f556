// Block masks as SVG pictures.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>
#include <string>

#include "expr/node.h"
#include "heddle/error.h"
#include "mask/picture.h"

namespace heddle {
namespace mask {
namespace {

constexpr std::int64_t kMostCells = 256;
constexpr std::int64_t kMostGridded = 48;  // blocks a side up to which lines part them
constexpr double kLongSide = 560, kShortSide = 48;
constexpr double kLeft = 92, kTop = 92, kRight = 36, kLegend = 132;
constexpr std::size_t kLongestTitle = 80;

using Colour = std::array<int, 3>;
// Told apart by hue for every kind of colour vision, and by lightness in print.
constexpr Colour kFull{0x2f, 0x6b, 0xa6}, kPartial{0xf2, 0xb1, 0x4e}, kEmpty{0xf1, 0xf0, 0xec};

std::string hex(const Colour& colour) { return fmt::format("#{:02x}{:02x}{:02x}", colour[0], colour[1], colour[2]); }

/// A cell's mixture in eighths, which keeps the colours few; what is there at all shows.
Colour colour_of(const Cell& cell) {
  const auto eighths = [&](std::int64_t part) {
    if (part == 0) return 0;
    return std::max(1,
                    static_cast<int>(std::lround(8.0 * static_cast<double>(part) / static_cast<double>(cell.blocks))));
  };
  const int full = eighths(cell.full), partial = eighths(cell.partial);
  const int empty = std::max(0, 8 - full - partial), sum = full + partial + empty;
  Colour colour{};
  for (std::size_t i = 0; i < 3; ++i) {
    colour[i] = (full * kFull[i] + partial * kPartial[i] + empty * kEmpty[i] + sum / 2) / sum;
  }
  return colour;
}

std::string escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

/// 1234567 as 1 234 567, with thin spaces.
std::string grouped(std::int64_t x) {
  std::string digits = std::to_string(x);
  const std::size_t first = x < 0 ? 1 : 0;
  for (std::size_t i = digits.size(); i > first + 3;) digits.insert(i -= 3, "\u2009");
  return digits;
}

std::string product(std::int64_t rows, std::int64_t columns) { return grouped(rows) + " \u00d7 " + grouped(columns); }

/// The mask as a line of text.
std::string words_for(const BlockMask& mask) {
  if (mask.mask().empty()) return mask.is_from_lists() ? "given lists" : "everything attends";
  std::string text;
  try {
    text = print(mask.mask());
  } catch (const Error&) {  // longer than an expression's text may be
    return fmt::format("a mask of {} operations", expr::post_order(mask.mask()).size());
  }
  if (text.size() > kLongestTitle) text.replace(kLongestTitle, std::string::npos, "\u2026");
  return text;
}

std::string percent(std::int64_t part, std::int64_t whole) {
  if (part == 0) return "0 %";
  const double share = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  return share < 0.01 ? "&lt; 0.01 %" : fmt::format("{:.{}f} %", share, share < 1 ? 2 : 1);
}

/// One side of the plot: positions in tokens, cells and pixels.
struct Side {
  const char* label;
  std::int64_t tokens, first_token;  // first_token: the index of the first position
  std::int64_t tokens_per_cell, cells;
  double origin = 0, pixels = 0;

  double at_token(std::int64_t token) const {
    return origin + pixels * static_cast<double>(token) / static_cast<double>(std::max<std::int64_t>(tokens, 1));
  }
  double at_cell(std::int64_t cell) const { return at_token(std::min(tokens, cell * tokens_per_cell)); }
};

/// Positions to label: multiples of a power of two, and the end unless a label stands close before it.
std::vector<std::int64_t> ticks(const Side& side, double pixels_per_label) {
  const double most = std::max(1.0, std::min(6.0, side.pixels / pixels_per_label));
  std::int64_t step = 1;
  while (static_cast<double>(side.tokens) / static_cast<double>(step) > most) step *= 2;
  std::vector<std::int64_t> at;
  const std::int64_t over = ((side.first_token % step) + step) % step;
  for (std::int64_t t = (step - over) % step; t < side.tokens; t += step) at.push_back(t);
  if (at.empty() || side.at_token(side.tokens) - side.at_token(at.back()) > 0.6 * pixels_per_label) {
    at.push_back(side.tokens);
  }
  return at;
}

class Drawing {
 public:
  Drawing(const BlockMask& mask, std::int64_t sequence, std::int64_t head)
      : mask_(mask), sequence_(sequence), head_(head), picture_(picture_of(mask, sequence, head, kMostCells)) {
    const Sequence& s = mask.shape().sequences[static_cast<std::size_t>(sequence)];
    const bool turned = mask.is_transposed();
    y_ = {turned ? "keys (kv_idx)" : "queries (q_idx)", s.q_len,       turned ? s.kv_start : s.q_start,
          picture_.blocks_per_row * mask.block().q,     picture_.rows, kTop};
    x_ = {turned ? "queries (q_idx)" : "keys (kv_idx)", s.kv_len,         turned ? s.q_start : s.kv_start,
          picture_.blocks_per_column * mask.block().kv, picture_.columns, kLeft};
    const double longest = static_cast<double>(std::max<std::int64_t>({s.q_len, s.kv_len, 1}));
    const auto pixels = [&](std::int64_t tokens) {
      return std::max(kShortSide, std::round(kLongSide * static_cast<double>(tokens) / longest));
    };
    y_.pixels = pixels(s.q_len);
    x_.pixels = pixels(s.kv_len);
  }

  std::string draw() {
    const double width = kLeft + std::max(x_.pixels, kLongSide) + kRight, height = kTop + y_.pixels + kLegend;
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" "
        "font-family=\"'Helvetica Neue', Helvetica, Arial, sans-serif\" font-size=\"12\" fill=\"#3c4043\">\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"#ffffff\"/>\n",
        width, height);
    title();
    add("<g shape-rendering=\"crispEdges\">\n<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"/>\n",
        x_.origin, y_.origin, x_.pixels, y_.pixels, hex(kEmpty));
    cells();
    grid();
    add("</g>\n<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#9aa0a6\"/>\n", x_.origin,
        y_.origin, x_.pixels, y_.pixels);
    axes();
    legend();
    out_ += "</svg>\n";
    return std::move(out_);
  }

 private:
  template <class... Arguments>
  void add(fmt::format_string<Arguments...> format, Arguments&&... arguments) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Arguments>(arguments)...);
  }

  void title() {
    add("<text x=\"{}\" y=\"30\" font-size=\"18\" font-weight=\"600\" fill=\"#202124\">Block mask{}</text>\n", kLeft,
        mask_.is_transposed() ? ", transposed" : "");
    add("<text x=\"{}\" y=\"52\" font-family=\"'DejaVu Sans Mono', Menlo, Consolas, monospace\">{}</text>\n", kLeft,
        escape(words_for(mask_)));
    const bool coarse = picture_.blocks_per_row > 1 || picture_.blocks_per_column > 1;
    add("<text x=\"{}\" y=\"72\" fill=\"#70757a\">sequence {}, head {} \u00b7 {} blocks of {}{}</text>\n", kLeft,
        sequence_, head_, product(mask_.q_blocks(sequence_), mask_.kv_blocks(sequence_)),
        product(mask_.block().q, mask_.block().kv),
        coarse ? ", drawn " + product(picture_.blocks_per_row, picture_.blocks_per_column) + " to a cell" : "");
  }

  /// Runs of one colour, each extended downwards as long as the rows below repeat it; a path a colour.
  void cells() {
    struct Bar {
      std::int64_t begin, end, top;
      Colour colour;
    };
    std::map<Colour, std::string> paths;
    const auto close = [&](const Bar& bar, std::int64_t bottom) {
      const double x = x_.at_cell(bar.begin), y = y_.at_cell(bar.top);
      const double w = x_.at_cell(bar.end) - x, h = y_.at_cell(bottom) - y;
      fmt::format_to(std::back_inserter(paths[bar.colour]), "M{:.6g} {:.6g}h{:.6g}v{:.6g}h{:.6g}z", x, y, w, h, -w);
    };
    std::vector<Bar> open, here;
    for (std::int64_t r = 0; r < picture_.rows; ++r) {
      here.clear();
      for (std::int64_t c = 0; c < picture_.columns; ++c) {
        const Colour colour = colour_of(picture_.at(r, c));
        if (!here.empty() && here.back().end == c && here.back().colour == colour) {
          here.back().end = c + 1;
        } else if (colour != kEmpty) {
          here.push_back({c, c + 1, r, colour});
        }
      }
      auto below = here.begin();
      for (const Bar& bar : open) {
        while (below != here.end() && below->begin < bar.begin) ++below;
        if (below != here.end() && below->begin == bar.begin && below->end == bar.end && below->colour == bar.colour) {
          below->top = bar.top;
        } else {
          close(bar, r);
        }
      }
      std::swap(open, here);
    }
    for (const Bar& bar : open) close(bar, picture_.rows);
    for (const auto& [colour, path] : paths) add("<path fill=\"{}\" d=\"{}\"/>\n", hex(colour), path);
  }

  void grid() {
    if (mask_.q_blocks(sequence_) > kMostGridded || mask_.kv_blocks(sequence_) > kMostGridded) return;
    std::string path;
    for (std::int64_t c = 1; c < x_.cells; ++c) {
      fmt::format_to(std::back_inserter(path), "M{:.6g} {:.6g}v{:.6g}", x_.at_cell(c), y_.origin, y_.pixels);
    }
    for (std::int64_t r = 1; r < y_.cells; ++r) {
      fmt::format_to(std::back_inserter(path), "M{:.6g} {:.6g}h{:.6g}", x_.origin, y_.at_cell(r), x_.pixels);
    }
    if (!path.empty()) add("<path stroke=\"#ffffff\" d=\"{}\"/>\n", path);
  }

  void axes() {
    const double bottom = y_.origin + y_.pixels;
    for (const std::int64_t t : ticks(x_, 84)) {
      add("<path stroke=\"#9aa0a6\" d=\"M{0:.6g} {1}v5\"/><text x=\"{0:.6g}\" y=\"{2}\" "
          "text-anchor=\"middle\">{3}</text>\n",
          x_.at_token(t), bottom, bottom + 19, grouped(x_.first_token + t));
    }
    for (const std::int64_t t : ticks(y_, 40)) {
      add("<path stroke=\"#9aa0a6\" d=\"M{0} {1:.6g}h-5\"/><text x=\"{2}\" y=\"{3:.6g}\" "
          "text-anchor=\"end\">{4}</text>\n",
          x_.origin, y_.at_token(t), x_.origin - 9, y_.at_token(t) + 4, grouped(y_.first_token + t));
    }
    add("<text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"#70757a\">{}</text>\n", x_.origin + x_.pixels / 2,
        bottom + 38, x_.label);
    add("<text transform=\"translate(18 {}) rotate(-90)\" text-anchor=\"middle\" fill=\"#70757a\">{}</text>\n",
        y_.origin + y_.pixels / 2, y_.label);
  }

  void legend() {
    const Cell total = picture_.total();
    const std::int64_t empty = total.blocks - total.full - total.partial;
    struct Entry {
      const char* name;
      Colour colour;
      std::int64_t count;
    };
    const std::array<Entry, 3> entries{
        {{"full", kFull, total.full}, {"partial", kPartial, total.partial}, {"empty", kEmpty, empty}}};
    const double top = y_.origin + y_.pixels + 62;
    double x = kLeft;
    for (const Entry& entry : entries) {
      add("<rect x=\"{}\" y=\"{}\" width=\"14\" height=\"14\" rx=\"2\" fill=\"{}\" stroke=\"#9aa0a6\" "
          "stroke-width=\"0.5\"/>\n",
          x, top, hex(entry.colour));
      add("<text x=\"{0}\" y=\"{1}\" font-weight=\"600\">{2}</text><text x=\"{0}\" y=\"{3}\">{4}</text>"
          "<text x=\"{0}\" y=\"{5}\" fill=\"#70757a\">{6}</text>\n",
          x + 22, top + 12, entry.name, top + 30, grouped(entry.count), top + 47, percent(entry.count, total.blocks));
      x += 140;
    }
    add("<text x=\"{0}\" y=\"{1}\" font-weight=\"600\">density</text><text x=\"{0}\" y=\"{2}\">{3}</text>"
        "<text x=\"{0}\" y=\"{4}\" fill=\"#70757a\">not empty</text>\n",
        x, top + 12, top + 30, percent(total.full + total.partial, total.blocks), top + 47);
  }

  const BlockMask& mask_;
  std::int64_t sequence_, head_;
  Picture picture_;
  Side x_, y_;
  std::string out_;
};

}  // namespace
}  // namespace mask

std::string BlockMask::svg(std::int64_t sequence, std::int64_t head) const {
  return mask::Drawing(*this, sequence, head).draw();
}

}  // namespace heddle
