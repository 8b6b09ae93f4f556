// The engine's interface to a kind of device: its memory, the copies from and to it, and computations there beside
// attention.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/caps.h"
#include "heddle/block_mask.h"
#include "heddle/devices.h"
#include "heddle/expr.h"
#include "heddle/kv_cache.h"
#include "heddle/tensor.h"

namespace heddle::backend {

/// The rows of a block mask in a device's memory, and the kernels that find them there.
class DeviceMaskRows {
 public:
  virtual ~DeviceMaskRows() = default;
};

/// A block mask whose rows a device found; or, with no mask, why the host must find them: a sentence.
struct BuiltMask {
  std::shared_ptr<const BlockMask> mask;
  std::string refused;
};

/// A result over some of the keys.
struct MergePart {
  ConstTensorView o, lse;
};
/// Everything was validated: shapes, dtypes, overlaps, one device.
struct MergeArguments {
  std::span<const MergePart> parts;
  TensorView o;
  std::optional<TensorView> lse;
  void* stream;  // of a GPU's
};

/// Rows of `from` [B, H, rows, D], which become rows of `to`; B, H and D are both tensors'. Everything was validated:
/// last strides of 1, floating types, one device.
struct MoveArguments {
  ConstTensorView from;
  TensorView to;
  std::int64_t rows = 0;  // of each head
  /// Row i comes from row from_rows[i] and goes to row to_rows[i]; null: row i. In memory of the device. No row of `to`
  /// is there twice.
  const std::int32_t *from_rows = nullptr, *to_rows = nullptr;
  bool adds = false;       // to what `to` has, in f32 (f64 if either is f64)
  void* stream = nullptr;  // of a GPU's
};

/// A stream of a GPU beside the caller's, and marks on it. Work on the two streams runs side by side.
class SideStream {
 public:
  virtual ~SideStream() = default;  // does not wait: what is enqueued still runs

  virtual void* stream() const = 0;
  /// Later work of this stream runs after all that `other` has now.
  virtual void follow(void* other) = 0;
  /// Sets mark `number` behind the work that this stream has now.
  virtual void mark(int number) = 0;
  /// Later work of `other` runs after mark `number`. Nothing changes if the mark was never set.
  virtual void wait_for(int number, void* other) const = 0;
};

/// See DeviceInterface::stand_in().
class AbsentDevice {
 public:
  virtual ~AbsentDevice() = default;
};

class DeviceInterface {
 public:
  virtual ~DeviceInterface() = default;

  virtual DeviceKind kind() const = 0;
  /// Devices of this kind on this machine. The first call may start a driver, which takes up to a second.
  virtual int count() const = 0;
  /// Why there is none: a sentence. Empty when there is one.
  virtual std::string missing() const = 0;
  /// Writes the abilities of these devices into the planner's machine.
  virtual void tell(device::Machine& machine) const = 0;
  /// Entries of devices().
  virtual std::vector<DeviceInfo> infos() const = 0;

  /// Memory of one device, freed with the last copy of the pointer. Throws Error(out_of_memory). 0 bytes: null.
  virtual std::shared_ptr<void> allocate(int index, std::size_t bytes) const = 0;
  /// Copies between the host and a device, or on it, and waits for that.
  virtual void copy_and_wait(int index, void* to, const void* from, std::size_t bytes) const = 0;
  /// Which device's memory a pointer is in; -1: no memory that this kind of device knows as its own.
  virtual int index_of(const void* pointer) const = 0;
  /// A graph records what is enqueued on the stream now.
  virtual bool is_capturing(int index, void* stream) const = 0;

  /// Computes on the CPU; elsewhere enqueues, and the first of a process on each device compiles and loads a kernel.
  /// Throws Error(unsupported) for more parts or rows than are taken there.
  virtual void merge(const MergeArguments& arguments) const = 0;
  /// append_kv() of what was validated, likewise. Throws Error(unsupported) for more rows than are taken there.
  virtual void append(const AppendTensors& tensors, const AppendOptions& options) const = 0;
  /// Moves rows, likewise.
  virtual void move_rows(const MoveArguments& arguments) const = 0;
  /// A stream of device `index` with marks 0 to marks - 1. Null: calls there end when they return.
  virtual std::unique_ptr<SideStream> make_side_stream(int /*index*/, int /*marks*/) const { return nullptr; }
  /// Builds a mask that reads captures, at least one, in the memory of device `index`. `rows` keeps state for building
  /// the mask again, for other blocks or after a change of params and captures; null at first. Waits for the device.
  /// `clamp_reads` and exceptions are BlockMask::build's; also throws Error(device), Error(out_of_memory),
  /// Error(compile).
  virtual BuiltMask build_mask(int index, const Expr& mask, const MaskShape& shape, BlockSize block,
                               const Bindings& bindings, DType reals, bool clamp_reads,
                               std::shared_ptr<DeviceMaskRows>& rows) const = 0;

  /// While the result lives, this thread works for device 0 of this kind, one of that architecture that is not here.
  /// Plans, merges and appended rows then compile their kernels for that device, and launch none; build_mask() compiles
  /// its kernels, and builds no mask. Null: this kind of device compiles nothing.
  virtual std::unique_ptr<AbsentDevice> stand_in(const std::string&) const { return nullptr; }
};

/// The kinds of devices that this build computes on, the CPU first.
std::span<const DeviceInterface* const> device_kinds();
/// Null where this build has none of that kind.
const DeviceInterface* find_device_kind(DeviceKind kind);

}  // namespace heddle::backend
