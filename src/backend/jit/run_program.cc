#include "backend/jit/run_program.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <system_error>

#include "base/uninterrupted.h"

namespace heddle::jit {

namespace fs = std::filesystem;

fs::path find_program(std::span<const std::string> names, std::span<const fs::path> folders) {
  std::vector<fs::path> all;
  const char* const variable = std::getenv("PATH");
  const std::string path = variable == nullptr ? "" : variable;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find(':', begin), path.size());
    all.emplace_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  all.insert(all.end(), folders.begin(), folders.end());
  for (const fs::path& folder : all) {
    for (const std::string& name : names) {
      if (folder.is_absolute() && ::access((folder / name).c_str(), X_OK) == 0) return folder / name;
    }
  }
  return {};
}

void run_program(const fs::path& program, std::vector<std::string> arguments, const fs::path& output) {
  std::string name = program.filename().string();
  std::vector<char*> pointers{name.data()};
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  if (::posix_spawn_file_actions_init(&actions) != 0) return;
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  int status = -1;
  const bool started = ::posix_spawn(&child, program.c_str(), &actions, nullptr, pointers.data(), environ) == 0;
  ::posix_spawn_file_actions_destroy(&actions);
  if (started) base::uninterrupted([&] { return ::waitpid(child, &status, 0); });
  std::error_code ignored;
  if (status != 0) fs::remove(output, ignored);
}

}  // namespace heddle::jit
