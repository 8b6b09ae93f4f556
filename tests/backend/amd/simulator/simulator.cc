#include "backend/amd/simulator/simulator.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>

#include "backend/amd/simulator/dispatch.h"
#include "backend/amd/simulator/wait_rules.h"

namespace heddle::amd::simulator {
namespace {

/// Runs a wave until it comes to a barrier or to its end.
void run_wave(Execution& x, std::uint64_t longest) {
  Wave& wave = x.wave;
  wave.state = Wave::State::kReady;
  const Instruction* instructions = x.program.instructions.data();
  const auto count = static_cast<int>(x.program.instructions.size());
  while (wave.state == Wave::State::kReady) {
    if (wave.pc < 0 || wave.pc >= count) throw std::runtime_error("a wave ran past the end of the code");
    const int pc = wave.pc++;
    const Instruction& instruction = instructions[pc];
    x.current = &instruction;
    ++x.counts.executed[static_cast<std::size_t>(pc)];
    if (wave.waits.any()) check_waits(x, instruction);
    instruction.execute(x, instruction);
    if (instruction.wait_group != 0) issue(x, instruction);
    if (++wave.executed > longest) {
      x.found(Fault::kRunaway, fmt::format("{} instructions", wave.executed));
      wave.state = Wave::State::kEnded;
    }
  }
}

Execution execution_of(Wave& wave, Group& group, const Execution& shared) {
  return {wave, group, shared.memory, shared.findings, shared.counts, shared.program, shared.chip};
}

/// The barrier opens: all waves that have not ended wait at it. The hardware takes waves that ended for arrived; that
/// the others' barriers have no partner in them is a fault of the kernel nevertheless.
void pass_barrier(Group& group, const Execution& shared) {
  Wave *waiting = nullptr, *ended = nullptr;
  for (const auto& wave : group.waves) (wave->state == Wave::State::kEnded ? ended : waiting) = wave.get();
  if (ended) {
    Execution x = execution_of(*waiting, group, shared);
    x.current = &shared.program.instructions[static_cast<std::size_t>(waiting->pc - 1)];
    x.found(Fault::kBarrier, fmt::format("wave {} has ended", ended->number));
  }
  ++group.epoch;
  for (const auto& wave : group.waves) wave->signalled = false;
}

void run_group(Group& group, const Execution& shared, std::uint64_t longest, std::uint64_t wave_order) {
  std::vector<std::size_t> order(group.waves.size());
  std::iota(order.begin(), order.end(), 0u);
  std::mt19937_64 random(wave_order);
  for (;;) {
    if (wave_order != 0) std::shuffle(order.begin(), order.end(), random);
    bool any_at_barrier = false;
    for (const std::size_t w : order) {
      Wave& wave = *group.waves[w];
      if (wave.state == Wave::State::kEnded) continue;
      Execution x = execution_of(wave, group, shared);
      run_wave(x, longest);
      any_at_barrier = any_at_barrier || wave.state == Wave::State::kAtBarrier;
    }
    if (!any_at_barrier) return;
    pass_barrier(group, shared);
  }
}

void check_launch(const CodeObject& object, const KernelInfo& kernel, const std::array<std::uint32_t, 3>& block) {
  const std::uint64_t threads = static_cast<std::uint64_t>(block[0]) * block[1] * block[2];
  if (threads == 0 || threads > kernel.largest_group) {
    throw std::runtime_error(
        fmt::format("{} threads in a workgroup; {} takes 1 to {}", threads, kernel.name, kernel.largest_group));
  }
  constexpr std::uint32_t kDenormalsKept = 0xf0;
  if ((kernel.rsrc1 >> 12 & 0xff) != kDenormalsKept) {
    throw std::runtime_error(fmt::format("{}: float mode {:#x} is not simulated, only denormals kept", kernel.name,
                                         kernel.rsrc1 >> 12 & 0xff));
  }
  const Program& program = object.program();
  for (std::size_t n = 0; n < program.instructions.size(); ++n) {
    const std::uint64_t address = program.instructions[n].address;
    const auto unknown = program.unknown.find(n);
    if (address < kernel.entry || address >= kernel.entry + kernel.code_bytes || unknown == program.unknown.end())
      continue;
    throw std::runtime_error(fmt::format("{} at {:#x} is not simulated: {}", kernel.name, address, unknown->second));
  }
}

Report report_of(const Program& program, const Counts& counts, Findings findings, std::uint64_t waves) {
  Report report;
  report.findings = std::move(findings);
  for (std::size_t n = 0; n < counts.executed.size(); ++n) {
    const Instruction& i = program.instructions[n];
    ClassCount& count = report.classes[static_cast<std::size_t>(i.counted_as)];
    count.instructions += counts.executed[n];
    count.cycles += counts.executed[n] * static_cast<std::uint64_t>(i.cycles);
    report.instructions += counts.executed[n];
  }
  report.waves = waves;
  report.lds = counts.lds;
  report.global_bytes_loaded = counts.global_bytes_loaded;
  report.global_bytes_stored = counts.global_bytes_stored;
  return report;
}

}  // namespace

Simulator::Simulator(const CodeObject& object, Memory& memory)
    : object_(object), memory_(memory), program_(object.program()) {
  std::uint64_t end = 0;
  for (const Segment& segment : object.segments()) end = std::max(end, segment.address + segment.size);
  std::vector<std::uint8_t> image(end);
  for (const Segment& segment : object.segments()) {
    std::copy(segment.bytes.begin(), segment.bytes.end(), image.begin() + static_cast<std::ptrdiff_t>(segment.address));
  }
  program_.load_address = memory.allocate(image.size(), "the code object");
  memory.write(program_.load_address, image);
  buffers_.push_back(program_.load_address);
}

Simulator::~Simulator() {
  for (const std::uint64_t buffer : buffers_) memory_.free(buffer);
}

Report Simulator::launch(const std::string& name, std::array<std::uint32_t, 3> grid, std::array<std::uint32_t, 3> block,
                         const Arguments& arguments, const LaunchOptions& options) {
  const KernelInfo& kernel = object_.kernel(name);
  check_launch(object_, kernel, block);
  const Dispatch dispatch(kernel, object_.chip(), grid, block, arguments.bytes(), options.dynamic_lds, memory_);
  const std::uint32_t group_waves = dispatch.waves_of_group();
  const std::uint64_t groups = static_cast<std::uint64_t>(grid[0]) * grid[1] * grid[2];

  Findings findings;
  Counts counts;
  counts.executed.assign(program_.instructions.size(), 0);
  counts.conflicts.assign(program_.instructions.size(), 0);
  counts.first_thread = memory_.take_thread_numbers(groups * group_waves * kLanes);

  Group group;
  for (std::uint32_t w = 0; w < group_waves; ++w) group.waves.push_back(std::make_unique<Wave>());
  const Execution shared{*group.waves[0], group, memory_, findings, counts, program_, object_.chip()};
  std::uint32_t thread = counts.first_thread;
  for (std::uint64_t g = 0; g < groups; ++g) {
    group.id = {static_cast<std::uint32_t>(g % grid[0]), static_cast<std::uint32_t>(g / grid[0] % grid[1]),
                static_cast<std::uint32_t>(g / grid[0] / grid[1])};
    group.epoch = 1;
    group.lds.reset(kernel.lds_bytes + options.dynamic_lds);
    for (std::uint32_t w = 0; w < group_waves; ++w, thread += kLanes) {
      dispatch.start(*group.waves[w], w, group.id, program_.index_at(dispatch.entry()));
      group.waves[w]->first_thread = thread;
    }
    run_group(group, shared, options.longest_wave, options.wave_order);
  }
  return report_of(program_, counts, std::move(findings), groups * group_waves);
}

}  // namespace heddle::amd::simulator
