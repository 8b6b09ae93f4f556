#include "backend/cuda/jit/nvrtc.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <optional>
#include <string_view>

#include "backend/cuda/driver/driver.h"
#include "backend/cuda/jit/nvrtc_options.h"
#include "backend/jit/includes.h"
#include "backend/jit/runtime_compiler.h"
#include "backend/libraries/library.h"

namespace heddle::cuda::jit {
namespace {

using heddle::jit::headers_in_use;
using libraries::Library;

// The oldest that was tried with what the kernels use of sm_90a.
constexpr int kOldestMajor = 12, kOldestMinor = 3;

/// The functions have these types in NVRTC's ABI since 11.1.
using Functions = heddle::jit::RuntimeCompiler;

struct Nvrtc {
  Functions functions{.name = "NVRTC"};
  Compiler compiler;
};

/// Empty when the library will do, and `nvrtc` is it. An old one may lack functions, but its age is the news.
std::string refuse(const Library& library, Nvrtc& nvrtc) {
  const std::string missing =
      heddle::jit::find_functions(library, {.prefix = "nvrtc", .code = "CUBIN", .assembly = "PTX"}, nvrtc.functions);
  if (nvrtc.functions.version == nullptr) return fmt::format("has no function {}", missing);
  Compiler& compiler = nvrtc.compiler;
  if (nvrtc.functions.version(&compiler.major, &compiler.minor) != 0) return "does not say its version";
  if (std::pair(compiler.major, compiler.minor) < std::pair(kOldestMajor, kOldestMinor)) {
    return fmt::format("is version {}; {}.{} is the oldest accepted", compiler.version(), kOldestMajor, kOldestMinor);
  }
  if (!missing.empty()) return fmt::format("has no function {}", missing);
  compiler.path = library.path();
  return "";
}

Nvrtc load() {
  constexpr std::array<std::string_view, 2> kWheels{"cu13", "cuda_nvrtc"};
  LibraryNames names = library_names(started_version());
  libraries::LibrarySearch search{
      .what = "NVRTC",
      .option = base::Option::nvrtc,
      .names = std::move(names.first),
      .folders = libraries::toolkit_folders(),
      .second_names = std::move(names.second),
      .old_names = {"libnvrtc.so.11.2", "libnvrtc.so.11.1", "libnvrtc.so.11.0", "libnvrtc.so.11"}};
  for (std::filesystem::path& folder : libraries::wheel_folders(kWheels)) search.folders.push_back(std::move(folder));
  Nvrtc nvrtc;
  libraries::open_library(search, [&](const Library& library) { return refuse(library, nvrtc); });
  // NVRTC gives no patch level, but another build of it hardly has the same size.
  std::error_code ignored;
  const auto size = std::filesystem::file_size(nvrtc.compiler.path, ignored);
  nvrtc.compiler.identity = fmt::format("NVRTC {} {}", nvrtc.compiler.version(), size);
  return nvrtc;
}

const Nvrtc& nvrtc() {
  struct Loaded {
    std::optional<Nvrtc> nvrtc;
    std::optional<Error> error;
  };
  static const Loaded loaded = [] {
    Loaded result;
    try {
      result.nvrtc = load();
    } catch (const Error& error) {
      result.error = error;
    }
    return result;
  }();
  if (loaded.error) throw Error(*loaded.error);
  return *loaded.nvrtc;
}

/// NVRTC opens a second library by name alone, and may not find it, or find another build's, when it was itself opened
/// by path. Opened here first, the one that stands beside it is taken.
void open_builtins(const Compiler& compiler) {
  static const bool once = [&] {
    std::error_code error;
    const std::filesystem::path real = std::filesystem::canonical(compiler.path, error);
    if (error) return false;
    const auto file = real.parent_path() / fmt::format("libnvrtc-builtins.so.{}", compiler.version());
    return dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL) != nullptr;
  }();
  static_cast<void>(once);
}

void require_text(const std::string& text, const std::string& what) {
  if (text.find('\0') == std::string::npos) return;
  throw Error(ErrorCode::internal, fmt::format("{} holds a zero byte; NVRTC would end there", what));
}

heddle::jit::ProgramText text_of(const Source& source) {
  require_text(source.text, source.name);
  heddle::jit::ProgramText program = {.text = source.text, .file = source.name + ".cu"};
  for (const Header* header : headers_in_use(source)) {
    program.headers.emplace_back(header->text);
    require_text(program.headers.back(), header->name);
    program.header_names.push_back(header->name.c_str());
  }
  return program;
}

}  // namespace

LibraryNames library_names(int driver_version) {
  LibraryNames names;
  for (const int major : {13, 12}) {
    const bool suits = driver_version == 0 || major <= driver_version / 1000;
    (suits ? names.first : names.second).push_back(fmt::format("libnvrtc.so.{}", major));
  }
  // Without a number it may be any version, the newest as a rule.
  (names.second.empty() ? names.first : names.second).push_back("libnvrtc.so");
  return names;
}

std::string Compiler::version() const { return fmt::format("{}.{}", major, minor); }

const Compiler& compiler() { return nvrtc().compiler; }

Compilation compile(const Source& source, bool want_ptx) {
  const Functions& functions = nvrtc().functions;
  open_builtins(nvrtc().compiler);
  return heddle::jit::compile(functions, source, text_of(source), options_of(source), want_ptx);
}

}  // namespace heddle::cuda::jit
