#include "backend/portable/portable_rates.h"

#include <algorithm>
#include <array>

namespace heddle::plan {
namespace {

struct Chip {
  int major, minor;
  bool geforce;
  PortableRates rates;
};
constexpr std::array kChips = {
    Chip{8, 0, false, {1.41e9, 2048, 1024, 128, 2.04e12}},
    Chip{8, 6, false, {1.75e9, 1024, 512, 256, 0.77e12}},
    Chip{8, 6, true, {1.70e9, 512, 256, 256, 0.94e12}},
    Chip{8, 9, false, {2.20e9, 1024, 512, 256, 0.86e12}},
    Chip{8, 9, true, {2.52e9, 512, 256, 256, 1.01e12}},
    Chip{9, 0, false, {kMeasuredClocksPerSecond, 4096, 2048, 256, 4.2e12}},
    Chip{12, 0, false, {2.40e9, 1024, 512, 256, 1.79e12}},
    Chip{12, 0, true, {2.41e9, 512, 256, 256, 1.79e12}},
};

}  // namespace

const PortableRates* portable_rates(const device::CudaCaps& caps) {
  const bool geforce = caps.name.find("GeForce") != std::string::npos;
  const auto* const chip = std::ranges::find_if(kChips, [&](const Chip& each) {
    return each.major == caps.major && each.minor == caps.minor && each.geforce == geforce;
  });
  return chip == kChips.end() ? nullptr : &chip->rates;
}

double peak_of(shared::FragmentKind fragments, const PortableRates& rates) {
  switch (fragments) {
    case shared::FragmentKind::outer:
      return rates.floats;
    case shared::FragmentKind::tf32:
      return rates.tf32;
    default:
      return rates.halves;
  }
}

}  // namespace heddle::plan
