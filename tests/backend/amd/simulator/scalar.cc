#include "backend/amd/simulator/scalar.h"

#include <unordered_map>

namespace heddle::amd::simulator {
namespace {

std::uint64_t undefined_bits(ScalarRule rule, const ScalarValue& a, const ScalarValue& b, bool third_undefined,
                             bool scc) {
  const std::uint64_t ua = a.undefined, ub = b.undefined;
  switch (rule) {
    case ScalarRule::kAnd:
      return (ua & ub) | (ua & b.bits) | (ub & a.bits);
    case ScalarRule::kAndNot:
      return (ua & ub) | (ua & ~b.bits) | (ub & a.bits);
    case ScalarRule::kOr:
      return (ua & ub) | (ua & ~b.bits) | (ub & ~a.bits);
    case ScalarRule::kOrNot:
      return (ua & ub) | (ua & b.bits) | (ub & ~a.bits);
    case ScalarRule::kXor:
    case ScalarRule::kMove:
      return ua | ub;
    case ScalarRule::kSelect:
      return scc ? ua : ub;
    case ScalarRule::kSaveExec:
      return 0;
    default:
      return (ua | ub) != 0 || third_undefined ? ~0ull : 0;
  }
}

}  // namespace

void execute_scalar(Execution& x, const Instruction& i) {
  Wave& wave = x.wave;
  ScalarValue from[3];
  for (std::size_t s = 0; s < i.from_count && s < 3; ++s) from[s] = read_scalar(wave, i.from[s]);
  const auto rule = static_cast<ScalarRule>(i.detail);
  ScalarCall call{.x = x,
                  .a = from[0].bits,
                  .b = from[1].bits,
                  .c = from[2].bits,
                  .a_undefined = from[0].undefined,
                  .scc = wave.scc};
  const bool scc_before = wave.scc, reads_scc = rule == ScalarRule::kSelect || rule == ScalarRule::kOwnScc;
  std::uint64_t result = i.scalar(call);
  std::uint64_t undefined = undefined_bits(rule, from[0], from[1], from[2].undefined != 0, scc_before);
  if (reads_scc && wave.scc_undefined && i.reads_scc) undefined = ~0ull;
  if (rule == ScalarRule::kCompare) {
    wave.scc = call.scc;
    wave.scc_undefined = undefined != 0;
    return;
  }
  const std::uint64_t width = i.to[0].count == 2 ? ~0ull : 0xffff'ffffull;
  result &= width;
  undefined &= width;
  write_scalar(x, i.to[0], {result, undefined});
  if (rule == ScalarRule::kOwnScc || rule == ScalarRule::kSaveExec) {
    wave.scc = call.scc;
    wave.scc_undefined = undefined != 0;
  } else if (rule != ScalarRule::kPlain && rule != ScalarRule::kMove && rule != ScalarRule::kSelect) {
    wave.scc = result != 0;
    wave.scc_undefined = undefined != 0 && (result & ~undefined) == 0;
  }
}

const ScalarRow* find_scalar_row(std::string_view name) {
  static const auto rows = [] {
    std::unordered_map<std::string_view, const ScalarRow*> all;
    for (const auto& table : {scalar_rows(), scalar_mask_rows(), scalar_float_rows()}) {
      for (const ScalarRow& row : table) all.emplace(row.name, &row);
    }
    return all;
  }();
  const auto row = rows.find(name);
  return row == rows.end() ? nullptr : row->second;
}

}  // namespace heddle::amd::simulator
