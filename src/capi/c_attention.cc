// The functions of c.h that need no plan.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "errors.h"
#include "from_c.h"
#include "heddle/archive.h"
#include "heddle/check.h"
#include "heddle/devices.h"
#include "heddle/error.h"
#include "heddle/events.h"

namespace heddle::capi {
namespace {

std::vector<ConstTensorView> to_parts(const char* name, const heddle_tensor* parts, std::int64_t count) {
  require(parts, name, "array of heddle_tensor");
  std::vector<ConstTensorView> views;
  for (std::int64_t i = 0; i < count; ++i) {
    views.emplace_back(to_view(std::string(name) + "[" + std::to_string(i) + "]", parts + i));
  }
  return views;
}

// JSON is written without a tree: the destructor of nlohmann's objects allocates, which ends the process where memory
// is out. Of single texts it makes none.
std::string quoted(const std::string& text) { return nlohmann::json(text).dump(); }

std::string devices_json() {
  std::string entries;
  for (const DeviceInfo& device : devices()) {
    entries += fmt::format(R"({}{{"kind":{},"name":{},"detail":{},"memory_bytes":{}}})", entries.empty() ? "" : ",",
                           quoted(device.kind), quoted(device.name), quoted(device.detail), device.memory_bytes);
  }
  std::string result = fmt::format(R"({{"heddle":{},"devices":[{}])", quoted(version()), entries);
  if (const std::string reason = missing(DeviceKind::cuda); !reason.empty()) {
    result += fmt::format(R"(,"cuda_missing":{})", quoted(reason));
  }
  if (const std::string reason = missing(DeviceKind::rocm); !reason.empty()) {
    result += fmt::format(R"(,"rocm_missing":{})", quoted(reason));
  }
  return result + "}";
}

std::string counts_json() {
  const PlanCacheCounts plans = plan_cache_counts();
  const KernelCounts kernels = kernel_counts();
  return fmt::format(R"({{"plans":{{"hits":{},"misses":{},"evictions":{},"plans":{},"bytes":{}}},)"
                     R"("kernels":{{"compiled":{},"from_memory":{},"from_disk":{},"from_archive":{},"rejected":{}}}}})",
                     plans.hits, plans.misses, plans.evictions, plans.plans, plans.bytes, kernels.compiled,
                     kernels.from_memory, kernels.from_disk, kernels.from_archive, kernels.rejected);
}

// `result`: of a forward or of a backward.
void keep_report(const auto& result, std::int32_t* passed, const char** report) {
  if (report != nullptr) *report = keep_text(result.text());
  *passed = result.passed ? 1 : 0;
}

}  // namespace
}  // namespace heddle::capi

using namespace heddle::capi;

int32_t heddle_c_version(void) { return HEDDLE_C_VERSION; }

const char* heddle_version(void) {
  static const std::string version = heddle::version();
  return version.c_str();
}

heddle_status heddle_devices_json(const char** json) {
  return call([&] {
    require(json, "json", "place for a text");
    *json = keep_text(devices_json());
  });
}

heddle_status heddle_counts_json(const char** json) {
  return call([&] {
    require(json, "json", "place for a text");
    *json = keep_text(counts_json());
  });
}

heddle_status heddle_use_archive(const char* path) {
  return call([&] {
    require(path, "path", "the name of a file");
    heddle::use_archive(path);
  });
}

heddle_status heddle_set_event_listener(heddle_event_listener listener, void* context) {
  return call([&] {
    if (listener == nullptr) return heddle::set_event_listener({});
    heddle::set_event_listener([=](const std::string& event) { listener(event.c_str(), context); });
  });
}

heddle_status heddle_attention_into(const heddle_attention_tensors* tensors, const heddle_attention_options* options) {
  return call([&] { heddle::attention_into(to_tensors(tensors), to_options(options)); });
}

heddle_status heddle_attention_backward_into(const heddle_backward_tensors* tensors,
                                             const heddle_attention_options* options) {
  return call([&] { heddle::attention_backward_into(to_tensors(tensors), to_options(options)); });
}

heddle_status heddle_clear_plan_cache(void) {
  return call([] { heddle::clear_plan_cache(); });
}

heddle_status heddle_merge_states(const heddle_tensor* o_parts, const heddle_tensor* lse_parts, int64_t count,
                                  const heddle_tensor* o, const heddle_tensor* lse) {
  return heddle_merge_states_on(o_parts, lse_parts, count, o, lse, nullptr);
}

heddle_status heddle_merge_states_on(const heddle_tensor* o_parts, const heddle_tensor* lse_parts, int64_t count,
                                     const heddle_tensor* o, const heddle_tensor* lse, void* stream) {
  return call([&] {
    if (count < 1) {
      throw heddle::Error(heddle::ErrorCode::invalid_argument,
                          "count is " + std::to_string(count) + "; at least 1 is accepted");
    }
    heddle::merge_states(to_parts("o_parts", o_parts, count), to_parts("lse_parts", lse_parts, count), to_view("o", o),
                         to_optional_view("lse", lse), stream);
  });
}

heddle_status heddle_check_attention(const heddle_attention_tensors* tensors, const heddle_attention_options* options,
                                     int32_t* passed, const char** report) {
  return call([&] {
    require(passed, "passed", "place for an int32_t");
    const heddle::AttentionTensors views = to_tensors(tensors);
    keep_report(heddle::check_attention(views.q, views.k, views.v, to_options(options), views.o, views.lse,
                                        views.max_scores, views.lse_rest),
                passed, report);
  });
}

heddle_status heddle_check_backward(const heddle_backward_tensors* tensors, const heddle_attention_options* options,
                                    int32_t* passed, const char** report) {
  return call([&] {
    require(passed, "passed", "place for an int32_t");
    keep_report(heddle::check_backward(to_tensors(tensors), to_options(options)), passed, report);
  });
}
