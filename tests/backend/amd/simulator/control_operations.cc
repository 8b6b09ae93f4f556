// Branches, waits, barriers, and what has no effect that the simulator models.
#include <fmt/format.h>

#include "backend/amd/simulator/memory_operations.h"
#include "backend/amd/simulator/operations.h"

namespace heddle::amd::simulator {
namespace {

void branch(Execution& x, const Instruction& i) { x.wave.pc = i.target; }

template <bool kWanted>
void branch_scc(Execution& x, const Instruction& i) {
  if (x.wave.scc_undefined) x.found(Fault::kUndefined, "the branch depends on bits that nothing wrote");
  if (x.wave.scc == kWanted) x.wave.pc = i.target;
}

template <int kRegister, bool kWhenZero>
void branch_mask(Execution& x, const Instruction& i) {
  const Operand mask{
      .kind = Operand::Kind::kScalar, .count = static_cast<std::uint8_t>(x.lanes() / 32), .index = kRegister};
  const ScalarValue value = read_scalar(x.wave, mask);
  const std::uint64_t bits = value.bits & x.all_lanes();
  if ((value.undefined & x.exec()) != 0 && (bits & ~value.undefined) == 0) {
    x.found(Fault::kUndefined, "the branch depends on bits that nothing wrote");
  }
  if ((bits == 0) == kWhenZero) x.wave.pc = i.target;
}

void end_program(Execution& x, const Instruction&) { x.wave.state = Wave::State::kEnded; }

void getpc(Execution& x, const Instruction& i) {
  write_scalar(x, i.to[0], {x.program.load_address + static_cast<std::uint64_t>(i.offset), 0});
}

void setpc(Execution& x, const Instruction& i) {
  const std::uint64_t address = read_scalar(x.wave, i.from[0]).bits - x.program.load_address;
  x.wave.pc = x.program.index_at(address);
  if (x.wave.pc < 0) {
    x.found(Fault::kBounds, fmt::format("a jump to {:#x}, where no instruction begins", address));
    x.wave.state = Wave::State::kEnded;
  }
}

void swappc(Execution& x, const Instruction& i) {
  const std::uint64_t next = x.program.load_address + static_cast<std::uint64_t>(i.offset);
  setpc(x, i);
  write_scalar(x, i.to[0], {next, 0});
}

void drop_finished_lds(Wave& wave) {
  std::erase_if(wave.lds_out,
                [&](const LdsAccess& access) { return !wave.waits.is_out(Counter::kLds, access.number); });
}

constexpr std::int32_t kNotNamed = 255;

/// `offset` has a byte for each Counter: how many may stay out, kNotNamed for a counter that is not waited for.
void wait(Execution& x, const Instruction& i) {
  for (int c = 0; c < static_cast<int>(Counter::kCount); ++c) {
    const auto left = static_cast<std::int32_t>(i.offset >> (8 * c) & 0xff);
    if (left != kNotNamed) x.wave.waits.wait(static_cast<Counter>(c), static_cast<std::uint32_t>(left));
  }
  if (!x.wave.lds_out.empty()) drop_finished_lds(x.wave);
}

void barrier(Execution& x, const Instruction&) {
  if (!x.wave.lds_out.empty()) delay_lds_accesses(x);
  x.wave.state = Wave::State::kAtBarrier;
}

void barrier_signal(Execution& x, const Instruction&) {
  if (!x.wave.lds_out.empty()) delay_lds_accesses(x);
  x.wave.signalled = true;
}

void barrier_wait(Execution& x, const Instruction&) {
  if (!x.wave.signalled) x.found(Fault::kBarrier, "s_barrier_wait without s_barrier_signal");
  x.wave.state = Wave::State::kAtBarrier;
}

constexpr Class kNone = Class::kNoOperation;

constexpr OperationRow kRows[] = {
    {"s_branch", ":-", branch, Class::kBranch},
    {"s_cbranch_scc0", ":-", branch_scc<false>, Class::kBranch},
    {"s_cbranch_scc1", ":-", branch_scc<true>, Class::kBranch},
    {"s_cbranch_vccz", ":-", branch_mask<kVcc, true>, Class::kBranch},
    {"s_cbranch_vccnz", ":-", branch_mask<kVcc, false>, Class::kBranch},
    {"s_cbranch_execz", ":-", branch_mask<kExec, true>, Class::kBranch},
    {"s_cbranch_execnz", ":-", branch_mask<kExec, false>, Class::kBranch},
    {"s_endpgm", ":", end_program, Class::kBranch},
    {"s_getpc_b64", "l:", getpc, Class::kScalar},
    {"s_setpc_b64", ":l", setpc, Class::kBranch},
    {"s_swappc_b64", "l:l", swappc, Class::kBranch},
    {"s_waitcnt", ":-", wait, Class::kWait},
    {"s_waitcnt_vscnt", ":--", wait, Class::kWait},
    {"s_waitcnt_vmcnt", ":--", wait, Class::kWait},
    {"s_waitcnt_lgkmcnt", ":--", wait, Class::kWait},
    {"s_wait_loadcnt", ":-", wait, Class::kWait},
    {"s_wait_storecnt", ":-", wait, Class::kWait},
    {"s_wait_dscnt", ":-", wait, Class::kWait},
    {"s_wait_kmcnt", ":-", wait, Class::kWait},
    {"s_wait_loadcnt_dscnt", ":-", wait, Class::kWait},
    {"s_wait_storecnt_dscnt", ":-", wait, Class::kWait},
    {"s_barrier", ":", barrier, Class::kBarrier},
    {"s_barrier_signal", ":-", barrier_signal, Class::kBarrier},
    {"s_barrier_wait", ":-", barrier_wait, Class::kBarrier},
    // Hints, hazards that the simulator does not have, caches that it does not have.
    {"s_nop", ":-", execute_nothing, kNone},
    {"v_nop", ":", execute_nothing, kNone},
    {"s_clause", ":-", execute_nothing, kNone},
    {"s_delay_alu", ":-", execute_nothing, kNone},
    {"s_setprio", ":-", execute_nothing, kNone},
    {"s_sleep", ":-", execute_nothing, kNone},
    {"s_sendmsg", ":-", execute_nothing, kNone},
    {"s_set_inst_prefetch_distance", ":-", execute_nothing, kNone},
    {"s_inst_prefetch", ":-", execute_nothing, kNone},
    {"s_waitcnt_depctr", ":-", execute_nothing, kNone},
    {"s_wait_alu", ":-", execute_nothing, kNone},
    // These wait for images and ray tracing, which are not simulated: none is ever under way.
    {"s_wait_samplecnt", ":-", execute_nothing, kNone},
    {"s_wait_bvhcnt", ":-", execute_nothing, kNone},
    {"s_wait_expcnt", ":-", execute_nothing, kNone},
    {"s_code_end", ":", execute_nothing, kNone},
    {"s_icache_inv", ":", execute_nothing, kNone},
    {"s_dcache_inv", ":", execute_nothing, Class::kCache},
    {"buffer_gl0_inv", ":", execute_nothing, Class::kCache},
    {"buffer_gl1_inv", ":", execute_nothing, Class::kCache},
    {"buffer_wbinvl1", ":", execute_nothing, Class::kCache},
    {"buffer_wbinvl1_vol", ":", execute_nothing, Class::kCache},
    {"buffer_inv", ":-", execute_nothing, Class::kCache},
    {"buffer_wbl2", ":-", execute_nothing, Class::kCache},
    {"buffer_invl2", ":", execute_nothing, Class::kCache},
    {"global_inv", ":-", execute_nothing, Class::kCache},
    {"global_wb", ":-", execute_nothing, Class::kCache},
    {"global_wbinv", ":-", execute_nothing, Class::kCache},
};

}  // namespace

void execute_nothing(Execution&, const Instruction&) {}

std::span<const OperationRow> control_rows() { return kRows; }

}  // namespace heddle::amd::simulator
