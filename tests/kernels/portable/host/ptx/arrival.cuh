// ptx/arrival.cuh on the host, whose CTAs run one after the other.
#pragma once

namespace heddle::ptx {

inline unsigned long long arrive(unsigned long long* word) { return (*word)++; }

}  // namespace heddle::ptx
