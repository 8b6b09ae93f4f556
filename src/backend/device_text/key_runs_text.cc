#include "backend/device_text/key_runs_text.h"

#include <fmt/format.h>

#include <variant>
#include <vector>

#include "backend/device_text/range_steps.h"
#include "backend/device_text/words.h"
#include "heddle/error.h"

namespace heddle::device_text {
namespace {

using expr::KeyBounds;
using expr::RangeProgram;

const LeafTexts& leaf_texts() {
  static const LeafTexts texts = {.b = "shared::point(at.b)",
                                  .h = "at.h",
                                  .q_idx = "at.q_idx",
                                  .kv_idx = "at.kv_idx",
                                  .q_len = "shared::point(at.q_len)",
                                  .kv_len = "shared::point(at.kv_len)",
                                  .q_start = "shared::point(at.q_start)",
                                  .q_token = "shared::point(at.q_token)",
                                  .kv_token = "shared::point(at.kv_token)"};
  return texts;
}

class KeyRunsWriter {
 public:
  KeyRunsWriter(const KeyBounds& bounds, const ModLayout& layout)
      : bounds_(bounds),
        program_(bounds.program()),
        steps_(program_, layout, kNoZones, leaf_texts()),
        declared_(program_.size(), false) {}

  /// The function's body.
  std::string text() {
    for (std::size_t i = 0; i < bounds_.steps().size(); ++i) {
      const std::string runs = std::visit([&](const auto& step) { return this->write(step); }, bounds_.steps()[i]);
      body_ += wrapped(fmt::format("  const shared::KeyRuns r{} = {};\n", i, runs));
    }
    return body_ + fmt::format("  return r{};\n", bounds_.root());
  }

 private:
  static inline const ZoneAxes kNoZones;

  /// Declares a step of the program, after those that it reads.
  void declare(int step) {
    std::vector<bool>::reference there = declared_[static_cast<std::size_t>(step)];
    if (there) return;
    there = true;
    for (const int below : steps_.reads_of(step)) declare(below);
    body_ += steps_.declarations()[static_cast<std::size_t>(step)];
  }
  std::string value(int step) {
    declare(step);
    return fmt::format("s{}", step);
  }
  std::string rest(const RangeProgram::Sum& sum, int term) {
    for (const int below : steps_.reads_of(sum)) declare(below);
    return steps_.sum_text(sum, term);
  }
  long long coefficient(const RangeProgram::Sum& sum, int term) const {
    return program_.terms(sum)[static_cast<std::size_t>(term)].coefficient;
  }

  std::string write(const KeyBounds::Condition& condition) {
    return fmt::format("shared::keys_where({}.can_be_{}, at.kv_idx)", value(condition.step), condition.value);
  }
  std::string write(const KeyBounds::Join& join) const {
    return fmt::format("shared::{}(r{}, r{})", join.both ? "intersect" : "unite", join.first, join.second);
  }
  std::string write(const KeyBounds::Bound& bound) {
    const auto& comparison = std::get<RangeProgram::Comparison>(program_.steps()[static_cast<std::size_t>(bound.step)]);
    for (const int below : steps_.reads_of(bound.step)) declare(below);
    std::string found =
        fmt::format("shared::terms_of_sum(shared::differences({}), {}, {})", relation_text(bound.relation),
                    coefficient(comparison.difference, bound.term), rest(comparison.difference, bound.term));
    for (const KeyBounds::Link& link : bound.links) found = write(link, found);
    return fmt::format("{} ? shared::keys_within({}, at.kv_idx) : shared::all_keys(at.kv_idx)",
                       steps_.exact_text(bound.step), found);
  }
  std::string write(const KeyBounds::Link& link, const std::string& found) {
    switch (link.kind) {
      case KeyBounds::Link::Kind::sum: {
        const auto& sum = std::get<RangeProgram::Sum>(program_.steps()[static_cast<std::size_t>(link.step)]);
        return fmt::format("shared::terms_of_sum({}, {}, {}, {})", found, coefficient(sum, link.term),
                           rest(sum, link.term), rest(sum, -1));
      }
      case KeyBounds::Link::Kind::quotient:
        return fmt::format("shared::dividends({}, {})", found, value(link.other));
      case KeyBounds::Link::Kind::shift:
        return fmt::format("shared::dividends({}, shared::powers({}))", found, value(link.other));
      case KeyBounds::Link::Kind::min:
        return fmt::format("shared::under_min({}, {})", found, value(link.other));
      case KeyBounds::Link::Kind::max:
        return fmt::format("shared::under_max({}, {})", found, value(link.other));
      case KeyBounds::Link::Kind::abs:
        return fmt::format("shared::under_abs({}, {})", found, value(link.step));
    }
    throw Error(ErrorCode::internal, "a bound of keys has a link of an unknown kind");
  }

  const KeyBounds& bounds_;
  const RangeProgram& program_;
  RangeSteps steps_;
  std::vector<bool> declared_;
  std::string body_;
};

}  // namespace

std::string key_runs_text(const std::string& name, const KeyBounds& bounds, const ModLayout& layout) {
  if (!bounds.bounds()) throw Error(ErrorCode::internal, "the keys of a mask that bounds none are asked for");
  return fmt::format(
      "#include \"mods/mask_ranges.cuh\"\n#include \"shared/key_runs.h\"\n\nnamespace heddle {{\n\n"
      "__device__ __forceinline__ shared::KeyRuns {}_keys(const shared::ModValues& mod, const shared::MaskRows& at) "
      "{{\n{}}}\n\n}}  // namespace heddle\n",
      name, KeyRunsWriter(bounds, layout).text());
}

}  // namespace heddle::device_text
