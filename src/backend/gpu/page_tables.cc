#include "backend/gpu/page_tables.h"

namespace heddle::gpu {

shared::PageStarts page_starts_view(const AttentionOptions& options) {
  if (!options.page_starts || options.page_starts->device.kind == DeviceKind::cpu) return {};
  return {.data = static_cast<const int*>(options.page_starts->data),
          .stride = options.page_starts->strides[0],
          .entries = static_cast<int>(options.page_table->shape[0])};
}

shared::PageTable planned_table(const problem::AttentionProblem& problem, const AttentionOptions& options,
                                std::int64_t pages) {
  const ConstTensorView& view = *options.page_table;
  shared::PageTable table{};
  if (!problem.listed_pages) table.stride[0] = view.strides[0];
  table.stride[1] = view.strides[view.rank() - 1];
  table.pages = static_cast<int>(pages);
  if (problem.listed_pages) table.starts = {.data = nullptr, .stride = 1, .entries = static_cast<int>(view.shape[0])};
  return table;
}

void set_table(const AttentionOptions& options, shared::PageTable& table) {
  table.data = static_cast<const int*>(options.page_table->data);
  const shared::PageStarts starts = page_starts_view(options);
  if (starts.data != nullptr) table.starts = starts;
}

Memory upload_page_starts(const backend::DeviceInterface& devices, int device, const problem::AttentionProblem& problem,
                          shared::PageTable& table) {
  if (problem.page_starts.empty()) return {};
  Memory memory(devices, device, problem.page_starts.size() * sizeof(std::int32_t));
  devices.copy_and_wait(device, memory.data(), problem.page_starts.data(), memory.bytes());
  table.starts.data = static_cast<const int*>(memory.data());
  return memory;
}

}  // namespace heddle::gpu
