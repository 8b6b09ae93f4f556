// Shared by the simulator's tests: a chip with a code object loaded, and buffers as vectors.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "backend/amd/simulator/simulator.h"

namespace heddle::amd::simulator {

/// The chips that test kernels are compiled for.
inline const std::vector<std::string>& chips() {
  static const std::vector<std::string> names = {"gfx1100", "gfx1201", "gfx90a", "gfx942"};
  return names;
}

/// One file of kernels on one chip.
class Simulated {
 public:
  Simulated(const std::string& kernels, const std::string& chip)
      : object_(loaded(std::string(AMD_CODE_OBJECTS "/") + kernels + "." + chip + ".hsaco")),
        simulator_(object_, memory_) {}

  /// A buffer that the kernel reads.
  template <class T>
  std::uint64_t input(const std::vector<T>& values, const std::string& name = "an input") {
    const std::uint64_t address = memory_.allocate(values.size() * sizeof(T), name);
    memory_.write(address, {reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * sizeof(T)});
    return address;
  }
  /// A buffer that the kernel writes: nothing is in it yet.
  template <class T>
  std::uint64_t output(std::size_t count, const std::string& name = "an output") {
    return memory_.allocate(count * sizeof(T), name);
  }
  template <class T>
  std::vector<T> values(std::uint64_t address, std::size_t count) const {
    std::vector<T> result(count);
    memory_.read(address, {reinterpret_cast<std::uint8_t*>(result.data()), count * sizeof(T)});
    return result;
  }

  Report launch(const std::string& kernel, std::array<std::uint32_t, 3> grid, std::uint32_t block,
                const Arguments& arguments, const LaunchOptions& options = {}) {
    return simulator_.launch(kernel, grid, {block, 1, 1}, arguments, options);
  }
  /// Launches, and expects no finding.
  Report run(const std::string& kernel, std::array<std::uint32_t, 3> grid, std::uint32_t block,
             const Arguments& arguments) {
    Report report = launch(kernel, grid, block, arguments);
    EXPECT_EQ(report.findings.text(), "") << kernel << " on " << object_.chip().name;
    return report;
  }

  Memory& memory() { return memory_; }
  const CodeObject& object() const { return object_; }
  int lanes() const { return object_.chip().lanes; }

 private:
  /// Each file once a process: LLVM's tools take longer to read it than most tests take.
  static const CodeObject& loaded(const std::string& path) {
    static std::map<std::string, CodeObject> all;
    const auto known = all.find(path);
    return known != all.end() ? known->second : all.emplace(path, CodeObject::load(path)).first->second;
  }

  const CodeObject& object_;
  Memory memory_;
  Simulator simulator_;
};

class OnEveryChip : public ::testing::TestWithParam<std::string> {};

template <class T>
std::vector<T> random_integers(std::size_t count, std::uint64_t seed = 1) {
  std::mt19937_64 random(seed);
  std::vector<T> values(count);
  for (T& value : values) value = static_cast<T>(random());
  return values;
}

inline std::vector<float> random_floats(std::size_t count, std::uint64_t seed = 1, float scale = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace heddle::amd::simulator
