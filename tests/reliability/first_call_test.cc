// Each allocation of a process's first call fails, whatever it is that is made once a process: tables, threads, what is
// known of the machine. The next call gives the result that a process gives whose memory never was out. This process
// itself makes no call: its children do, one for each allocation.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "base/parallel.h"
#include "heddle/heddle.h"
#include "reliability/call_kind_names.h"
#include "reliability/failing_allocations.h"
#include "reliability/scratch_folder.h"
#include "sample.h"

namespace heddle::test {
namespace {

/// How a child ended.
struct Answer {
  int status = -1;
  bool met = false;
  std::uint64_t hash = 0;
};

/// A child makes a call whose allocation number `at` fails, unless that is negative, and then the call once more.
Answer answer_of_child(const CallKind& kind, const ScratchFolder& scratch, std::int64_t at) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    // The constructors of a vendor's library end the process where memory is out, so none is opened (SECURITY.md).
    for (const char* name : {"HEDDLE_HIP", "HEDDLE_CUDA_DRIVER"}) ::setenv(name, "/dev/null", 1);
    base::available_cores();  // oneTBB's own first call waits for ever after one that threw (SECURITY.md)
    Answer answer;
    const Call call = drawn_call(kind.name, sample_seed() + 4, {.threads = 2, .folder = scratch.path()});
    if (at >= 0) {
      const FailingAllocation failing(at, FailingAllocation::kOne);
      try {
        call();
      } catch (const std::bad_alloc&) {
      } catch (const Error& error) {
        if (error.code() != ErrorCode::out_of_memory) std::_Exit(3);
      }
      answer.met = FailingAllocation::met();
    }
    answer.hash = call();
    std::_Exit(::write(ends[1], &answer, sizeof answer) == sizeof answer ? 0 : 4);
  }
  ::close(ends[1]);
  Answer answer;
  const bool is_told = ::read(ends[0], &answer, sizeof answer) == sizeof answer;
  ::close(ends[0]);
  while (::waitpid(child, &answer.status, 0) < 0 && errno == EINTR) {
  }
  if (!is_told && answer.status == 0) answer.status = -1;
  return answer;
}

class FirstCall : public testing::TestWithParam<CallKind> {};

TEST_P(FirstCall, OfWhichAnAllocationFails) {
  const ScratchFolder scratch;
  const Answer whole = answer_of_child(GetParam(), scratch, -1);
  ASSERT_EQ(whole.status, 0);
  const std::int64_t step = takes_all() ? 3 : 23;
  int failed = 0;
  for (std::int64_t at = static_cast<std::int64_t>(drawn_case(2, static_cast<std::size_t>(step)));;
       at = allocation_behind(at, step)) {
    const Answer answer = answer_of_child(GetParam(), scratch, at);
    ASSERT_EQ(answer.status, 0) << "after allocation " << at;
    ASSERT_EQ(answer.hash, whole.hash) << "after allocation " << at;
    if (!answer.met) break;
    ++failed;
  }
  std::printf("%s: %d allocations failed\n", GetParam().name, failed);
}

INSTANTIATE_TEST_SUITE_P(Calls, FirstCall, testing::ValuesIn(call_kinds().begin(), call_kinds().end()), name_of);

}  // namespace
}  // namespace heddle::test
