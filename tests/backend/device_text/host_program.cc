#include "backend/device_text/host_program.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace heddle::device_text::test {
namespace {

// After the text of the mods. A call goes the way of a kernel: uniform, row and column, element.
constexpr const char* kEnd = R"(
struct Result {{ int type; double real; int integer; }};
inline void store(Result* result, float x) {{ *result = {{0, x, 0}}; }}
inline void store(Result* result, double x) {{ *result = {{0, x, 0}}; }}
inline void store(Result* result, int x) {{ *result = {{1, 0, x}}; }}
inline void store(Result* result, bool x) {{ *result = {{2, 0, x ? 1 : 0}}; }}
using Call = void (*)(const heddle::shared::ModValues&, double, int, int, int, int, Result*);
#define CALL(name) [](const heddle::shared::ModValues& mod, double score, int b, int h, int q, int kv, Result* result) {{ \
  const auto u = heddle::name##_uniform(mod, b, h); \
  const auto r = heddle::name##_row(mod, u, b, h, q); \
  const auto c = heddle::name##_column(mod, u, b, h, kv); \
  store(result, heddle::name##_element(mod, u, r, c, score, b, h, q, kv)); }}
extern "C" const Call calls[];
const Call calls[] = {{
{}}};
)";

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

int HostProgram::add(const Expr& mod, const ModLayout& layout) {
  const std::string name = fmt::format("mod{}", count_);
  text_ += mod_text(name, mod, layout, TakesScore::yes);
  table_ += fmt::format("CALL({}),\n", name);
  return count_++;
}

std::shared_ptr<void> load_on_host(const std::string& text) {
  namespace fs = std::filesystem;
  static int number = 0;
  const fs::path stem = fs::path(HEDDLE_BUILD_DIR) / fmt::format("mods-{}-{}", getpid(), number++);
  const std::string source = stem.string() + ".cc", library = stem.string() + ".so", log = stem.string() + ".log";
  std::ofstream(source) << text;
  // The file of this folder goes before that of kernels/nvidia under the same name.
  const std::string command = fmt::format(
      "'{}' -std=c++20 -O0 -w -ffp-contract=off -fPIC -shared {} -I'{}/tests/backend/device_text/host' "
      "-I'{}/kernels/common' -I'{}/kernels/nvidia' -I'{}/src' -o '{}' '{}' >'{}' 2>&1",
      HEDDLE_CXX, HEDDLE_CXX_TRAPS, HEDDLE_SOURCE_DIR, HEDDLE_SOURCE_DIR, HEDDLE_SOURCE_DIR, HEDDLE_SOURCE_DIR, library,
      source, log);
  if (std::system(command.c_str()) != 0) throw std::runtime_error(command + "\n" + contents(log));
  void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  for (const std::string& file : {source, library, log}) fs::remove(file);
  return {handle, dlclose};
}

void HostProgram::compile() {
  library_ = load_on_host(text_ + fmt::format(fmt::runtime(kEnd), table_));
  calls_ = static_cast<const Call*>(dlsym(library_.get(), "calls"));
}

std::vector<expr::Value> HostProgram::values(int mod, const shared::ModValues& bound,
                                             std::span<const expr::Element> elements) const {
  using expr::Leaf;
  shared::ModValues given = bound;
  std::vector<expr::Value> all;
  for (const expr::Element& element : elements) {
    given.q_len = element[Leaf::q_len];
    given.kv_len = element[Leaf::kv_len];
    given.q_start = element[Leaf::q_start];
    Result result{};
    calls_[mod](given, element.score, element[Leaf::b], element[Leaf::h], element[Leaf::q_idx], element[Leaf::kv_idx],
                &result);
    all.push_back(result.type == 0   ? expr::Value(result.real)
                  : result.type == 1 ? expr::Value(result.integer)
                                     : expr::Value(result.integer != 0));
  }
  return all;
}

}  // namespace heddle::device_text::test
