// A stream of a GPU beside the caller's.
#pragma once

#include <vector>

#include "backend/cuda/driver/driver.h"
#include "backend/device.h"

namespace heddle::cuda {

class CudaSideStream final : public backend::SideStream {
 public:
  CudaSideStream(int device, int marks);
  ~CudaSideStream() override;

  void* stream() const override { return stream_; }
  void follow(void* other) override;
  void mark(int number) override;
  void wait_for(int number, void* other) const override;

 private:
  void release() noexcept;

  int device_;
  CUstream stream_ = nullptr;
  CUevent following_ = nullptr;
  std::vector<CUevent> marks_;
};

}  // namespace heddle::cuda
