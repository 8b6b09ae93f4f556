// How many multiply-adds of bf16 this machine does with AMX.
#pragma once

namespace heddle::peaks {

/// Whether attention multiplies bf16 with AMX here: the processor has it, the system allows it, and HEDDLE_CPU_AMX does
/// not choose otherwise.
bool has_amx();

/// GFLOP/s of independent products of AMX's registers, on so many threads at once, over about `milliseconds`. has_amx()
/// must be true.
double amx_peak_gflops(int threads, double milliseconds);

}  // namespace heddle::peaks
