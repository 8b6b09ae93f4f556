// Ready-made mods of tokens that stand in a grid, an image or a film, row-major.
#include <fmt/format.h>

#include <array>
#include <span>
#include <string>

#include "expr/mod_arguments.h"
#include "heddle/mods.h"

namespace heddle::mods {
namespace {

using leaf::h;
using leaf::kv_idx;
using leaf::q_idx;
using leaf::score;

/// An axis of a grid, with the names of its arguments: its extent, and how many tokens (or tiles) a query sees along
/// it.
struct Axis {
  const char* name;
  std::int64_t extent;
  const char* kernel_name;
  std::int64_t kernel;
};

/// Where a token stands along one axis: the quotient by what lies behind that axis, in its extent.
Expr place(const Expr& token, std::int64_t behind, std::int64_t extent, bool is_first) {
  const Expr quotient = behind == 1 ? token : floor_div(token, Expr(behind));
  return is_first ? quotient : quotient % Expr(extent);
}

/// Along each axis the query sees `kernel` neighbours, itself in their middle; at the border the same number, moved
/// inside. `tile`: tokens that stand together, and see alike.
Expr neighbourhood(const char* function, std::span<const Axis> axes, std::int64_t tile) {
  std::int64_t tokens = tile;
  for (const auto& [name, extent, kernel_name, kernel] : axes) {
    literal(fmt::format("{} of {}", name, function), extent, 1, kIntMax / tokens);
    tokens *= extent;
    literal(fmt::format("{} of {}", kernel_name, function), kernel, 1, extent);
    if (kernel % 2 == 0) refuse(fmt::format("{} of {} must be odd, but is {}", kernel_name, function, kernel));
  }
  Expr seen;
  for (const Axis& axis : axes) {
    const bool is_first = &axis == axes.data();
    const std::int64_t radius = axis.kernel / 2;
    tokens /= axis.extent;                                  // behind this axis
    if (axis.kernel == axis.extent && !is_first) continue;  // all of it
    const Expr query = place(q_idx(), tokens, axis.extent, is_first);
    const Expr key = place(kv_idx(), tokens, axis.extent, is_first);
    const Expr middle = clip(query, Expr(radius), Expr(axis.extent - 1 - radius));
    const Expr near = axis.kernel == 1 ? query == key : abs(middle - key) <= Expr(radius);
    seen = seen.empty() ? near : seen && near;
  }
  return seen;
}

}  // namespace

Expr neighbourhood_2d(std::int64_t width, std::int64_t radius_y, std::int64_t radius_x) {
  const Expr w = literal("width of neighbourhood_2d", width, 1);
  const Expr y = literal("radius_y of neighbourhood_2d", radius_y, 0);
  const Expr x = literal("radius_x of neighbourhood_2d", radius_x, 0);
  return abs(floor_div(q_idx(), w) - floor_div(kv_idx(), w)) <= y && abs(q_idx() % w - kv_idx() % w) <= x;
}

Expr natten_2d(std::int64_t height, std::int64_t width, std::int64_t kernel_y, std::int64_t kernel_x) {
  return neighbourhood(
      "natten_2d", std::array{Axis{"height", height, "kernel_y", kernel_y}, Axis{"width", width, "kernel_x", kernel_x}},
      1);
}

Expr natten_3d(std::int64_t depth, std::int64_t height, std::int64_t width, std::int64_t kernel_z,
               std::int64_t kernel_y, std::int64_t kernel_x) {
  return neighbourhood(
      "natten_3d",
      std::array{Axis{"depth", depth, "kernel_z", kernel_z}, Axis{"height", height, "kernel_y", kernel_y},
                 Axis{"width", width, "kernel_x", kernel_x}},
      1);
}

Expr sliding_tiles_2d(std::int64_t tiles_y, std::int64_t tiles_x, std::int64_t tile, std::int64_t kernel_y,
                      std::int64_t kernel_x) {
  literal("tile of sliding_tiles_2d", tile, 1);
  return neighbourhood(
      "sliding_tiles_2d",
      std::array{Axis{"tiles_y", tiles_y, "kernel_y", kernel_y}, Axis{"tiles_x", tiles_x, "kernel_x", kernel_x}}, tile);
}

Expr sliding_tiles_3d(std::int64_t tiles_z, std::int64_t tiles_y, std::int64_t tiles_x, std::int64_t tile,
                      std::int64_t kernel_z, std::int64_t kernel_y, std::int64_t kernel_x) {
  literal("tile of sliding_tiles_3d", tile, 1);
  return neighbourhood(
      "sliding_tiles_3d",
      std::array{Axis{"tiles_z", tiles_z, "kernel_z", kernel_z}, Axis{"tiles_y", tiles_y, "kernel_y", kernel_y},
                 Axis{"tiles_x", tiles_x, "kernel_x", kernel_x}},
      tile);
}

Expr swin_windows(std::int64_t width, std::int64_t window, std::int64_t shift) {
  const Expr w = literal("width of swin_windows", width, 1);
  const Expr size = literal("window of swin_windows", window, 1);
  literal("shift of swin_windows", shift, 0, window - 1);
  const auto window_of = [&](const Expr& place) {
    return floor_div(shift == 0 ? place : place + Expr(window - shift), size);
  };
  return window_of(floor_div(q_idx(), w)) == window_of(floor_div(kv_idx(), w)) &&
         window_of(q_idx() % w) == window_of(kv_idx() % w);
}

Expr swin_bias(const Capture& table, std::int64_t width, std::int64_t window) {
  require_reals("table of swin_bias", table, 2);
  const Expr w = literal("width of swin_bias", width, 1);
  literal("window of swin_bias", window, 1, 16384);
  const Expr far = window - 1;
  const auto offset = [&](const Expr& query, const Expr& key) { return clip(query - key, 1 - window, far) + far; };
  const Expr down = offset(floor_div(q_idx(), w), floor_div(kv_idx(), w)), across = offset(q_idx() % w, kv_idx() % w);
  return score() + table(down * Expr(2 * window - 1) + across, h());
}

}  // namespace heddle::mods
