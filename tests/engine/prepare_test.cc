// Which of the planned kernels is taken when the compiler makes the first ones badly.
#include "engine/prepare.h"

#include <gtest/gtest.h>

#include "backend/cuda/jit/cuda_jit.h"
#include "expect_error.h"
#include "families/table.h"

namespace heddle::test {
namespace {

class NamedKernel final : public backend::Kernel {
 public:
  explicit NamedKernel(std::string name) : name_(std::move(name)) {}
  void launch(const backend::RunArguments&) const override {}
  base::JsonTree facts() const override { return base::JsonTree::object().add("summary", name_); }

 private:
  std::string name_;
};

plan::Choice choice(std::int64_t keys, std::vector<std::string> rejected = {}) {
  plan::Plan plan;
  plan.family = plan::family_of("forward_sm90", BackendChoice::cuda);
  plan.tile = {128, keys};
  plan.rejected = std::move(rejected);
  return {plan, std::make_shared<BlockMask>()};
}

// Prepares tiles of at most that many keys; the compiler rejects larger ones.
engine::Prepare accepts_up_to(std::int64_t keys) {
  return [keys](const plan::Choice& choice) -> std::unique_ptr<backend::Kernel> {
    const std::int64_t own = choice.plan.tile.kv;
    if (own > keys) {
      throw cuda::jit::Rejected(ErrorCode::compile, std::to_string(own) + " bytes are spilled\nptxas info: long log");
    }
    return std::make_unique<NamedKernel>(std::to_string(own));
  };
}

TEST(Prepare, TakesTheFirstThatTheCompilerMakesWell) {
  std::vector<plan::Choice> choices = {choice(176, {"96 does not fit", "128 is slower"}),
                                       choice(128, {"96 does not fit"}), choice(64)};
  const auto rows = choices[1].block_mask;
  const engine::Prepared first = engine::prepare_first(choices, accepts_up_to(200));
  EXPECT_EQ(first.plan.tile.kv, 176);
  EXPECT_EQ(first.plan.rejected, std::vector<std::string>({"96 does not fit", "128 is slower"}));

  const engine::Prepared second = engine::prepare_first(choices, accepts_up_to(128));
  EXPECT_EQ(second.plan.tile.kv, 128);
  EXPECT_EQ(second.block_mask, rows);
  EXPECT_EQ(second.kernel->facts().at("summary").text(), "128");
  EXPECT_EQ(second.plan.rejected,
            std::vector<std::string>({"forward_sm90 with tile 128 x 176: 176 bytes are spilled", "96 does not fit"}));
}

// Rather a kernel that spills than none.
TEST(Prepare, TakesOneThatSpillsWhereAllDo) {
  const engine::Prepare spills = [](const plan::Choice& choice) -> std::unique_ptr<backend::Kernel> {
    const std::string own = std::to_string(choice.plan.tile.kv);
    if (choice.plan.has_alternative || choice.plan.tile.kv == 176) throw cuda::jit::Rejected(ErrorCode::compile, own);
    return std::make_unique<NamedKernel>(own);
  };
  const engine::Prepared taken = engine::prepare_first({choice(176), choice(128), choice(64)}, spills);
  EXPECT_EQ(taken.plan.tile.kv, 128);
  EXPECT_FALSE(taken.plan.has_alternative);
  EXPECT_EQ(taken.plan.rejected,
            std::vector<std::string>({"forward_sm90 with tile 128 x 176: 176", "forward_sm90 with tile 128 x 128: 128",
                                      "forward_sm90 with tile 128 x 64: 64"}));
}

TEST(Prepare, SaysWhyNoneIsTaken) {
  expect_error(
      [] {
        engine::prepare_first({choice(176), choice(128)}, accepts_up_to(0));
      },
      ErrorCode::compile,
      "the compiler makes none of the planned kernels well:\n"
      "forward_sm90 with tile 128 x 176: 176 bytes are spilled\nptxas info: long log\n"
      "forward_sm90 with tile 128 x 128: 128 bytes are spilled\nptxas info: long log");
}

TEST(Prepare, PassesOtherErrorsOn) {
  int asked = 0;
  const engine::Prepare fails = [&](const plan::Choice&) -> std::unique_ptr<backend::Kernel> {
    ++asked;
    throw Error(ErrorCode::out_of_memory, "no memory");
  };
  expect_error(
      [&] {
        engine::prepare_first({choice(176), choice(128)}, fails);
      },
      ErrorCode::out_of_memory, "no memory");
  EXPECT_EQ(asked, 1);
}

}  // namespace
}  // namespace heddle::test
