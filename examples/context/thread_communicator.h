// Ranks as threads of one process: a Communicator over shared memory.
#pragma once

#include <barrier>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <thread>
#include <vector>

#include "heddle/context_parallel.h"

/// What the ranks of a process share.
class ThreadRanks {
 public:
  explicit ThreadRanks(std::int64_t size) : size_(size), all_(size), slots_(static_cast<std::size_t>(size)) {}

  /// Runs rank(communicator) in a thread for each rank, and waits for all. It must not throw.
  template <class Rank>
  void run(Rank&& rank) {
    std::vector<std::jthread> threads;
    for (std::int64_t i = 0; i < size_; ++i) {
      threads.emplace_back([&, i] {
        Communicator communicator(*this, i);
        rank(communicator);
      });
    }
  }
  /// How many exchanges all ranks have begun.
  std::int64_t exchanges() const { return exchanges_; }

 private:
  struct Slot {
    const std::byte* send = nullptr;
    std::span<const std::int64_t> bytes{};
    std::uint64_t number = 0;
  };
  class Communicator final : public heddle::Communicator {
   public:
    Communicator(ThreadRanks& ranks, std::int64_t rank) : ranks_(ranks), rank_(rank) {}
    std::int64_t rank() const override { return rank_; }
    std::int64_t size() const override { return ranks_.size_; }

    void exchange(const void* send, std::span<const std::int64_t> send_bytes, void* receive,
                  std::span<const std::int64_t> receive_bytes, void*) override {
      slot(rank_) = {static_cast<const std::byte*>(send), send_bytes, 0};
      ranks_.all_.arrive_and_wait();
      auto* to = static_cast<std::byte*>(receive);
      for (std::int64_t other = 0; other < size(); ++other) {
        const Slot& from = slot(other);
        std::int64_t before = 0;
        for (std::int64_t i = 0; i < rank_; ++i) before += from.bytes[static_cast<std::size_t>(i)];
        const std::int64_t bytes = receive_bytes[static_cast<std::size_t>(other)];
        if (bytes > 0) std::memcpy(to, from.send + before, static_cast<std::size_t>(bytes));
        to += bytes;
      }
      if (rank_ == 0) ++ranks_.exchanges_;
      ranks_.all_.arrive_and_wait();  // all have read
    }

    bool agree(std::uint64_t number) override {
      slot(rank_).number = number;
      ranks_.all_.arrive_and_wait();
      bool same = true;
      for (const Slot& other : ranks_.slots_) same = same && other.number == number;
      ranks_.all_.arrive_and_wait();
      return same;
    }

   private:
    Slot& slot(std::int64_t rank) { return ranks_.slots_[static_cast<std::size_t>(rank)]; }
    ThreadRanks& ranks_;
    std::int64_t rank_;
  };

  std::int64_t size_;
  std::barrier<> all_;
  std::vector<Slot> slots_;
  std::int64_t exchanges_ = 0;
};
