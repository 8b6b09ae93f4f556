#include "kernels/cuda/compile_table.h"

#include <elf.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "families/forward_sm90/forward_sm90.h"
#include "families/forward_sm90/shared/forward_sm90_config.h"
#include "heddle/mods.h"
#include "kernels/cuda/table_sample.h"
#include "plan/hopper/sm90_chip.h"
#include "plan/mods/streamed_read.h"

namespace heddle::cuda {

namespace {

problem::AttentionProblem problem_with_mods(const Expr& mask, const Expr& score, const Expr& weight,
                                            Normalizer normalizer) {
  problem::AttentionProblem problem;
  problem.normalizer = normalizer;
  problem.batch = problem.q_heads = problem.kv_heads = 1;
  problem.q_rows = problem.kv_rows = 8192;
  problem.sequences = {{.q_len = 8192, .kv_len = 8192}};
  problem.scale = 1;
  problem.mask_mod = mask;
  problem.score_mod = score;
  problem.weight_mod = weight;
  return problem;
}

}  // namespace

NamedMods named(std::string name, const Expr& mask, const Expr& score, const Expr& weight, Normalizer normalizer) {
  return {std::move(name), plan::kernel_mods(problem_with_mods(mask, score, weight, normalizer))};
}

NamedMods in_granules(std::string name, const Expr& mask, const Expr& score, const Expr& weight) {
  const auto placed = [](const Expr& mod) {
    return mods::by_granules(mod, Capture("q_granules", DType::i32, 1), Capture("kv_granules", DType::i32, 1));
  };
  return {"in granules, " + std::move(name),
          plan::kernel_mods(problem_with_mods(placed(mask), placed(score), placed(weight), Normalizer::softmax),
                            plan::OfKeys::separated, plan::OfPlaces::native)};
}

NamedMods with_sinks(NamedMods mods) {
  mods.name += ", sinks";
  mods.sinks = true;
  return mods;
}

NamedMods storing_mask(NamedMods mods) {
  mods.name += ", stored";
  mods.mods.stores_mask = true;
  return mods;
}

NamedMods with_normalizer(Normalizer normalizer, std::string name, const Expr& mask, const Expr& score,
                          const Expr& weight) {
  const bool sigmoid = normalizer == Normalizer::sigmoid;
  NamedMods mods = named((sigmoid ? "sigmoid, " : "none, ") + std::move(name), mask, score, weight, normalizer);
  mods.normalizer = sigmoid ? shared::Normalizer::sigmoid : shared::Normalizer::none;
  return mods;
}

shared::ForwardSm90Config paged(shared::ForwardSm90Config config, int rows, bool odd_o) {
  config.page_rows = rows;
  config.listed_pages = rows > 0 && (rows + config.kv_block / 8) % 2 == 1;  // some of them
  config.odd_o = odd_o;
  if (odd_o) config.o_type = shared::StorageType::bf16;
  return config;
}

shared::ForwardSm90Config streaming(const shared::ForwardSm90Config& config, const NamedMods& named) {
  const auto with_tiles = plan::with_streamed_tiles(plan::config_with(config, named.mods), named.mods.streamed->dtype);
  return with_tiles.value_or(config);
}

jit::Source source_of(shared::ForwardSm90Config config, bool f16, const NamedMods& named, bool lse) {
  config.f16 = f16;
  config.lse = lse;
  config.by_sequence = named.by_sequence;
  config.device_lengths = named.device_lengths;
  config.sinks = named.sinks;
  config.normalizer = named.normalizer;
  config = plan::config_with(config, named.mods);
  if (named.mods.has_key_numbers()) config = plan::with_room_for_key_numbers(config);
  return forward_sm90::source(config, named.mods, device_text::layout_of(named.mods.of_kernel(config.stores_mask())));
}

// R2UR: the low twelve bits of sm_90's 16-byte instructions.
int moves_to_uniform_registers(std::span<const char> cubin) {
  constexpr std::uint64_t kOpcode = 0xfff, kMove = 0x2ca;
  const auto read = [&]<class T>(std::size_t at, T) {
    T value;
    std::memcpy(&value, cubin.subspan(at, sizeof value).data(), sizeof value);
    return value;
  };
  const auto header = read(0, Elf64_Ehdr{});
  const auto section = [&](std::size_t i) { return read(header.e_shoff + i * sizeof(Elf64_Shdr), Elf64_Shdr{}); };
  int moves = 0;
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr text = section(i);
    if (text.sh_type != SHT_PROGBITS || (text.sh_flags & SHF_EXECINSTR) == 0) continue;
    for (std::size_t at = text.sh_offset; at < text.sh_offset + text.sh_size; at += 16) {
      if ((read(at, std::uint64_t{}) & kOpcode) == kMove) ++moves;
    }
  }
  return moves;
}

