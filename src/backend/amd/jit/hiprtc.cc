#include "backend/amd/jit/hiprtc.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include "backend/amd/driver/hip.h"
#include "backend/jit/includes.h"
#include "backend/jit/runtime_compiler.h"
#include "heddle/error.h"

namespace heddle::amd {
namespace {

/// The functions have these types in HIP 5, 6 and 7.
using Functions = jit::RuntimeCompiler;

struct Loaded {
  Functions functions{.name = "hipRTC"};
  HiprtcInfo info;
};

/// Until HIP 5.2 its functions stood in libamdhip64 itself.
libraries::LibrarySearch search() {
  libraries::LibrarySearch search{
      .what = "hipRTC", .option = base::Option::hiprtc, .names = {}, .folders = rocm_folders()};
  const int own = started_version() / 10'000'000;
  for (const int major : {7, 6, 5}) {
    std::vector<std::string>& names = own == 0 || own == major ? search.names : search.second_names;
    names.push_back(fmt::format("libhiprtc.so.{}", major));
  }
  for (const char* name : {"libhiprtc.so", "libamdhip64.so.5"}) search.second_names.emplace_back(name);
  return search;
}

std::uintmax_t size_of_file(const std::string& path) {
  std::error_code ignored;
  const std::uintmax_t size = std::filesystem::file_size(path, ignored);
  return ignored ? 0 : size;
}

/// comgr does the work below hipRTC. Its list of chips has had one form in all versions so far.
void ask_comgr(const libraries::Library& hiprtc, HiprtcInfo& info) {
  int (*count_of)(std::size_t*) = nullptr;
  int (*name_of)(std::size_t, const char**) = nullptr;
  const auto find = [&](const libraries::Library& library) {
    return library.find(count_of, "amd_comgr_get_isa_count") && library.find(name_of, "amd_comgr_get_isa_name");
  };
  libraries::Library comgr = hiprtc;
  for (const char* name : {"libamd_comgr.so.3", "libamd_comgr.so.2"}) {
    if (find(comgr)) break;
    comgr = libraries::open_companion(hiprtc, name);
  }
  std::size_t count = 0;
  if (!find(comgr) || count_of(&count) != 0) return;
  for (std::size_t i = 0; i < count; ++i) {
    const char* name = nullptr;
    if (name_of(i, &name) != 0 || name == nullptr) continue;
    const std::string_view isa = name;  // "amdgcn-amd-amdhsa--gfx1100", perhaps with features behind a colon
    const std::string_view chip = isa.substr(isa.rfind('-') + 1);
    info.chips.emplace_back(chip.substr(0, chip.find(':')));
  }
  info.identity += fmt::format(" comgr {}", size_of_file(comgr.path()));
}

Loaded load() {
  Loaded loaded;
  const auto take = [&](const libraries::Library& library) -> std::string {
    const std::string missing =
        jit::find_functions(library, {.prefix = "hiprtc", .code = "Code", .assembly = ""}, loaded.functions);
    if (!missing.empty()) return fmt::format("has no function {}", missing);
    HiprtcInfo& info = loaded.info;
    if (loaded.functions.version(&info.major, &info.minor) != 0) return "does not say its version";
    return "";
  };
  const libraries::Library library = libraries::open_library(search(), take);
  HiprtcInfo& info = loaded.info;
  info.path = library.path();
  // A build of another patch level hardly has the same size.
  info.identity = fmt::format("hipRTC {}.{} {}", info.major, info.minor, size_of_file(info.path));
  ask_comgr(library, info);
  return loaded;
}

const Loaded& loaded() {
  struct Once {
    std::optional<Loaded> loaded;
    std::optional<Error> error;
  };
  static const Once& once = *new Once([] {
    Once result;
    try {
      result.loaded = load();
    } catch (const Error& error) {
      result.error = error;
    }
    return result;
  }());
  if (once.error) throw Error(*once.error);
  return *once.loaded;
}

void check_chip(const jit::Source& source) {
  const std::vector<std::string>& chips = hiprtc().chips;
  if (chips.empty() || std::ranges::find(chips, source.architecture) != chips.end()) return;
  throw Error(ErrorCode::unsupported,
              fmt::format("hipRTC {}.{} ({}) does not compile for {}; it compiles for {}; {} may name a newer one",
                          hiprtc().major, hiprtc().minor, hiprtc().path, source.architecture, fmt::join(chips, ", "),
                          base::name_of(base::Option::hiprtc)));
}

/// One file, without what makes sense in headers alone.
std::string text_of(const jit::Source& source) {
  constexpr std::string_view kOnce = "#pragma once\n";
  std::string text = jit::in_one_file(source);
  for (std::size_t at = 0; (at = text.find(kOnce, at)) != std::string::npos;) text.erase(at, kOnce.size() - 1);
  if (text.find('\0') == std::string::npos) return text;
  throw Error(ErrorCode::internal, fmt::format("{} holds a zero byte; hipRTC would end there", source.name));
}

}  // namespace

const HiprtcInfo& hiprtc() { return loaded().info; }

std::vector<std::string> options_of(const jit::Source& source) {
  if (source.architecture.empty()) {
    throw Error(ErrorCode::internal, fmt::format("kernel '{}' has no architecture", source.name));
  }
  std::vector<std::string> options{"--gpu-architecture=" + source.architecture, "-std=c++20", "-O3"};
  if (!source.contracts) options.emplace_back("-ffp-contract=off");
  options.insert(options.end(), source.options.begin(), source.options.end());
  return options;
}

jit::Compilation compile(const jit::Source& source) {
  check_chip(source);
  const jit::ProgramText text = {.text = text_of(source), .file = "kernel.hip"};
  return jit::compile(loaded().functions, source, text, options_of(source), false);
}

}  // namespace heddle::amd
