// Memory that a run leaves for the next one, so that repeated runs allocate nothing.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace heddle::base {

/// Objects of which each run borrows one. There are as many as runs have been under way at once. Threads may share it.
template <class T>
class Kept {
 public:
  /// A run's own object, until the lease ends. The Kept outlives it.
  class Lease {
   public:
    Lease(Kept& from, std::unique_ptr<T> object) : from_(from), object_(std::move(object)) {}
    ~Lease() { from_.give_back(std::move(object_)); }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    T& operator*() const { return *object_; }

   private:
    Kept& from_;
    std::unique_ptr<T> object_;
  };

  /// One that no run has; where there is none, what make(), a std::unique_ptr<T>, gives.
  template <class Make>
  Lease take(const Make& make) {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        std::unique_ptr<T> object = std::move(idle_.back());
        idle_.pop_back();
        return {*this, std::move(object)};
      }
      idle_.reserve(++made_);  // give_back() must not throw
    }
    return {*this, make()};
  }
  Lease take() {
    return take([] { return std::make_unique<T>(); });
  }

 private:
  void give_back(std::unique_ptr<T> object) noexcept {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(object));
  }

  std::mutex mutex_;
  std::size_t made_ = 0;
  std::vector<std::unique_ptr<T>> idle_;
};

}  // namespace heddle::base
