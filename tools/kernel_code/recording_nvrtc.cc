// A library with NVRTC's functions that writes down what it is asked to compile and compiles nothing.
//
// Each program becomes a file NUMBER.program in the folder RECORDED_PROGRAMS, numbered in the order of the calls: its
// name, its text, its options and its headers, as tools/kernel_code/programs.py reads them. Every compilation ends as a
// kernel whose tensor-core products are serialised: whoever has another candidate asks for that one too, so that all
// candidates are recorded. RECORDED_VERSION ("13.0") is the version that it gives.
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

constexpr int kCompilationFailed = 6;  // of nvrtcResult
constexpr const char* kLog = "Potential Performance Loss: wgmma.mma_async instructions are serialized";

struct Program {
  std::string record;  // its parts: length, newline, bytes
};

void add(std::string& record, const char* part) {
  record += std::to_string(std::strlen(part)) + "\n" + part;
}

bool write(const std::string& record) {
  static std::atomic<int> count = 0;
  const char* const folder = std::getenv("RECORDED_PROGRAMS");
  if (folder == nullptr) return false;
  char name[32];
  std::snprintf(name, sizeof name, "/%06d.program", count++);
  std::FILE* const file = std::fopen((folder + std::string(name)).c_str(), "wbx");
  if (file == nullptr) return false;
  const bool whole = std::fwrite(record.data(), 1, record.size(), file) == record.size();
  return std::fclose(file) == 0 && whole;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  const char* const version = std::getenv("RECORDED_VERSION");
  return version != nullptr && std::sscanf(version, "%d.%d", major, minor) == 2 ? 0 : 11;
}

const char* nvrtcGetErrorString(int) { return "NVRTC_ERROR_COMPILATION"; }

int nvrtcCreateProgram(Program** program, const char* text, const char* name, int headers,
                       const char* const* header_texts, const char* const* header_names) {
  *program = new Program;
  std::string& record = (*program)->record;
  add(record, name);
  add(record, text);
  add(record, std::to_string(headers).c_str());
  for (int i = 0; i < headers; ++i) {
    add(record, header_names[i]);
    add(record, header_texts[i]);
  }
  return 0;
}

int nvrtcCompileProgram(Program* program, int options, const char* const* option_texts) {
  for (int i = 0; i < options; ++i) add(program->record, option_texts[i]);
  if (!write(program->record)) {
    std::perror("a program could not be written to the folder RECORDED_PROGRAMS");
    std::_Exit(70);
  }
  return kCompilationFailed;
}

int nvrtcGetProgramLogSize(Program*, std::size_t* size) {
  *size = std::strlen(kLog) + 1;
  return 0;
}
int nvrtcGetProgramLog(Program*, char* log) {
  std::memcpy(log, kLog, std::strlen(kLog) + 1);
  return 0;
}
int nvrtcGetCUBINSize(Program*, std::size_t* size) {
  *size = 0;
  return 0;
}
int nvrtcGetCUBIN(Program*, char*) { return 0; }
int nvrtcGetPTXSize(Program*, std::size_t* size) {
  *size = 0;
  return 0;
}
int nvrtcGetPTX(Program*, char*) { return 0; }
int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}

}  // extern "C"
