// The fake driver's kernels: modules, functions, tensor maps and launches.
#include <elf.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fake_driver_state.h"

namespace heddle::cuda {
namespace {

constexpr CUresult kInvalidImage = 200, kInvalidHandle = 400;  // results that the library does not name
constexpr int kMostSharedBytes = 227 << 10;

struct Module {
  int device;
  std::vector<std::string> kernels;
  int shared_bytes = 48 << 10;  // that a launch may ask for
};
std::map<int, Module> modules;  // by number, which is that of its first function, too
constexpr int kMostModules = 1 << 20;

/// Null for a function whose module is not loaded, or is another context's.
Module* module_of(CUfunction function) {
  const auto found = modules.find(number_of(function) % kMostModules);
  return found != modules.end() && found->second.device == current_device() ? &found->second : nullptr;
}

/// The kernels of an image: of an ELF file for NVIDIA's GPUs, whose code stands in the sections ".text.NAME", or of a
/// text that begins with "good". None for another image.
std::vector<std::string> kernels_in(const char* image) {
  if (std::memcmp(image, "good", 4) == 0) return {"kernel"};
  constexpr int kCuda = 190;  // e_machine
  constexpr std::string_view kCode = ".text.";
  Elf64_Ehdr file;
  if (std::memcmp(image, ELFMAG, SELFMAG) != 0) return {};
  std::memcpy(&file, image, sizeof file);
  if (file.e_ident[EI_CLASS] != ELFCLASS64 || file.e_machine != kCuda) return {};
  const auto section = [&](std::size_t i) {
    Elf64_Shdr header;
    std::memcpy(&header, image + file.e_shoff + i * sizeof header, sizeof header);
    return header;
  };
  const char* names = image + section(file.e_shstrndx).sh_offset;
  std::vector<std::string> kernels;
  for (std::size_t i = 0; i < file.e_shnum; ++i) {
    const std::string_view name = names + section(i).sh_name;
    if (name.starts_with(kCode)) kernels.emplace_back(name.substr(kCode.size()));
  }
  return kernels;
}

void keep(FakeSequencesLaunch& launch, const CUlaunchConfig& config, void** parameters) {
  launch.config = config;
  launch.forwards = state.forwards;
  std::memcpy(&launch.params, parameters[0], sizeof launch.params);
}

std::uint32_t element_bytes(CUtensorMapDataType type) {
  switch (type) {
    case CUtensorMapDataType::uint8:
      return 1;
    case CUtensorMapDataType::uint16:
    case CUtensorMapDataType::float16:
    case CUtensorMapDataType::bfloat16:
      return 2;
    case CUtensorMapDataType::int32:
    case CUtensorMapDataType::float32:
      return 4;
  }
  return 0;
}

/// Whether a driver accepts a tensor map without interleaving (tensor_map_cases.h). The rule that 64 divides the map's
/// own address stands in the driver's manual alone.
bool map_is_good(const void* map, CUtensorMapDataType type, std::uint32_t rank, const void* address,
                 const std::uint64_t* extents, const std::uint64_t* strides, const std::uint32_t* box,
                 const std::uint32_t* element_strides, CUtensorMapSwizzle swizzle) {
  const auto divided = [](const void* pointer, std::uintptr_t by) {
    return reinterpret_cast<std::uintptr_t>(pointer) % by == 0;
  };
  if (!divided(map, 64) || !divided(address, 16) || rank < 1 || rank > 5) return false;
  const bool axes =
      std::all_of(extents, extents + rank, [](auto n) { return n >= 1 && n <= std::uint64_t{1} << 32; }) &&
      std::all_of(strides, strides + rank - 1, [](auto n) { return n % 16 == 0 && n < std::uint64_t{1} << 40; }) &&
      std::all_of(box, box + rank, [](auto n) { return n >= 1 && n <= 256; }) &&
      std::all_of(element_strides, element_strides + rank, [](auto n) { return n >= 1 && n <= 8; });
  const std::uint32_t row = box[0] * element_bytes(type);
  const std::uint32_t widest = swizzle == CUtensorMapSwizzle::none ? ~0U : 16U << static_cast<int>(swizzle);
  return axes && row > 0 && row % 16 == 0 && row <= widest;
}

}  // namespace

extern "C" {

CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int, CUjit_option*, void**) {
  NEEDS_CONTEXT;
  std::vector<std::string> kernels = kernels_in(static_cast<const char*>(image));
  if (kernels.empty()) return kInvalidImage;
  const std::scoped_lock lock(mutex);
  const int number = state.modules++;
  modules[number] = {.device = current_device(), .kernels = std::move(kernels)};
  *module = handle_of<CUmodule>(number);
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) {
  NEEDS_CONTEXT;
  const std::scoped_lock lock(mutex);
  const auto found = modules.find(number_of(module));
  if (found == modules.end() || found->second.device != current_device()) return kInvalidHandle;
  modules.erase(found);
  ++state.unloads;
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  NEEDS_CONTEXT;
  const std::scoped_lock lock(mutex);
  const Module* found = module_of(handle_of<CUfunction>(number_of(module)));
  if (found == nullptr) return kInvalidHandle;
  const auto kernel = std::find(found->kernels.begin(), found->kernels.end(), name);
  if (kernel == found->kernels.end()) return CUDA_ERROR_NOT_FOUND;
  const auto index = static_cast<int>(kernel - found->kernels.begin());
  *function = handle_of<CUfunction>(number_of(module) + index * kMostModules);
  return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int* value, CUfunction_attribute, CUfunction function) {
  NEEDS_CONTEXT;
  *value = 168;
  const std::scoped_lock lock(mutex);
  return module_of(function) != nullptr ? CUDA_SUCCESS : kInvalidHandle;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute, int value) {
  NEEDS_CONTEXT;
  if (value > kMostSharedBytes) return CUDA_ERROR_INVALID_VALUE;
  const std::scoped_lock lock(mutex);
  Module* module = module_of(function);
  if (module == nullptr) return kInvalidHandle;
  state.last_shared_bytes = module->shared_bytes = value;
  return CUDA_SUCCESS;
}
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* number, CUfunction, int, std::size_t) {
  NEEDS_CONTEXT;
  *number = 1;
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters, void**) {
  NEEDS_CONTEXT;
  const std::scoped_lock lock(mutex);
  const Module* module = module_of(function);
  if (module == nullptr || device_of(config->hStream) != current_device()) return kInvalidHandle;
  const unsigned grid = config->gridDimX * config->gridDimY * config->gridDimZ;
  const unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
  if (grid == 0 || threads == 0 || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
  if (config->sharedMemBytes > static_cast<unsigned>(module->shared_bytes)) return CUDA_ERROR_INVALID_VALUE;
  const std::string& kernel = module->kernels[static_cast<std::size_t>(number_of(function) / kMostModules)];
  char* const name = state.names[state.launches++ % kFakeNamesKept];
  name[kernel.copy(name, kFakeNameBytes - 1)] = 0;
  keep_step(FakeStep::launch, config->hStream, nullptr, name);
  const bool both = kernel == "place_and_list";
  if (both || kernel == "place_sequences") keep(state.placed, *config, parameters), ++state.placings;
  if (both || kernel == "list_tiles") keep(state.listed, *config, parameters), ++state.listings;
  if (kernel == "store_mask") {
    state.stored.config = *config;
    std::memcpy(&state.stored.params, parameters[0], sizeof state.stored.params);
    ++state.storings;
  }
  if (kernel == "copy_rows") {
    state.copied.config = *config;
    state.copied.forwards = state.forwards;
    state.copied.placings = state.placings;
    std::memcpy(&state.copied.params, parameters[0], sizeof state.copied.params);
    ++state.copyings;
  }
  if (kernel != "forward_sm90") return CUDA_SUCCESS;
  FakeLaunch& launch = state.launched[state.forwards++ % kFakeLaunchesKept];
  launch.device = current_device();
  launch.config = *config;
  for (int i = 0; i < 4; ++i) std::memcpy(&launch.maps[i], parameters[i], sizeof launch.maps[i]);
  std::memcpy(&launch.params, parameters[4], sizeof launch.params);
  std::memcpy(&launch.streamed, parameters[5], sizeof launch.streamed);
  return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, std::uint32_t rank, void* address,
                                const std::uint64_t* extents, const std::uint64_t* strides, const std::uint32_t* box,
                                const std::uint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
  NEEDS_DRIVER;
  if (!map_is_good(map, type, rank, address, extents, strides, box, element_strides, swizzle)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  FakeTensorMap given{.address = reinterpret_cast<std::uint64_t>(address),
                      .rank = static_cast<std::uint8_t>(rank),
                      .type = static_cast<std::uint8_t>(type),
                      .interleave = static_cast<std::uint8_t>(interleave),
                      .swizzle = static_cast<std::uint8_t>(swizzle),
                      .promotion = static_cast<std::uint8_t>(promotion),
                      .fill = static_cast<std::uint8_t>(fill)};
  std::copy_n(extents, rank, given.extents);
  std::copy_n(strides, rank - 1, given.strides);
  std::transform(box, box + rank, given.box, [](auto n) { return static_cast<std::uint16_t>(n); });
  std::transform(element_strides, element_strides + rank, given.element_strides,
                 [](auto n) { return static_cast<std::uint8_t>(n); });
  *map = {};
  std::memcpy(map, &given, sizeof given);
  return CUDA_SUCCESS;
}
CUresult cuTensorMapReplaceAddress(CUtensorMap* map, void* address) {
  NEEDS_DRIVER;
  map->opaque[0] = reinterpret_cast<std::uint64_t>(address);  // FakeTensorMap::address
  return map->opaque[0] % 16 == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // extern "C"

}  // namespace heddle::cuda
