// The entry of the fuzzer for the plan cache (tools/fuzz.py; fuzz_plan_cache_test.cc drives it, too), over c.h. The
// bytes are a sequence of calls that differ in a few of the things that plans depend on, with forgetting and plans
// giving way between them. Whatever was kept, each one-call function gives the bits of a plan made for this call alone.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "heddle/c.h"

namespace {

[[noreturn]] void broken(const char* what) {
  std::fprintf(stderr, "%s: %s\n", what, heddle_last_error());
  std::abort();
}

constexpr std::int64_t kHeads = 2, kRows = 24, kDim = 8;
constexpr std::size_t kCount = std::size_t{2} * kHeads * kRows * kDim;

std::array<float, kCount> numbers(float first) {
  std::array<float, kCount> made{};
  for (std::size_t i = 0; i < kCount; ++i) made[i] = first + static_cast<float>(i * 37 % 101) / 50 - 1;
  return made;
}

heddle_tensor rows_of(void* data, std::int64_t batch, std::int64_t rows, bool rows_first) {
  if (rows_first)
    return {data, HEDDLE_F32, 0, 0, 4, {batch, kHeads, rows, kDim}, {kHeads * rows * kDim, kDim, kHeads * kDim, 1}};
  return {data, HEDDLE_F32, 0, 0, 4, {batch, kHeads, rows, kDim}, {kHeads * rows * kDim, rows * kDim, kDim, 1}};
}

void call(std::uint8_t picks, std::uint8_t values) {
  static std::array<float, kCount> q = numbers(0), k = numbers(0.5), v = numbers(-0.5);
  const std::int64_t batch = 1 + (picks & 1), rows = (picks & 2) != 0 ? kRows : 9;
  const bool rows_first = (picks & 4) != 0;
  constexpr std::array kMasks = {static_cast<const char*>(nullptr), "q_idx >= kv_idx", "q_idx - kv_idx < n",
                                 "documents[q_idx] == documents[kv_idx]"};
  std::array<float, kCount> one{}, other{};
  const heddle_tensor tensors[] = {rows_of(q.data(), batch, rows, rows_first),
                                   rows_of(k.data(), batch, rows, rows_first),
                                   rows_of(v.data(), batch, rows, rows_first), rows_of(one.data(), batch, rows, false),
                                   rows_of(other.data(), batch, rows, false)};
  std::array<std::int32_t, kRows> documents{};
  for (std::size_t i = 0; i < documents.size(); ++i) documents[i] = static_cast<std::int32_t>(i) / (1 + (values & 7));
  std::array<std::int32_t, 2> lengths = {values & 7, 9};
  const heddle_tensor of_documents = {documents.data(), HEDDLE_I32, 0, 0, 1, {kRows}, {1}};
  const heddle_tensor of_lengths = {lengths.data(), HEDDLE_I32, 0, 0, 1, {batch}, {1}};
  const heddle_capture capture = {"documents", &of_documents};
  const heddle_param param = {"n", HEDDLE_PARAM_I32, values & 15, 0};
  const heddle_bindings bindings = {sizeof bindings, &param, 1, &capture, 1};
  const double scale = 0.1 * (1 + (values >> 6));
  heddle_attention_options options{};
  options.struct_size = sizeof options;
  options.mask_mod = kMasks[(picks >> 3) & 3];
  options.score_mod = (picks & 32) != 0 ? "score + f32(n) * f32(kv_idx)" : nullptr;
  options.bindings = &bindings;
  options.kv_lengths = (picks & 64) != 0 ? &of_lengths : nullptr;
  options.scale = (picks & 128) != 0 ? &scale : nullptr;
  options.threads = 1;
  options.tuning = HEDDLE_TUNING_OFF;
  heddle_attention_tensors given = {sizeof given, &tensors[0], &tensors[1], &tensors[2],
                                    &tensors[3],  nullptr,     nullptr,     nullptr};
  const heddle_status status = heddle_attention_into(&given, &options);
  heddle_plan* plan = nullptr;
  given.o = &tensors[4];
  if (heddle_plan_create(&given, &options, &plan) != status) broken("the plan of one call ends otherwise");
  if (plan != nullptr && heddle_plan_run(plan, &given, nullptr) != HEDDLE_OK) broken("a run that is refused");
  heddle_plan_destroy(plan);
  if (status == HEDDLE_OK && std::memcmp(one.data(), other.data(), sizeof one) != 0)
    broken("a kept plan computes something else");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ::setenv("HEDDLE_PLAN_CACHE_BYTES", "64M", 1);  // not what the input before left
  for (std::size_t i = 0; i + 2 < size && i < 150; i += 3) {
    // Few plans have room at times, and none.
    if (data[i] >= 230) ::setenv("HEDDLE_PLAN_CACHE_BYTES", data[i] % 2 == 0 ? "1" : data[i] % 3 == 0 ? "0" : "64M", 1);
    if (data[i] >= 250 && heddle_clear_plan_cache() != HEDDLE_OK) broken("forgetting fails");
    call(data[i + 1], data[i + 2]);
  }
  return heddle_clear_plan_cache();
}
