// The program `heddle`: attention with text mods on tensor files.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "heddle/devices.h"
#include "heddle/error.h"
#include "output.h"
#include "verbs.h"

namespace heddle::cli {
namespace {

constexpr int kDone = 0, kFailed = 1, kWrongUsage = 2;

int report(int code, const char* sentence) {
  std::fputs("heddle: ", stderr);
  std::fputs(sentence, stderr);
  std::fputs("\n", stderr);
  return code;
}

/// A caller's mistake (options, mods, names, shapes) is wrong usage; any other error (files, memory, devices, a feature
/// that this build lacks) is a failed job.
int guarded(const Work& work) {
  try {
    return work();
  } catch (const Error& error) {
    return report(error.code() == ErrorCode::invalid_argument ? kWrongUsage : kFailed, error.what());
  } catch (const std::bad_alloc&) {
    return report(kFailed, "out of memory");
  } catch (const std::exception& error) {
    return report(kFailed, error.what());
  }
}

/// CLI11's help with one empty line between groups.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() {
    column_width(34);
    label("SUBCOMMAND", "VERB");
  }
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string text = CLI::Formatter::make_help(app, std::move(name), mode);
    for (std::size_t twice = 0; (twice = text.find("\n\n\n")) != std::string::npos;) text.erase(twice, 1);
    return text;
  }
};

/// --help and --version, which CLI11 reports as exceptions.
int answer(const CLI::App& app, const CLI::Success& request) {
  std::ostringstream text;
  app.exit(request, text, text);
  print_text(text.str());
  return kDone;
}

int dispatch(int count, char** arguments) {
  CLI::App app("Fused attention with your own score and mask functions.", "heddle");
  app.set_version_flag("--version", "heddle " + version());
  app.require_subcommand(1);
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(
      "`heddle VERB --help` shows a verb's options and an example.\n"
      "Exit codes: 0 done, 1 the job failed, 2 wrong usage.");

  Work chosen;
  add_run(app, chosen);
  add_check(app, chosen);
  add_explain(app, chosen);
  add_tune(app, chosen);
  add_bench(app, chosen);
  add_aot(app, chosen);
  add_mask(app, chosen);
  add_devices(app, chosen);
  for (CLI::App* verb : app.get_subcommands({})) verb->group("Verbs");

  if (count < 2) {
    std::fputs(app.help().c_str(), stderr);
    return kWrongUsage;
  }
  const std::string_view first = arguments[1];
  const auto is_first = [&](const CLI::App* verb) { return verb->get_name() == first; };
  if (!first.starts_with('-') && app.get_subcommands(is_first).empty()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("there is no verb '{}'; see `heddle --help`", first));
  }
  try {
    app.parse(count, arguments);
  } catch (const CLI::Success& request) {
    return answer(app, request);
  } catch (const CLI::ParseError& error) {
    const auto verbs = app.get_subcommands();
    const std::string verb = verbs.empty() ? "" : " " + verbs.front()->get_name();
    throw Error(ErrorCode::invalid_argument, fmt::format("{}\nSee `heddle{} --help`.", error.what(), verb));
  }
  return chosen();
}

}  // namespace
}  // namespace heddle::cli

int main(int count, char** arguments) {
  // A file past `ulimit -f` is then an error as a full disk is, and the temporary file goes away.
  std::signal(SIGXFSZ, SIG_IGN);
  return heddle::cli::guarded([=] { return heddle::cli::dispatch(count, arguments); });
}
