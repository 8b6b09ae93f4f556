// NCCL: what is said of a library that is not there, too old or incomplete; communicators over the fake one, whose
// ranks are threads, and what they say of ranks that do not come. Each in a process of its own: a library is loaded
// once.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "backend/cuda/driver/in_child.h"
#include "backend/cuda/nccl/fake_nccl.h"
#include "heddle/error.h"
#include "heddle/nccl_communicator.h"

namespace heddle::cuda {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

std::string missing(const char* file, const char* version = "22809") {
  return in_child([&]() -> std::string {
    setenv("HEDDLE_NCCL", file, 1);
    setenv("FAKE_NCCL_VERSION", version, 1);
    const std::string sentence = nccl_missing();
    try {
      make_nccl_id();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported || error.what() != sentence) return std::string("not ") + error.what();
      return "refused: " + sentence;
    }
    return "loaded: " + sentence;
  });
}

TEST(Nccl, ALibraryThatDoesNotServe) {
  EXPECT_THAT(missing("/no/such/libnccl.so.2"),
              AllOf(StartsWith("refused: NCCL cannot be used: HEDDLE_NCCL is '/no/such/libnccl.so.2'; "),
                    HasSubstr("No such file")));
  EXPECT_THAT(missing(FAKE_DRIVER), EndsWith(" is no NCCL: it does not tell its version"));
  EXPECT_THAT(missing(FAKE_NCCL, "21200"), EndsWith(" is NCCL 2.12.0; 2.14.0 is the oldest accepted"));
  EXPECT_THAT(missing(LACKING_NCCL), EndsWith(" is NCCL 2.28.9, and lacks the function ncclRecv"));
  EXPECT_EQ(missing(FAKE_NCCL), "loaded: ");
}

/// Runs call(rank, id) in a thread for each rank, in a child process; the sentences of all, a line each, and of
/// `after`.
template <class Call, class After>
std::string over_ranks(int ranks, Call&& call, After&& after) {
  return in_child([&] {
    setenv("HEDDLE_NCCL", FAKE_NCCL, 1);
    setenv("HEDDLE_CUDA_DRIVER", FAKE_DRIVER, 1);
    const NcclId id = make_nccl_id();
    std::vector<std::string> said(static_cast<std::size_t>(ranks));
    {
      std::vector<std::jthread> threads;
      for (int rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
          try {
            said[static_cast<std::size_t>(rank)] = call(rank, id);
          } catch (const Error& error) {
            said[static_cast<std::size_t>(rank)] = error.what();
          }
        });
      }
    }
    std::string text;
    for (const std::string& one : said) text += one + "\n";
    return text + after(*fake_nccl(FAKE_NCCL));
  });
}
std::string nothing(const FakeNccl&) { return ""; }

// Each rank gives rank r the bytes 10 * rank + r, of which there are r + 1; itself too, and rank 0 nothing.
TEST(NcclCommunicator, BringsEachRankItsBytes) {
  const std::string said = over_ranks(
      3,
      [](int rank, const NcclId& id) -> std::string {
        NcclCommunicator communicator(id, rank, 3, rank % 2);
        if (communicator.rank() != rank || communicator.size() != 3) return "other numbers";
        if (communicator.device() != Device{DeviceKind::cuda, rank % 2}) return "another device";
        const std::vector<std::int64_t> out{0, 2, 3};
        const std::int64_t of_each = rank == 0 ? 0 : rank + 1;
        const std::vector<std::int64_t> in(3, of_each);
        const Tensor send = Tensor::empty_on(communicator.device(), DType::u8, {5}),
                     receive =
                         Tensor::empty_on(communicator.device(), DType::u8, {std::max<std::int64_t>(1, 3 * of_each)});
        auto* bytes = static_cast<unsigned char*>(send.data());
        bytes[0] = bytes[1] = static_cast<unsigned char>(10 * rank + 1);
        bytes[2] = bytes[3] = bytes[4] = static_cast<unsigned char>(10 * rank + 2);
        communicator.exchange(send.data(), out, receive.data(), in, nullptr);
        communicator.wait(nullptr);
        const auto* came = static_cast<const unsigned char*>(receive.data());
        for (std::int64_t i = 0; i < 3 * of_each; ++i) {
          if (came[i] != 10 * (i / of_each) + rank) return "wrong bytes";
        }
        if (!communicator.agree(7)) return "do not agree on 7";
        if (communicator.agree(static_cast<std::uint64_t>(rank == 2))) return "agree on different numbers";
        return "right";
      },
      [](const FakeNccl& fake) {
        return std::to_string(fake.groups) + " groups, " + std::to_string(fake.outside_of_groups) + " calls outside, " +
               std::to_string(fake.destroyed) + " destroyed, " + std::to_string(fake.aborted) + " aborted";
      });
  EXPECT_EQ(said, "right\nright\nright\n9 groups, 0 calls outside, 3 destroyed, 0 aborted");
}

