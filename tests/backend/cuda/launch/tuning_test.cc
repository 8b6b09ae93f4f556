// Plans on a GPU that a measurement chose: what is compiled, run and left behind. The fake driver's kernels take no
// time.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "backend/libraries/own_folder.h"
#include "launch_case.h"
#include "scoped_environment.h"

namespace heddle::cuda {
namespace {

using Json = nlohmann::json;

class LaunchTuned : public LaunchCase {
 protected:
  CallTensors call_{{.q_rows = 70, .kv_rows = 100, .dim = 64}};

  Json explained(Tuning tuning) {
    AttentionOptions options;
    options.tuning = tuning;
    return Json::parse(AttentionPlan(call_.tensors(), options).explain_json());
  }
};

TEST_F(LaunchTuned, EachKernelIsMeasuredAndTheFastestServesLaterPlans) {
  const Json planned = explained(Tuning::off);
  const OwnFolder folder;
  std::filesystem::copy(std::getenv("HEDDLE_CACHE_DIR"), folder.path(),  // kernels that were compiled before
                        std::filesystem::copy_options::recursive);
  std::filesystem::permissions(folder.path(), std::filesystem::perms::owner_all);
  const ScopedVariable cache("HEDDLE_CACHE_DIR", folder.path().c_str());
  const int allocations = fake().allocations - fake().frees, launches = fake().launches;
  const Json tuned = explained(Tuning::again)["tuned"];
  EXPECT_EQ(tuned["measured"], "now");
  EXPECT_GE(tuned["kernels"].size(), 2U);
  EXPECT_GE(fake().launches - launches, 7 * 2) << "each kernel runs, in turns";
  EXPECT_EQ(fake().allocations - fake().frees, allocations) << "nothing of the measurement stays";

  std::string record;
  for (const auto& file : std::filesystem::directory_iterator(folder.path())) {
    if (file.path().filename().string().starts_with("tuned-")) record = file.path();
  }
  Json times = Json::parse(std::ifstream(record));
  std::sort(times["kernels"].begin(), times["kernels"].end(),
            [](const Json& x, const Json& y) { return x["kernel"] < y["kernel"]; });
  for (Json& time : times["kernels"]) time["seconds"] = 1e-3;
  std::ofstream(record) << times;
  const Json later = explained(Tuning::recorded);
  EXPECT_EQ(later["tuned"]["kernel"], times["kernels"][0]["kernel"]);
  EXPECT_EQ(explained(Tuning::off)["plan"], planned["plan"]);
}

}  // namespace
}  // namespace heddle::cuda
