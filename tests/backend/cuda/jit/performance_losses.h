// ptxas's messages about tensor-core pipelines, with their numbers: the sentences that stand in libnvrtc 12.3, 12.9,
// 13.0 and 13.5.
#pragma once

#include <string>

namespace heddle::cuda::jit {

struct PtxasLine {
  const char* code;  // "C7512"
  const char* words;
  std::string text() const { return std::string("(") + code + ") " + words; }
};

/// Every reason to serialise, and setmaxnreg without effect: such a kernel is several times slower.
inline constexpr PtxasLine kPerformanceLosses[] = {
    {"C7508", "Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry."},
    {"C7508", "Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirements."},
    {"C7508", "Potential Performance Loss: 'setmaxnreg' ignored to maintain compatibility into 'extern' call."},
    {"C7509",
     "Potential Performance Loss: wgmma.mma_async instructions are serialized due to the presence of Extern calls in "
     "the function 'f'"},
    {"C7510",
     "Potential Performance Loss: wgmma.mma_async instructions are serialized due to wgmma pipeline crossing function "
     "boundary at a function call in the function 'f'"},
    {"C7511",
     "Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources "
     "for the wgmma pipeline in the function 'f'"},
    {"C7512",
     "Potential Performance Loss: wgmma.mma_async instructions are serialized due to insufficient register resources "
     "for the function 'f'"},
    {"C7513",
     "Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma instructions defining "
     "input registers of a wgmma between start and end of the pipeline stage in the function 'f'"},
    {"C7514",
     "Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma instructions reading "
     "accumulator registers of  a wgmma between start and end of the pipeline stage in the function 'f'"},
    {"C7515",
     "Potential Performance Loss: wgmma.mma_async instructions are serialized due to non wgmma instructions defining "
     "accumulator registers of a wgmma between start and end of the pipeline stage in the function 'f'"},
    {"C7516",
     "Potential Performance Loss: wgmma.mma_async instructions are serialized due to ill formed pipeline stage in the "
     "function 'f'"},
    {"C7518",
     "Potential Performance Loss: wgmma.mma_async instructions are serialized due to program dependence on "
     "compiler-inserted WG.DP in divergent path in the function 'f'"},
    {"C7520",
     "Potential Performance Loss: wgmma.mma_async instructions are serialized due to program dependence on "
     "compiler-inserted WG.AR in divergent path in the function 'f'"},
};

/// Losses that the compiler mends at little cost.
inline constexpr PtxasLine kAddedWaits[] = {
    {"C7517",
     "warpgroup.wait is injected in around line 48 by compiler to allow use of registers defined by GMMA in function "
     "'f'"},
    {"C7519",
     "warpgroup.arrive is injected in around line 51 by compiler to allow use of registers in GMMA in function 'f'"},
};

}  // namespace heddle::cuda::jit
