// How much several threads do together in a second.
#pragma once

#include <functional>

namespace heddle::peaks {

/// Each thread repeats `work`, which returns how much it did, until about `seconds` have passed. Returns what all did,
/// divided by the time from the first one's begin to the last one's end. One thread is the caller's. Throws
/// std::system_error if the system starts no more threads.
double rate_on_threads(int threads, double seconds, const std::function<double()>& work);

}  // namespace heddle::peaks
