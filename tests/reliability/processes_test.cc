// Forks after calls, and signals during them.
#include <gtest/gtest.h>
#include <sys/time.h>
#include <sys/wait.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include "heddle/heddle.h"
#include "reliability/calls.h"
#include "reliability/scratch_folder.h"
#include "sample.h"

namespace heddle::test {
namespace {

struct NamedCall {
  const char* name;
  Call call;
  std::uint64_t expected;
};

/// A call of each kind, made once.
std::vector<NamedCall> made_calls(const ScratchFolder& scratch, int threads) {
  std::vector<NamedCall> calls;
  for (const CallKind& kind : call_kinds()) {
    Call call = drawn_call(kind.name, sample_seed() + 3, {.threads = threads, .folder = scratch.path()});
    const std::uint64_t expected = call();
    calls.push_back({kind.name, std::move(call), expected});
  }
  return calls;
}

/// A child makes all calls, and then ends as a program does; its status.
int status_of_child(const std::vector<NamedCall>& calls) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(100);
    for (const NamedCall& made : calls) {
      if (made.call() == made.expected) continue;
      std::fprintf(stderr, "%s: another result in the child\n", made.name);
      std::_Exit(2);
    }
    std::_Exit(0);
  }
  int status = -1;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

TEST(Forks, AChildComputesAsItsParent) {
  const ScratchFolder scratch;
  const std::vector<NamedCall> calls = made_calls(scratch, 4);
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(status_of_child(calls), 0);
    for (const NamedCall& made : calls)
      EXPECT_EQ(made.call(), made.expected) << made.name << ", in the parent after it";
  }
}

TEST(Forks, AChildsChildComputesToo) {
  const ScratchFolder scratch;
  const std::vector<NamedCall> calls = made_calls(scratch, 4);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(100);
    calls.front().call();
    std::_Exit(status_of_child(calls) == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

/// As a subprocess does that another thread starts: the child calls nothing of the library.
TEST(Forks, DuringCallsOfAnotherThreadChangeNothingInTheParent) {
  const ScratchFolder scratch;
  const std::vector<NamedCall> calls = made_calls(scratch, 2);
  std::atomic<bool> ended = false;
  std::jthread caller([&] {
    for (int round = 0; round < (is_reduced() ? 2 : 5); ++round) {
      for (const NamedCall& made : calls) EXPECT_EQ(made.call(), made.expected) << made.name;
    }
    ended = true;
  });
  int forks = 0;
  for (; !ended; ++forks) {
    const pid_t child = ::fork();
    if (child == 0) std::_Exit(7);
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 7 << 8);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_GT(forks, 0);
}

std::atomic<std::int64_t> signals{0};

/// Sends SIGALRM to the process while it lives, to a handler that lets system calls end early.
class Interruptions {
 public:
  explicit Interruptions(int microseconds) {
    struct sigaction action {};
    action.sa_handler = [](int) { ++signals; };
    ::sigaction(SIGALRM, &action, &before_);
    every(microseconds);
  }
  ~Interruptions() {
    every(0);
    ::sigaction(SIGALRM, &before_, nullptr);
  }
  Interruptions(const Interruptions&) = delete;
  Interruptions& operator=(const Interruptions&) = delete;

 private:
  static void every(int microseconds) {
    const itimerval timer = {{0, microseconds}, {0, microseconds}};
    ::setitimer(ITIMER_REAL, &timer, nullptr);
  }
  struct sigaction before_ {};
};

TEST(Signals, DuringCallsChangeNothing) {
  const ScratchFolder scratch;
  const std::vector<NamedCall> calls = made_calls(scratch, 2);
  const Interruptions interruptions(300);
  signals = 0;
  for (int round = 0; round < (is_reduced() ? 3 : 20); ++round) {
    for (const NamedCall& made : calls) ASSERT_EQ(made.call(), made.expected) << made.name;
  }
  EXPECT_GT(signals, 100);
}

}  // namespace
}  // namespace heddle::test
