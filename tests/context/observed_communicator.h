// Exchanges of ranks that a test counts, and lets fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <thread>

#include "heddle/error.h"
#include "thread_communicator.h"

namespace heddle::test {

/// A Communicator that counts its exchanges and may fail in one.
class Observed final : public Communicator {
 public:
  explicit Observed(Communicator& ranks) : ranks_(ranks) {}
  std::int64_t rank() const override { return rank_off + ranks_.rank(); }
  std::int64_t size() const override { return ranks_.size(); }
  void exchange(const void* send, std::span<const std::int64_t> send_bytes, void* receive,
                std::span<const std::int64_t> receive_bytes, void* stream) override {
    if (calls_from != std::this_thread::get_id()) ++elsewhere;
    ranks_.exchange(send, send_bytes, receive, receive_bytes, stream);
    if (++ended == fails_at) throw Error(ErrorCode::device, "the link is gone");
  }
  bool agree(std::uint64_t number) override { return ranks_.agree(number); }

  const std::thread::id calls_from = std::this_thread::get_id();
  std::atomic<int> ended = 0, elsewhere = 0;  // exchanges; in other threads than the caller's
  int fails_at = 0;
  std::int64_t rank_off = 0;

 private:
  Communicator& ranks_;
};

}  // namespace heddle::test
