// A kernel's source as it is given to a compiler at run time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace heddle::jit {

/// A header that `#include "name"` finds.
struct Header {
  std::string name;
  std::string_view text;  // lives as long as the program
};

/// One kernel's whole source. Equal sources are one kernel.
struct Source {
  std::string name;  // for people: "forward_sm90 bf16 d128 128x128"; also that of the dumped files
  std::string text;  // the file to compile
  std::vector<Header> headers{};
  std::string architecture{};          // "sm_90a", "gfx1100"; must be set
  std::vector<std::string> options{};  // further options of the compiler
  /// Products and sums that stand beside each other in the text may become one operation. If false, kernels whose texts
  /// agree about a row compute the same bits of it, whatever else they hold.
  bool contracts = true;
  /// True if another kernel can do the same work: the builder then rejects this one if it spills registers, needs
  /// scratch memory (AMD) or has serialised products. A kernel without an alternative is taken: it is slow, but right.
  bool has_alternative = true;
  /// Bytes that NVRTC may spill though there is an alternative, which is slower by more.
  int bearable_spill_bytes = 0;
};

/// The source, whose kernel has an alternative, or none.
inline Source with_alternative(Source source, bool there) {
  source.has_alternative = there;
  return source;
}

/// The source, compiled so that rows have the same bits in all kernels that compute them alike, if that is wanted.
inline Source with_invariant_rows(Source source, bool wanted) {
  source.contracts = !wanted;
  return source;
}

}  // namespace heddle::jit
