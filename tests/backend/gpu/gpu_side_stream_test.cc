// A stream beside the caller's, over a driver that only notes what it is asked.
#include "backend/gpu/gpu_side_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace heddle::gpu {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Streams and events are numbered from 1 on, in the order in which they are made.
struct NotingDriver {
  struct StreamHandle {
    int number;
  };
  struct EventHandle {
    int number;
  };
  using Stream = StreamHandle*;
  using Event = EventHandle*;
  struct Scope {
    explicit Scope(int device) { last_device = device; }
  };

  static void make(Stream& stream) { stream = new StreamHandle{next()}; }
  static void make(Event& event) { event = new EventHandle{next()}; }
  static void destroy(Stream stream) { free(stream); }
  static void destroy(Event event) { free(event); }
  static void record(Event event, Stream stream) { note("record", event, stream); }
  static void wait(Stream stream, Event event) { note("wait for", event, stream); }

  static void start(int failing_at) { made = 0, freed = 0, fails_at = failing_at, notes.clear(); }

  static inline int made = 0, freed = 0, fails_at = 0, last_device = -1;
  static inline std::vector<std::string> notes;

 private:
  static int next() {
    if (made + 1 == fails_at) throw std::runtime_error("no more");
    return ++made;
  }
  static void free(auto* handle) {
    delete handle;
    ++freed;
  }
  static void note(const std::string& what, Event event, Stream stream) {
    notes.push_back(what + " " + std::to_string(event->number) + " in " + std::to_string(stream->number));
  }
};

TEST(GpuSideStream, FollowsAndIsWaitedFor) {
  NotingDriver::start(0);
  NotingDriver::StreamHandle callers{9};
  {
    GpuSideStream<NotingDriver> side(3, 2);  // stream 1, event 2 to follow, marks 3 and 4
    EXPECT_EQ(static_cast<NotingDriver::Stream>(side.stream())->number, 1);
    side.follow(&callers);
    EXPECT_EQ(NotingDriver::last_device, 3);
    side.mark(1);
    side.wait_for(1, &callers);
    side.wait_for(0, &callers);
    EXPECT_THAT(NotingDriver::notes,
                ElementsAre("record 2 in 9", "wait for 2 in 1", "record 4 in 1", "wait for 4 in 9", "wait for 3 in 9"));
  }
  EXPECT_EQ(NotingDriver::freed, 4);
}

TEST(GpuSideStream, FreesWhatItMadeWhenMakingFails) {
  for (int at = 1; at <= 4; ++at) {
    NotingDriver::start(at);
    EXPECT_THROW(GpuSideStream<NotingDriver>(0, 2), std::runtime_error);
    EXPECT_EQ(NotingDriver::made, at - 1);
    EXPECT_EQ(NotingDriver::freed, at - 1);
    EXPECT_THAT(NotingDriver::notes, IsEmpty());
  }
}

}  // namespace
}  // namespace heddle::gpu
