// Runs the kernels of a code object, instruction by instruction, and says what they did wrong and what they cost.
//
//   const CodeObject object = CodeObject::load("kernels.hsaco");
//   Memory memory;
//   const std::uint64_t out = memory.allocate(bytes, "out");
//   Simulator simulator(object, memory);
//   const Report report = simulator.launch("copy", {4, 1, 1}, {256, 1, 1}, Arguments().add(out).add(1024u));
//   EXPECT_EQ(report.findings.text(), "");
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "backend/amd/simulator/code_object.h"
#include "backend/amd/simulator/findings.h"
#include "backend/amd/simulator/memory.h"
#include "backend/amd/simulator/wave.h"

namespace heddle::amd::simulator {

/// Kernel arguments one after another, each at its natural alignment, as C lays out a struct.
class Arguments {
 public:
  template <class T>
    requires std::is_trivially_copyable_v<T>
  Arguments& add(const T& value) {
    bytes_.resize((bytes_.size() + alignof(T) - 1) / alignof(T) * alignof(T));
    const auto* first = reinterpret_cast<const std::uint8_t*>(&value);
    bytes_.insert(bytes_.end(), first, first + sizeof(T));
    return *this;
  }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }

 private:
  std::vector<std::uint8_t> bytes_;
};

struct LaunchOptions {
  std::uint32_t dynamic_lds = 0;             ///< bytes beyond what the kernel declares
  std::uint64_t wave_order = 0;              ///< seeds the order in which waves run between barriers; 0: as numbered
  std::uint64_t longest_wave = 100'000'000;  ///< instructions; a wave that executes more is stopped, with a finding
};

/// Instructions executed and cycles of the issue port, of one class.
struct ClassCount {
  std::uint64_t instructions = 0;
  std::uint64_t cycles = 0;
};

struct Report {
  Findings findings;
  std::array<ClassCount, static_cast<std::size_t>(Class::kCount)> classes{};
  std::uint64_t instructions = 0;
  std::uint64_t waves = 0;
  BankCycles lds;
  std::uint64_t global_bytes_loaded = 0;
  std::uint64_t global_bytes_stored = 0;

  const ClassCount& of(Class c) const { return classes[static_cast<std::size_t>(c)]; }
  /// Cycles of matrix instructions among all that the issue port of vector instructions spends. On gfx11 and gfx12 both
  /// share that port, and this is a ceiling of the matrix units' use; on gfx9 they run beside each other.
  double matrix_share() const;
  /// A table of the classes that occur, and the sums.
  std::string text() const;
};

const char* name_of(Class c);

class Simulator {
 public:
  /// Loads the code object into `memory`. Both must outlive the simulator.
  Simulator(const CodeObject& object, Memory& memory);
  ~Simulator();
  Simulator(const Simulator&) = delete;
  Simulator& operator=(const Simulator&) = delete;

  /// Runs all workgroups one after another, the waves of one in turns from barrier to barrier.
  /// \param grid in workgroups
  /// \throws std::runtime_error if there is no such kernel, if arguments or sizes do not fit it, or if its code has an
  ///         instruction that is not simulated
  Report launch(const std::string& kernel, std::array<std::uint32_t, 3> grid, std::array<std::uint32_t, 3> block,
                const Arguments& arguments, const LaunchOptions& options = {});

 private:
  const CodeObject& object_;
  Memory& memory_;
  Program program_;
  std::vector<std::uint64_t> buffers_;
};

}  // namespace heddle::amd::simulator
