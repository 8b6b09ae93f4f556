// Workspaces of the one-call functions' runs, kept for later calls.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <vector>

#include "heddle/tensor.h"

namespace heddle::engine {

/// On a GPU one for each stream, on the CPU one for each run that goes on at the same time. Safe from several threads.
class Workspaces {
 private:
  struct OfStream {
    Device device;
    void* stream;
    std::mutex enqueuing;
    Tensor memory;
  };

 public:
  /// At least `bytes` bytes on the device, of any content, for one run: until the lease ends on the CPU, until the work
  /// that was enqueued on the stream during the lease is done on a GPU. If no kept memory is that large, it allocates,
  /// and frees a smaller one. Leases of one stream of a GPU wait for each other.
  class Lease {
   public:
    Lease(Workspaces& all, const Device& device, void* stream, std::int64_t bytes);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    void* data() const { return data_; }

   private:
    Workspaces& all_;
    void* data_ = nullptr;
    Tensor on_host_;
    std::shared_ptr<OfStream> of_stream_;
    std::unique_lock<std::mutex> enqueuing_;
  };

  /// Frees those that no run uses.
  void clear();

 private:
  Tensor take_host_memory(std::int64_t bytes);
  void give_back(Tensor memory);
  std::shared_ptr<OfStream> of(const Device& device, void* stream);

  std::mutex mutex_;
  std::vector<Tensor> on_host_;                      // free ones
  std::list<std::shared_ptr<OfStream>> of_streams_;  // the last used first
};

/// The process's workspaces.
Workspaces& workspaces();

}  // namespace heddle::engine
