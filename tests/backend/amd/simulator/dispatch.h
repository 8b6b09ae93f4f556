// The registers of a wave that starts, as the kernel's descriptor asks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "backend/amd/simulator/code_object.h"
#include "backend/amd/simulator/memory.h"
#include "backend/amd/simulator/wave.h"

namespace heddle::amd::simulator {

/// One launch. Holds the kernel's arguments, hidden ones too, in device memory while it lives.
class Dispatch {
 public:
  /// \throws std::runtime_error if the arguments' bytes are not those of the kernel
  Dispatch(const KernelInfo& kernel, const Chip& chip, std::array<std::uint32_t, 3> grid,
           std::array<std::uint32_t, 3> block, const std::vector<std::uint8_t>& arguments, std::uint32_t dynamic_lds,
           Memory& memory);
  ~Dispatch();
  Dispatch(const Dispatch&) = delete;
  Dispatch& operator=(const Dispatch&) = delete;

  std::uint32_t waves_of_group() const;
  /// The address of the first instruction that is executed.
  std::uint64_t entry() const;
  void start(Wave& wave, std::uint32_t number, const std::array<std::uint32_t, 3>& group, int first_instruction) const;

 private:
  void write_hidden_arguments(std::vector<std::uint8_t>& bytes, std::uint32_t dynamic_lds) const;
  int set_user_registers(Wave& wave) const;
  void set_group_registers(Wave& wave, int next, std::uint32_t number, const std::array<std::uint32_t, 3>& group) const;
  void set_thread_registers(Wave& wave, std::uint32_t number) const;

  const KernelInfo& kernel_;
  const Chip& chip_;
  std::array<std::uint32_t, 3> grid_;
  std::array<std::uint32_t, 3> block_;
  Memory& memory_;
  std::uint64_t arguments_ = 0;  // device address
  std::uint64_t packet_ = 0;     // of the dispatch packet, whose sizes kernels may read
};

}  // namespace heddle::amd::simulator
