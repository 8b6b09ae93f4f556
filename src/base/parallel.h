// Tasks on all cores, over oneTBB.
#pragma once

#include <cstdint>
#include <functional>

namespace heddle::base {

/// The cores that this process may use (its affinity, not the machine's count).
int available_cores();

/// Throws invalid_argument for a number of threads that parallel_tasks does not take.
void check_threads(int threads);

using TaskBody = std::function<void(int worker, std::int64_t task)>;

/// Runs body(worker, task) once for each task in [0, count), the lowest numbers first (give the longest tasks the
/// lowest), on up to `threads` workers (0: available_cores()); worker is in [0, threads). The first exception stops the
/// rest and is rethrown here. With one thread or one task everything runs on the caller's thread, and so do the
/// remaining tasks if the system starts no more threads.
void parallel_tasks(int threads, std::int64_t count, const TaskBody& body);
/// Likewise. The body is not copied, so nothing is allocated for it.
template <class Body>
void parallel_tasks(int threads, std::int64_t count, const Body& body) {
  parallel_tasks(threads, count, TaskBody(std::ref(body)));
}

}  // namespace heddle::base
