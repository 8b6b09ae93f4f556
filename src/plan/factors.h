// Factors that multiply predicted times when the planner ranks kernels, each with the measurement behind it. The costs
// of kernels stand in the families' tables.
#pragma once

namespace heddle::plan {

struct PlannerFactors {
  // A packed kernel is taken only if it is predicted this many times as fast as the others. A guess.
  double packing_gain;
  // And this many times more if the heads of a group leave one of its warpgroups idle. A guess.
  double idle_gain;
  // A kernel that copies more of its pages than another is taken only if predicted this many times as fast: the caller
  // has to find memory for the copies. A guess.
  double copy_gain;
  // A kernel that reads a capture element by element takes this many times its predicted time. Measured
  // (docs/notes/hopper_mods.md): 3 to 5 times the plain kernel, where one whose capture comes in tiles takes 1.3 to 1.7
  // times: 3.75 over 1.5.
  double element_reads;
  // A kernel that reads score_mod's table (expr::TermOfSum) for each pair takes this many times its predicted time,
  // relative to one that has the table in shared memory. Measured (docs/notes/hopper_mods.md) of five tables at D 64
  // and 128: 1.13, 1.41, 1.45, 1.62 and 1.73 times.
  double table_reads;
  // If a mask's bits are stored, a spare kernel is taken only if it is predicted this many times as fast: its finer
  // blocks may leave out more, but the table's partial steps, which the prediction counts, are dearer than steps by
  // stored bits are in any kernel. A guess.
  double spare_gain;
  // A family that stands behind another in the table is taken only if it is predicted this many times as fast. A guess:
  // predictions of few queries err by up to 5 % dense, and by more in pages (docs/notes/portable_family.md).
  double family_gain;
  // forward_mma: a kernel goes before another that stands before it in the table only if it is predicted this many
  // times as fast: the table's order is measured where tiles fill the GPU. A guess.
  double table_gain;
  // A plan that yields is taken only if it is predicted this many times as fast. A guess: waves that share rows were
  // compared with other families at 64 rows of a head of keys alone.
  double yield_gain;
};

inline constexpr PlannerFactors kPlannerFactors = {.packing_gain = 1.05,
                                                   .idle_gain = 1.1,
                                                   .copy_gain = 1.05,
                                                   .element_reads = 2.5,
                                                   .table_reads = 1.45,
                                                   .spare_gain = 1.1,
                                                   .family_gain = 1.05,
                                                   .table_gain = 1.15,
                                                   .yield_gain = 2};

}  // namespace heddle::plan
