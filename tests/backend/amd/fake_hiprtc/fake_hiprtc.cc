// A libhiprtc without ROCm: hipRTC's functions over clang 19, which compiles for chips that no hipRTC here knows; and
// comgr's two functions that list chips, as of a library that hipRTC was linked with.
//
// Environment variables:
//   FAKE_HIPRTC_CHIPS   the chips that comgr lists, with commas between; default: those that the simulator executes,
//   and
//                       gfx1030
//   FAKE_HIPRTC_ABORTS  not empty: a chip that is not listed ends the process, as hipRTC 5.2 does
//   FAKE_HIPRTC_COUNT   a file that gets a byte a compilation
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0, kInvalidInput = 3, kInvalidProgram = 4, kCompilation = 6;

struct Program {
  std::string text, log;
  std::vector<char> code;
};

std::string setting(const char* name, const char* otherwise) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : otherwise;
}

const std::vector<std::string>& isa_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    std::string chips = setting("FAKE_HIPRTC_CHIPS", "gfx1030,gfx1100,gfx1201,gfx90a,gfx942");
    for (std::size_t begin = 0; begin < chips.size();) {
      const std::size_t end = std::min(chips.find(',', begin), chips.size());
      all.push_back("amdgcn-amd-amdhsa--" + chips.substr(begin, end - begin));
      begin = end + 1;
    }
    return all;
  }();
  return names;
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The folder of one compilation, removed with this object.
struct Folder {
  std::string path = setting("TMPDIR", "/tmp") + "/fake-hiprtc-XXXXXX";
  Folder() {
    if (mkdtemp(path.data()) == nullptr) std::abort();
  }
  ~Folder() {
    for (const char* name : {"/k.hip", "/k.hsaco", "/k.log"}) std::remove((path + name).c_str());
    rmdir(path.c_str());
  }
};

void refuse_unknown(const std::string& chip) {
  for (const std::string& name : isa_names()) {
    if (name.substr(name.rfind('-') + 1) == chip) return;
  }
  if (!setting("FAKE_HIPRTC_ABORTS", "").empty()) std::abort();
}

}  // namespace

extern "C" {

int amd_comgr_get_isa_count(std::size_t* count) {
  *count = isa_names().size();
  return 0;
}
int amd_comgr_get_isa_name(std::size_t index, const char** name) {
  *name = isa_names()[index].c_str();
  return 0;
}

int hiprtcVersion(int* major, int* minor) {
  *major = 6, *minor = 0;
  return kSuccess;
}
const char* hiprtcGetErrorString(int result) {
  return result == kSuccess ? "HIPRTC_SUCCESS" : result == kCompilation ? "HIPRTC_ERROR_COMPILATION" : "HIPRTC_ERROR";
}

int hiprtcCreateProgram(Program** program, const char* text, const char*, int headers, const char* const*,
                        const char* const*) {
  if (headers != 0) return kInvalidInput;
  *program = new Program{text, "", {}};
  return kSuccess;
}
int hiprtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return kSuccess;
}

int hiprtcCompileProgram(Program* program, int count, const char* const* options) {
  if (program == nullptr) return kInvalidProgram;
  if (const std::string counter = setting("FAKE_HIPRTC_COUNT", ""); !counter.empty()) {
    std::ofstream(counter, std::ios::app) << 'x';
  }
  const Folder folder;
  std::ofstream(folder.path + "/k.hip") << program->text;
  std::string command =
      "'" FAKE_HIPRTC_CLANG "' -x hip --offload-device-only --no-gpu-bundle-output -nogpulib -nogpuinc -cuid=heddle";
  for (int i = 0; i < count; ++i) {
    std::string option = options[i];
    constexpr const char* kArchitecture = "--gpu-architecture=";
    if (option.starts_with(kArchitecture)) {
      option = option.substr(std::strlen(kArchitecture));
      refuse_unknown(option);
      option = "--offload-arch=" + option;
    }
    command += " '" + option + "'";
  }
  command += " '" + folder.path + "/k.hip' -o '" + folder.path + "/k.hsaco' 2>'" + folder.path + "/k.log'";
  const int status = std::system(command.c_str());
  program->log = contents(folder.path + "/k.log");
  if (status != 0) return kCompilation;
  const std::string code = contents(folder.path + "/k.hsaco");
  program->code.assign(code.begin(), code.end());
  return kSuccess;
}

int hiprtcGetProgramLogSize(Program* program, std::size_t* size) {
  *size = program->log.size() + 1;
  return kSuccess;
}
int hiprtcGetProgramLog(Program* program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return kSuccess;
}
int hiprtcGetCodeSize(Program* program, std::size_t* size) {
  *size = program->code.size();
  return kSuccess;
}
int hiprtcGetCode(Program* program, char* code) {
  std::memcpy(code, program->code.data(), program->code.size());
  return kSuccess;
}
}
