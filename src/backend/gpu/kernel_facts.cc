#include "backend/gpu/kernel_facts.h"

#include <fmt/format.h>

namespace heddle::gpu {

base::JsonTree kernel_facts(const Gpu& gpu, const jit::Source& source, const jit::MachineCode& code,
                            const std::string& summary, std::size_t list_bytes) {
  base::JsonTree facts;
  facts["summary"] = fmt::format("{}: {}", source.name, summary);
  facts["name"] = source.name;
  facts["cache key"] = gpu.key_of(source);
  facts["origin"] = jit::name(code.from);
  facts["compile ms"] = code.compile_ms;
  facts["registers"] = code.registers;
  facts["list bytes"] = list_bytes;
  facts["cache"] = gpu.cache_notes();
  return facts;
}

}  // namespace heddle::gpu
