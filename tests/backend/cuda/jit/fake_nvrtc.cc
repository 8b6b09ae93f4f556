// A compiler with NVRTC's functions that does what the source says, line by line:
//   //log TEXT     a line of the log           //sleep N    takes so many milliseconds
//   //meet N       waits for N compilations to have come here; after 5 seconds it fails
//   //result N     the result of compiling     //cubin FILE this file's bytes; else the text itself is the "cubin"
//   //kernels      the cubin has every kernel that the text and its headers define, without code (fake_cubin.h)
// FAKE_NVRTC_VERSION ("12.2") is its version, 13.0 when not set; FAKE_NVRTC_COUNT is a file that grows by one byte with
// each compilation; FAKE_NVRTC_LINES stand before those of every source.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <thread>

#include "fake_cubin.h"

namespace {

struct Program {
  std::string text, headers, log, cubin;
  int result = 0;
};

void count() {
  const char* file = std::getenv("FAKE_NVRTC_COUNT");
  if (file == nullptr) return;
  const int descriptor = open(file, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (write(descriptor, "x", 1) != 1) std::abort();
  close(descriptor);
}

bool meet(int others) {
  static std::atomic<int> come = 0;
  const int all = (come++ / others + 1) * others;  // of this meeting: a program may hold several
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  while (come < all && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  return come >= all;
}

void obey(const std::string& line, Program& program) {
  const auto argument = [&](const char* word) {
    return line.starts_with(word) ? line.substr(std::strlen(word)) : std::string();
  };
  if (const std::string log = argument("//log "); !log.empty()) program.log += log + "\n";
  if (const std::string result = argument("//result "); !result.empty()) program.result = std::stoi(result);
  if (const std::string time = argument("//sleep "); !time.empty()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(std::stoi(time)));
  }
  if (const std::string others = argument("//meet "); !others.empty() && !meet(std::stoi(others))) program.result = 6;
  if (const std::string file = argument("//cubin "); !file.empty()) {
    std::ifstream stream(file, std::ios::binary);
    program.cubin.assign(std::istreambuf_iterator<char>(stream), {});
  }
  if (line == "//kernels") {
    program.cubin = heddle::cuda::fake_cubin(heddle::cuda::kernels_defined_in(program.text + program.headers));
  }
}

int give(const std::string& text, std::size_t zero, std::size_t* size) {
  *size = text.size() + zero;
  return 0;
}

}  // namespace

extern "C" {

int nvrtcVersion(int* major, int* minor) {
  const char* version = std::getenv("FAKE_NVRTC_VERSION");
  return std::sscanf(version == nullptr ? "13.0" : version, "%d.%d", major, minor) == 2 ? 0 : 11;
}

const char* nvrtcGetErrorString(int result) { return result == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR"; }

int nvrtcCreateProgram(Program** program, const char* text, const char*, int header_count, const char* const* headers,
                       const char* const*) {
  *program = new Program{text, "", "", "", 0};
  for (int i = 0; i < header_count; ++i) (*program)->headers += headers[i];
  return 0;
}

int nvrtcCompileProgram(Program* program, int, const char* const*) {
  count();
  const char* first = std::getenv("FAKE_NVRTC_LINES");
  std::istringstream lines((first == nullptr ? "" : first) + program->text);
  for (std::string line; std::getline(lines, line);) obey(line, *program);
  if (program->cubin.empty()) program->cubin = program->text;
  return program->result;
}

int nvrtcGetProgramLogSize(Program* program, std::size_t* size) { return give(program->log, 1, size); }
int nvrtcGetProgramLog(Program* program, char* log) {
  std::memcpy(log, program->log.c_str(), program->log.size() + 1);
  return 0;
}
int nvrtcGetCUBINSize(Program* program, std::size_t* size) { return give(program->cubin, 0, size); }
int nvrtcGetCUBIN(Program* program, char* cubin) {
  program->cubin.copy(cubin, program->cubin.size());
  return 0;
}
int nvrtcGetPTXSize(Program* program, std::size_t* size) { return give("// PTX of " + program->text, 1, size); }
int nvrtcGetPTX(Program* program, char* ptx) {
  const std::string text = "// PTX of " + program->text;
  std::memcpy(ptx, text.c_str(), text.size() + 1);
  return 0;
}
int nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}

}  // extern "C"
