// An array of another library's, as an argument: NumPy's and whatever speaks DLPack through nanobind; types with
// DLPack's C exchange table (torch.Tensor) through that, which takes no Python call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <cstdint>

namespace heddle::python {

namespace nb = nanobind;

/// Extents and strides of an array, and where its elements are. Keeps the array alive. The functions are those of
/// nb::ndarray.
class ForeignArray {
 public:
  static constexpr std::size_t kMaxRank = 16;

  std::size_t ndim() const { return rank_; }
  std::size_t shape(std::size_t axis) const { return static_cast<std::size_t>(shape_[axis]); }
  std::int64_t stride(std::size_t axis) const { return strides_[axis]; }
  nb::dlpack::dtype dtype() const { return dtype_; }
  void* data() const { return data_; }
  int device_type() const { return device_type_; }
  int device_id() const { return device_id_; }
  nb::handle owner() const { return owner_; }

  /// False if the object is no array. `read_only`: one that must not be written is taken, too.
  bool take(nb::handle object, bool read_only);
  /// take() of an array that was made just now, to write it: nobody negated it.
  bool take_new(nb::handle object);

 private:
  bool lacks_memory() const;  // though it has elements
  bool take_exchanged(nb::handle object, const void* table);
  template <class Array>
  bool take_imported(nb::handle object);

  nb::object owner_;
  nb::ndarray<nb::ro> imported_{};  // where nanobind made a view of it
  void* data_ = nullptr;
  nb::dlpack::dtype dtype_{};
  int device_type_ = 0, device_id_ = 0;
  std::size_t rank_ = 0;
  std::array<std::int64_t, kMaxRank> shape_{}, strides_{};
};

class ReadOnlyArray : public ForeignArray {};
class WritableArray : public ForeignArray {};

}  // namespace heddle::python

namespace nanobind::detail {

template <class Array, bool kReadOnly>
struct foreign_array_caster {
  NB_TYPE_CASTER(Array, const_name("heddle._types.Array"))
  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept { return value.take(source, kReadOnly); }
  static handle from_cpp(const Array& array, rv_policy, cleanup_list*) noexcept { return array.owner().inc_ref(); }
};

template <>
struct type_caster<heddle::python::ReadOnlyArray> : foreign_array_caster<heddle::python::ReadOnlyArray, true> {};
template <>
struct type_caster<heddle::python::WritableArray> : foreign_array_caster<heddle::python::WritableArray, false> {};

}  // namespace nanobind::detail
