// A stream of a GPU beside the caller's.
#pragma once

#include <vector>

#include "backend/amd/driver/hip.h"
#include "backend/device.h"

namespace heddle::amd {

class HipSideStream final : public backend::SideStream {
 public:
  HipSideStream(int device, int marks);
  ~HipSideStream() override;

  void* stream() const override { return stream_; }
  void follow(void* other) override;
  void mark(int number) override;
  void wait_for(int number, void* other) const override;

 private:
  void release() noexcept;

  int device_;
  HipStream stream_ = nullptr;
  HipEvent following_ = nullptr;
  std::vector<HipEvent> marks_;
};

}  // namespace heddle::amd
