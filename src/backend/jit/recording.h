// Kernels on their way into an archive.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "backend/jit/kernel_archive.h"

namespace heddle::jit {

/// Collects the kernels that builders make, find or reject on threads that record into it.
class Recording {
 public:
  void add(const ArchivedKernel& kernel);
  std::vector<ArchivedKernel> kernels() const;

  /// While it lives, this thread records into `recording`.
  class Scope {
   public:
    explicit Scope(Recording& recording);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Recording* before_;
  };
  /// The recording of this thread; null: there is none.
  static Recording* current();

 private:
  mutable std::mutex mutex_;
  std::map<std::string, ArchivedKernel> kernels_;  // by key
};

}  // namespace heddle::jit
