// Runs a piece of a test in a process of its own: what is loaded once a process can be loaded anew for each.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <string>

namespace heddle {

/// Runs `report` in a child of this process and returns its text. The child ends as programs do, with the destructors
/// of all static objects. An exception's sentence stands in for a report. The caller must not have loaded what the
/// child is to load.
template <class Report>
std::string in_child(Report&& report) {
  int ends[2];
  if (pipe(ends) != 0) return "no pipe";
  const pid_t child = fork();
  if (child == 0) {
    std::string text;
    try {
      text = report();
    } catch (const std::exception& error) {
      text = std::string("threw: ") + error.what();
    }
    const bool sent = write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
    close(ends[1]);
    std::exit(sent ? 0 : 1);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, got);
  close(ends[0]);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the child ended badly, status " << status;
  return text;
}

}  // namespace heddle
