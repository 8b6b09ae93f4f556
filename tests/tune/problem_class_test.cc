// Which problems share a measurement, and which do not.
#include "tune/problem_class.h"

#include <gtest/gtest.h>

#include <functional>

#include "heddle/mods.h"
#include "request_case.h"

namespace heddle::tune {
namespace {

std::string class_after(const std::function<void(RequestCase&)>& change) {
  RequestCase one;
  one.options.mask_mod = parse("q_idx - kv_idx < window", symbols_of(param("window", ExprType::i32)));
  one.options.bindings.params["window"] = 8;
  change(one);
  return problem_class(one.request());
}
const std::string& plain() {
  static const std::string text = class_after([](RequestCase&) {});
  return text;
}

TEST(ProblemClass, IsSharedByProblemsOfAboutASize) {
  EXPECT_EQ(class_after([](RequestCase& one) { one.q[2] = 65, one.k[2] = one.v[2] = 128; }), plain());
  EXPECT_EQ(class_after([](RequestCase& one) { one.options.scale = 3; }), plain());
}

TEST(ProblemClass, DoesNotDependOnThreads) {
  EXPECT_EQ(class_after([](RequestCase& one) { one.options.threads = 1; }), plain());
}

TEST(ProblemClass, TellsApartWhatNeedsOtherKernels) {
  const std::function<void(RequestCase&)> changes[] = {
      [](RequestCase& one) { one.q[2] = 129; },
      [](RequestCase& one) { one.k[2] = one.v[2] = 129; },
      [](RequestCase& one) { one.q[0] = one.k[0] = one.v[0] = 8; },
      [](RequestCase& one) { one.q[3] = one.k[3] = 16; },
      [](RequestCase& one) { one.v[3] = 16; },
      [](RequestCase& one) { one.q[1] = 2; },
      [](RequestCase& one) { one.dtype = DType::bf16; },
      [](RequestCase& one) { one.lse = false; },
      [](RequestCase& one) { one.lse = false, one.options.normalizer = Normalizer::sigmoid; },
      [](RequestCase& one) { one.options.bindings.params["window"] = 9; },
      [](RequestCase& one) { one.options.score_mod = parse("2 * score"); },
      [](RequestCase& one) { one.options.weight_mod = parse("2.0"); },
      [](RequestCase& one) { one.machine.cpu.l2_bytes *= 2; },
      [](RequestCase& one) { one.machine.cpu.simd_target = "AVX9"; },
      [](RequestCase& one) {
        device::MatrixUnit& unit = one.machine.cpu.matrix_unit;
        unit = unit == device::MatrixUnit::none ? device::MatrixUnit::amx : device::MatrixUnit::none;
      },
  };
  for (std::size_t i = 0; i < std::size(changes); ++i) EXPECT_NE(class_after(changes[i]), plain()) << i;
}

}  // namespace
}  // namespace heddle::tune
