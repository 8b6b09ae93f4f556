// The GPU of any vendor, as the launchers that all vendors share see it: memory, and kernels that are compiled, loaded
// and enqueued.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "backend/device.h"
#include "backend/gpu/dialect.h"
#include "backend/jit/machine_code.h"
#include "backend/jit/source.h"
#include "heddle/tensor.h"

namespace heddle::gpu {

/// Shape of a launch: ctas x height CTAs (AMD: workgroups), the threads of each, and the bytes of its dynamic shared
/// memory.
struct Launch {
  unsigned ctas, height = 1;
  unsigned threads;
  unsigned shared_bytes = 0;
  bool overlaps = false;  // it may begin while the kernel before it on the stream ends, for which it waits itself
};

/// The kernels of a source in a device's memory.
class Program {
 public:
  virtual ~Program() = default;
  virtual const jit::MachineCode& code() const = 0;
  /// One of its kernels, which lives as long as the program. `shared_bytes`: the dynamic shared memory it may have.
  virtual void* function(const char* name, int shared_bytes = 0) const = 0;
  /// Enqueues a kernel on a stream (null: the device's default one), with the addresses of its parameters. `what`: for
  /// errors: "launching merge_states".
  virtual void enqueue(void* function, const Launch& launch, void* stream, void** parameters,
                       const char* what) const = 0;
  /// Enqueues a kernel whose only parameter is the struct at `params`.
  void launch(void* function, const Launch& launch, void* stream, void* params, const char* what) const {
    void* parameters[] = {params};
    enqueue(function, launch, stream, parameters, what);
  }
};

/// One object a vendor.
class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual const backend::DeviceInterface& devices() const = 0;
  virtual const Dialect& dialect() const = 0;
  /// The architecture that the compiler compiles for, so that the device runs it: "sm_90a", "gfx1100".
  virtual std::string architecture_of(int device) const = 0;
  /// A source for one of the devices, which may include the library's device code, of a kernel beside attention: no
  /// plan has another one in its place, so it is taken even if it spills.
  jit::Source source(int device, std::string name, const std::string& text) const {
    jit::Source source = dialect().source(std::move(name), text, architecture_of(device));
    source.has_alternative = false;
    return source;
  }
  /// Compiles a source, or finds what was compiled before, and loads it. Throws as jit::Builder::build(), and
  /// Error(device).
  virtual std::unique_ptr<Program> load(int device, const jit::Source& source) const = 0;

  /// NVIDIA's GPUs with TMA: writes into the 128 bytes at `map` how TMA finds the rows of a tensor
  /// [batch, heads, rows, head_dim], in boxes of `box_rows` rows and 128 bytes, where sequences end (`longest`:
  /// cuda::tensor_map_before_ends).
  virtual void describe_rows(int device, const ConstTensorView& tensor, int box_rows, std::int64_t longest,
                             void* map) const = 0;

  /// Waits for all that was enqueued on the device's default stream. `what`: for errors.
  virtual void wait(int device, const char* what) const = 0;

  /// Whether kernels without a plan stay loaded for later calls (KeptKernels).
  virtual bool keeps_kernels() const { return true; }

  /// For explain().
  virtual std::string key_of(const jit::Source& source) const = 0;
  virtual std::string cache_notes() const = 0;
};

/// Memory on one device, freed with this object.
class Memory {
 public:
  Memory() = default;
  /// Throws Error(out_of_memory). 0 bytes: null.
  Memory(const backend::DeviceInterface& devices, int device, std::size_t bytes)
      : memory_(devices.allocate(device, bytes)), bytes_(bytes) {}
  void* data() const { return memory_.get(); }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> memory_;
  std::size_t bytes_ = 0;
};

}  // namespace heddle::gpu
