// Each allocation of each call of the interface fails once, and then it and all that follow. A call then throws that
// memory is out, or does without and gives its result; nothing is lost, and the next call works.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <new>

#include "heddle/heddle.h"
#include "reliability/call_kind_names.h"
#include "reliability/failing_allocations.h"
#include "sample.h"
#include "scoped_environment.h"

namespace heddle::test {
namespace {

namespace fs = std::filesystem;

/// The progress of a test, for its last words: a call that ends the process leaves no message.
std::array<char, 200> place{};

[[noreturn]] void last_words(int signal) {
  std::fprintf(stderr, "%s: signal %d\n", place.data(), signal);
  std::_Exit(1);
}

/// The end of one call: a hash of its results, or what it threw. Plain words, since nothing may be allocated.
struct End {
  enum What : std::uint8_t { result, out_of_memory, other } what = other;
  std::uint64_t hash = 0;
  std::array<char, 200> sentence{};
};

End end_of(const Call& call, std::int64_t at, FailingAllocation::Which which, bool& met) {
  End end;
  const auto keep = [&](const char* sentence) {
    std::snprintf(end.sentence.data(), end.sentence.size(), "%s", sentence);
  };
  const FailingAllocation failing(at, which);
  try {
    end.hash = call();
    end.what = End::result;
  } catch (const std::bad_alloc&) {
    end.what = End::out_of_memory;
  } catch (const Error& error) {
    end.what = error.code() == ErrorCode::out_of_memory ? End::out_of_memory : End::other;
    keep(error.what());
  } catch (const std::exception& error) {
    keep(error.what());
  }
  met = FailingAllocation::met();
  return end;
}

class AllocationFailure : public testing::TestWithParam<CallKind> {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "heddle-allocations-XXXXXX").string();
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
    // One plan is kept, so that plans give way to each other.
    cache_dir_.emplace("HEDDLE_CACHE_DIR", (folder_ / "cache").c_str());
    kept_bytes_.emplace("HEDDLE_PLAN_CACHE_BYTES", "1");
    std::signal(SIGABRT, last_words), std::signal(SIGSEGV, last_words), std::signal(SIGALRM, last_words);
  }
  void TearDown() override {
    ::alarm(0);
    clear_plan_cache();
    fs::remove_all(folder_);
  }

  /// Repeats the call until nothing grows any more; the blocks that are then allocated.
  static std::int64_t settled(const Call& call) {
    std::int64_t blocks = -1;
    for (int round = 0; round < 10; ++round) {
      call();
      clear_plan_cache();
      if (std::exchange(blocks, live_blocks()) == live_blocks()) break;
    }
    return blocks;
  }

  void fail_each(const Call& call, FailingAllocation::Which which) {
    const std::uint64_t expected = call();
    std::int64_t blocks = settled(call);
    std::int64_t failed = 0, borne = 0;
    // Some in a run of all tests, from another one on each time.
    const std::int64_t step = takes_all() ? 1 : is_reduced() ? 97 : 13;
    for (std::int64_t at = static_cast<std::int64_t>(drawn_case(1, static_cast<std::size_t>(step)));;
         at = allocation_behind(at, step)) {
      std::snprintf(place.data(), place.size(), "%s, allocation %ld%s", GetParam().name, static_cast<long>(at),
                    which == FailingAllocation::kOne ? "" : " and all after it");
      ::alarm(120);  // a call that waits for ever
      bool met = false;
      const End end = end_of(call, at, which, met);
      if (!met) break;
      ASSERT_NE(end.what, End::other) << place.data() << ": " << end.sentence.data();
      if (end.what == End::result) {
        ASSERT_EQ(end.hash, expected) << place.data() << ": a wrong result";
      }
      ++(end.what == End::result ? borne : failed);
      ASSERT_EQ(call(), expected) << place.data() << ": the next call's result";
      const PlanCacheCounts kept = plan_cache_counts();  // plans that hold nothing do not give way
      ASSERT_TRUE(kept.plans <= 1 || kept.bytes <= 1) << place.data() << ": " << kept.plans << " plans are kept";
      clear_plan_cache();
      if (live_blocks() > blocks) {  // a table that grew, or a leak, which grows with each call
        const std::int64_t before = live_blocks();
        for (int i = 0; i < 3; ++i) end_of(call, at, which, met), call(), clear_plan_cache();
        ASSERT_LT(live_blocks(), before + 3) << place.data() << ": blocks are lost";
        blocks = live_blocks();
      }
    }
    std::printf("%s: %ld allocations failed: %ld calls threw, %ld did without\n", GetParam().name,
                static_cast<long>(failed + borne), static_cast<long>(failed), static_cast<long>(borne));
  }

  fs::path folder_;
  std::optional<ScopedVariable> cache_dir_, kept_bytes_;
};

TEST_P(AllocationFailure, OfOne) {
  std::mt19937_64 random(sample_seed() + 1);
  fail_each(GetParam().draw(random, {.threads = 1, .folder = folder_}), FailingAllocation::kOne);
}

TEST_P(AllocationFailure, OfOneAndAllAfter) {
  std::mt19937_64 random(sample_seed() + 2);
  fail_each(GetParam().draw(random, {.threads = 1, .folder = folder_}), FailingAllocation::kAndAllAfter);
}

INSTANTIATE_TEST_SUITE_P(Calls, AllocationFailure, testing::ValuesIn(call_kinds().begin(), call_kinds().end()),
                         name_of);

}  // namespace
}  // namespace heddle::test
