#include "backend/device_text/read_text.h"

#include <fmt/format.h>

#include "backend/device_text/words.h"

namespace heddle::device_text {
namespace {

/// The letter of a read's number, or of an axis: names of mods are small letters.
char letter(std::size_t number) { return static_cast<char>('a' + number); }

// Takes the read's number, rank, constants, letter, the text of index(), and the type of reals.
constexpr const char* kRead = R"(
struct Read{0} {{
  static constexpr int kNumber = {0}, kAxes = {1};
{2}  using Slope = Slope{3}Mod;
  static __device__ __forceinline__ {5} slope(const shared::ModValues& mod, const Slope::Uniform& u,
                                                const Slope::Row& r, const Slope::Column& c, {5} score, int b, int h,
                                                int q_idx, int kv_idx) {{
    return slope{3}_element(mod, u, r, c, score, b, h, q_idx, kv_idx);
  }}
  static __device__ __forceinline__ void index(const shared::ModValues& mod, {5} score, int b, int h, int q_idx,
                                               int kv_idx, int (&index)[4]) {{
{4}  }}
}};
)";
// Takes the read's and the axis' letters, and the axis.
constexpr const char* kIndex = R"(    {{
      const auto u = index{0}{1}_uniform(mod, b, h);
      const auto r = index{0}{1}_row(mod, u, b, h, q_idx);
      const auto c = index{0}{1}_column(mod, u, b, h, kv_idx);
      index[{2}] = index{0}{1}_element(mod, u, r, c, score, b, h, q_idx, kv_idx);
    }}
)";

}  // namespace

std::string read_text(std::size_t number, const Expr& slope, const std::vector<Expr>& indices,
                      const std::string& constants, const ModLayout& layout) {
  const char own = letter(number);
  std::string text = mod_text(fmt::format("slope{}", own), slope, layout, TakesScore::yes);
  std::string index;
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    text += mod_text(fmt::format("index{}{}", own, letter(axis)), indices[axis], layout, TakesScore::yes);
    index += fmt::format(kIndex, own, letter(axis), axis);
  }
  return text + "namespace heddle {\n" +
         fmt::format(kRead, number, indices.size(), constants, own, index, type_text(ExprType::f32, layout.reals)) +
         "\n}  // namespace heddle\n";
}

}  // namespace heddle::device_text
