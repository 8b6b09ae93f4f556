#include "context/lane.h"

#include <exception>
#include <utility>

namespace heddle::context {

Lane::Lane(void* stream, backend::SideStream* side) : stream_(stream), side_(side) {
  if (side == nullptr) worker_ = std::thread([this] { work(); });
}

Lane::~Lane() {
  if (side_ != nullptr && std::uncaught_exceptions() > 0) {
    // The caller may free what exchanges still read, in the order of its stream.
    try {
      for (int mark = 0; mark < kMarks; ++mark) side_->wait_for(mark, stream_);
    } catch (const std::exception&) {
    }
  }
  if (!worker_.joinable()) return;
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
    started_.clear();
  }
  changed_.notify_all();
  worker_.join();
}

void Lane::start(int mark, Exchange exchange) {
  if (worker_.joinable()) {
    {
      const std::scoped_lock lock(mutex_);
      last_[static_cast<std::size_t>(mark)] = ++count_;
      started_.push_back({count_, std::move(exchange)});
    }
    changed_.notify_all();
  } else if (side_ != nullptr) {
    side_->follow(stream_);
    exchange(side_->stream());
    side_->mark(mark);
  } else {
    exchange(stream_);
  }
}

void Lane::wait_for(int mark) {
  if (side_ != nullptr) side_->wait_for(mark, stream_);
  if (!worker_.joinable()) return;
  std::unique_lock lock(mutex_);
  const int number = last_[static_cast<std::size_t>(mark)];
  changed_.wait(lock, [&] { return done_ >= number || error_ != nullptr; });
  if (done_ < number) std::rethrow_exception(error_);
}

void Lane::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ends_ || !started_.empty(); });
    if (ends_) return;
    Started next = std::move(started_.front());
    started_.pop_front();
    lock.unlock();
    std::exception_ptr error;
    try {
      next.exchange(stream_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error != nullptr) {
      error_ = error;
      changed_.notify_all();
      return;  // the ranks are no longer in step
    }
    done_ = next.number;
    changed_.notify_all();
  }
}

}  // namespace heddle::context
