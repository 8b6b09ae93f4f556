// The verbs of the program. Each adds its subcommand; when the command line names it, `chosen` becomes its work, which
// returns the exit code 0 or 1 and throws Error.
#pragma once

#include <functional>

namespace CLI {
class App;
}

namespace heddle::cli {

using Work = std::function<int()>;

void add_run(CLI::App& app, Work& chosen);
void add_check(CLI::App& app, Work& chosen);
void add_explain(CLI::App& app, Work& chosen);
void add_tune(CLI::App& app, Work& chosen);
void add_bench(CLI::App& app, Work& chosen);
void add_aot(CLI::App& app, Work& chosen);
void add_mask(CLI::App& app, Work& chosen);
void add_devices(CLI::App& app, Work& chosen);

}  // namespace heddle::cli
