// Code objects and launches.
#include <elf.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "backend/amd/fake_hip/fake_hip_state.h"

namespace heddle::amd::fake {
namespace {

using simulator::Arguments;
using simulator::CodeObject;

/// How long the ELF file is that begins at `image`: its section headers are its last part.
std::size_t elf_bytes(const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof(header));
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return 0;
  return header.e_shoff + static_cast<std::size_t>(header.e_shnum) * header.e_shentsize;
}

/// The bytes of a launch's arguments, from one pointer for each of them.
std::vector<std::uint8_t> gathered(const simulator::KernelInfo& kernel, void** parameters) {
  std::vector<std::uint8_t> bytes;
  std::size_t n = 0;
  for (const simulator::ArgumentInfo& argument : kernel.arguments) {
    if (argument.kind.starts_with("hidden_")) continue;
    bytes.resize(std::max<std::size_t>(bytes.size(), argument.offset + argument.size));
    std::memcpy(bytes.data() + argument.offset, parameters[n++], argument.size);
  }
  return bytes;
}

/// The bytes of `extra`: {1, buffer, 2, &size, 3}. Empty and false if it is made otherwise.
bool buffer_of(void** extra, std::vector<std::uint8_t>& bytes) {
  const auto word = [](void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); };
  if (word(extra[0]) != 1 || word(extra[2]) != 2 || word(extra[4]) != 3) return false;
  const auto* first = static_cast<const std::uint8_t*>(extra[1]);
  bytes.assign(first, first + *static_cast<const std::size_t*>(extra[3]));
  return true;
}

void note(const std::string& finding) {
  state().findings += finding;
  if (setting("FAKE_HIP_PRINTS", "") == "1") fmt::print(stderr, "{}", finding);
}

HipError launch(Function& function, std::array<std::uint32_t, 3> grid, std::array<std::uint32_t, 3> block,
                std::uint32_t dynamic_lds, const std::vector<std::uint8_t>& bytes) {
  const simulator::LaunchOptions options{.dynamic_lds = dynamic_lds, .wave_order = state().wave_order};
  ++state().launches;
  try {
    Arguments arguments;
    for (const std::uint8_t byte : bytes) arguments.add(byte);
    const simulator::Report report =
        function.module->simulator.launch(function.kernel->name, grid, block, arguments, options);
    if (!report.findings.all().empty()) note(fmt::format("{}: {}", function.kernel->name, report.findings.text()));
    if (report.findings.has(simulator::Fault::kBounds)) device().broken = kIllegalAddress;
    if (report.findings.has(simulator::Fault::kRunaway)) device().broken = kLaunchFailure;
    return kSuccess;  // a GPU tells of these when it is waited for
  } catch (const std::runtime_error& error) {
    note(fmt::format("{}: {}\n", function.kernel->name, error.what()));
    return kLaunchFailure;
  }
}

}  // namespace
}  // namespace heddle::amd::fake

using namespace heddle::amd::fake;  // NOLINT: this file is the library's face

extern "C" {

int hipModuleLoadData(void** module, const void* image) {
  HEDDLE_FAKE_HIP_BEGIN;
  if (!module || !image) return answer(kInvalidValue);
  if (device().broken != kSuccess) return answer(device().broken);
  const std::size_t bytes = elf_bytes(image);
  if (bytes == 0) return answer(kInvalidImage);
  try {
    CodeObject object = CodeObject::load(std::span(static_cast<const std::uint8_t*>(image), bytes));
    if (object.chip().name != chip()) return answer(kNoBinaryForGpu);
    auto loaded = std::make_unique<Module>(std::move(object), state().memory, current_device());
    *module = loaded.get();
    state().modules.emplace(*module, std::move(loaded));
    return kSuccess;
  } catch (const std::runtime_error& error) {
    state().findings += fmt::format("hipModuleLoadData: {}\n", error.what());
    return answer(kInvalidImage);
  }
}

int hipModuleUnload(void* module) {
  HEDDLE_FAKE_HIP_BEGIN;
  return answer(state().modules.erase(module) == 1 ? kSuccess : kInvalidHandle);
}

int hipModuleGetFunction(void** function, void* module, const char* name) {
  HEDDLE_FAKE_HIP_BEGIN;
  const auto found = state().modules.find(module);
  if (found == state().modules.end()) return answer(kInvalidHandle);
  for (const auto& kernel : found->second->object.kernels()) {
    if (kernel.name != name) continue;
    auto& slot = found->second->functions[name];
    if (!slot) slot = std::make_unique<Function>(Function{found->second.get(), &kernel});
    *function = slot.get();
    return kSuccess;
  }
  return answer(kNotFound);
}

int hipModuleLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** parameters,
                          void** extra) {
  HEDDLE_FAKE_HIP_BEGIN;
  if (!function) return answer(kInvalidHandle);
  if (device().broken != kSuccess) return answer(device().broken);
  auto& kernel = *static_cast<Function*>(function);
  const std::uint64_t threads = static_cast<std::uint64_t>(block_x) * block_y * block_z;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || threads == 0 || threads > 1024 || grid_y > 65535 || grid_z > 65535)
    return answer(kInvalidValue);
  if (static_cast<std::uint64_t>(grid_x) * block_x > 0xffffffff) return answer(kInvalidValue);
  if (kernel.kernel->lds_bytes + shared_bytes > 65536) return answer(kInvalidValue);
  if (kernel.module->device != current_device()) return answer(kInvalidHandle);
  if ((parameters != nullptr) == (extra != nullptr)) return answer(kInvalidValue);
  std::vector<std::uint8_t> bytes;
  if (parameters) {
    bytes = gathered(*kernel.kernel, parameters);
  } else if (!buffer_of(extra, bytes)) {
    return answer(kInvalidValue);
  }
  if (stream != nullptr && stream == state().captured) {
    state().recorded.emplace_back([=, &kernel] {
      const std::scoped_lock again(state().mutex);
      answer(launch(kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, bytes));
    });
    return kSuccess;
  }
  return answer(launch(kernel, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, bytes));
}
}