TEST(NcclCommunicator, ARankThatDoesNotComeIsAnErrorInTime) {
  const std::string joining = over_ranks(
      2,
      [](int rank, const NcclId& id) -> std::string {
        if (rank == 1) return "elsewhere";
        NcclCommunicator(id, rank, 2, 0, std::chrono::milliseconds(50));
        return "joined";
      },
      [](const FakeNccl& fake) { return std::to_string(fake.aborted) + " aborted"; });
  EXPECT_EQ(joining, "rank 0 of 2 gave up joining: other ranks did not answer within 50 ms\nelsewhere\n1 aborted");
  const std::string gone = over_ranks(
      2,
      [](int rank, const NcclId& id) -> std::string {
        NcclCommunicator communicator(id, rank, 2, rank, std::chrono::milliseconds(50));
        if (rank == 1) return "leaves";
        try {
          communicator.agree(1);
        } catch (const Error& error) {
          if (error.code() != ErrorCode::device) return "another code";
        }
        communicator.agree(1);  // again
        return "agreed";
      },
      nothing);
  EXPECT_EQ(gone, "rank 0 of 2 gave up an exchange: other ranks did not answer within 50 ms\nleaves\n");
}

TEST(NcclCommunicator, SaysWhatNcclSays) {
  const std::string said = over_ranks(
      1,
      [](int, const NcclId& id) -> std::string {
        NcclCommunicator communicator(id, 0, 1, 0);
        setenv("FAKE_NCCL_ERROR", "6", 1);
        communicator.wait(nullptr);
        return "waited";
      },
      nothing);
  EXPECT_EQ(said, "rank 0 of 1 gave up waiting: NCCL error 6 (remote process exited)\n");
}

TEST(NcclCommunicator, RefusesWhatNoRankHas) {
  const std::string said = over_ranks(
      1,
      [](int, const NcclId& id) -> std::string {
        std::string text;
        const auto refusal = [&](auto&& call) {
          try {
            call();
          } catch (const Error& error) {
            text += error.what() + std::string("\n");
          }
        };
        refusal([&] { NcclCommunicator(id, 2, 2, 0); });
        refusal([&] { NcclCommunicator(id, 0, 0, 0); });
        refusal([&] { NcclCommunicator(nullptr); });
        NcclCommunicator communicator(id, 0, 1, 0);
        const std::vector<std::int64_t> one{4}, two{4, 4}, other{3};
        char bytes[8] = {};
        refusal([&] { communicator.exchange(bytes, two, bytes, one, nullptr); });
        refusal([&] { communicator.exchange(bytes, one, bytes, other, nullptr); });
        return text;
      },
      nothing);
  EXPECT_EQ(
      said,
      "rank is 2; 0 to 1 are accepted\nsize is 0; 1 to 65536 are accepted\ncomm is null; an ncclComm_t is accepted\n"
      "send_bytes has 2 counts; one from 0 on for each of the 1 ranks is accepted\n"
      "rank 0 sends itself 4 bytes and receives 3; equal numbers are accepted\n\n");
}

}  // namespace
}  // namespace heddle::cuda