void expect_accepted(const shared::ForwardSm90Config& config, bool f16, const NamedMods& mask, bool lse) {
  const std::string kernel_text =
      fmt::format("D {}, {} x 64 queries, {} keys, {}, {}{}", plan::to_string(HeadDims{config.qk_dim, config.v_dim}),
                  config.warpgroups, config.kv_block,
                  config.fp8() ? "fp8"
                  : f16        ? "f16"
                               : "bf16",
                  mask.name, lse ? "" : ", no lse");
  SCOPED_TRACE(kernel_text);
  try {
    const jit::Source source = source_of(config, f16, mask, lse);
    if (!in_sample(source)) return;
    const auto cubin = jit::build(source);
    EXPECT_EQ(cubin->spill_bytes, 0);
    // About 50 is what the descriptors of products and tensor maps take. Where the compiler does not see that an
    // address is one for the warp it was 124 to 223, most of them in the loop, and the kernel 3 to 11 % slower.
    const int moves = moves_to_uniform_registers(cubin->bytes);
    EXPECT_GT(moves, config.orders() ? 3 : 20) << "another encoding?";  // less is left to TMA
    // Each panel of a box of pages takes its own: at D 256 79, and 85 with lengths on the device. Packed rows are
    // stored by several warps: 100 with four panels, whose values are in pages.
    EXPECT_LT(moves, config.packs() ? 105 : config.page_rows > 0 ? 90 : 80);
    fmt::print("{}: {} registers, {} moves to uniform ones, {:.0f} ms\n", kernel_text, cubin->registers, moves,
               cubin->compile_ms);
  } catch (const Error& error) {
    ADD_FAILURE() << error.what();
  }
}

void OneOfEach::offer(const std::string& name, const std::string& kernel, const jit::Source& source) {
  const auto [entry, first] = named_.try_emplace(name);
  Found& of_name = entry->second;
  if (first) of_name.asked = in_sample(source);
  if (!of_name.asked || (of_name.found && !(builds_all_ && in_sample(source)))) return;
  try {
    const auto cubin = jit::build(source);
    of_name.found = true;
    fmt::print("{}, {}: {} registers, {} moves, {:.0f} ms\n", name, kernel, cubin->registers,
               moves_to_uniform_registers(cubin->bytes), cubin->compile_ms);
  } catch (const jit::Rejected& rejected) {
    fmt::print("{}, {}: {}\n", name, kernel, rejected.what());
  }
}

OneOfEach::~OneOfEach() {
  for (const auto& [name, of_name] : named_) EXPECT_TRUE(of_name.found || !of_name.asked) << name;
}

namespace {

/// For the mods' table, if they have one.
bool has_room(const ForwardSm90Kernel& kernel, const NamedMods& named) {
  const auto config = plan::with_room_for_key_numbers(plan::config_with(kernel.config(), named.mods));
  return shared::forward_sm90_memory(config).bytes <= plan::kSm90SharedMemory;
}

}  // namespace

void expect_one_accepted(const std::vector<NamedMods>& all, Kind kind) {
  OneOfEach kernels;
  for (const NamedMods& mods : all) {
    for (const ForwardSm90Kernel& kernel : plan::forward_sm90_kernels(kind.fp8)) {
      const HeadDims dims = plan::dims_of(kernel);
      if (dims.qk == 96 || dims.qk != dims.v || !has_room(kernel, mods)) continue;
      shared::ForwardSm90Config config = kernel.config();
      config.lse_rest = kind.lse_rest;
      kernels.offer(fmt::format("D {}, {}{}", plan::to_string(dims), kind.fp8 ? "fp8, " : "", mods.name),
                    fmt::format("{} x {}", kernel.config().rows(), kernel.kv_block),
                    source_of(config, kind.f16, mods, kind.lse));
    }
  }
}

}  // namespace heddle::cuda
