#include "foreign_array.h"

#include <algorithm>
#include <utility>

namespace heddle::python {
namespace {

// dlpack.h, version 1.3: the table behind type(array).__dlpack_c_exchange_api__.
struct ExchangedTensor {
  void* data;
  std::int32_t device_type, device_id;
  std::int32_t ndim;
  std::uint8_t code, bits;
  std::uint16_t lanes;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};
struct ExchangeTable {
  std::uint32_t major, minor;
  ExchangeTable* previous;
  void* allocate;
  void* to_managed;
  void* from_managed;
  int (*describe)(void* object, ExchangedTensor* tensor);  // null in tables that lack it
  void* current_stream;
};
constexpr std::uint32_t kKnownMajor = 1;

/// A type of arrays, and how its arrays are described.
struct Exchange {
  PyTypeObject* type = nullptr;
  const ExchangeTable* table = nullptr;
  // torch's functions; null for other libraries' arrays.
  PyObject *is_neg = nullptr, *resolve_neg = nullptr, *is_zero = nullptr, *clone = nullptr;
  bool is_masked = false;  // numpy.ma's: DLPack would export what the mask hides
};

PyObject* attribute_or_null(PyTypeObject* type, const char* name) {
  PyObject* found = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), name);
  PyErr_Clear();
  return found;
}

/// Its table is null where it has none. Types are few; the ones seen are kept alive, with what is found.
Exchange exchange_of(PyTypeObject* type) {
  constexpr std::size_t kKept = 8;
  static std::array<Exchange, kKept> known{};  // guarded by the GIL
  static std::size_t count = 0;
  for (std::size_t i = 0; i < count; ++i) {
    if (known[i].type == type) return known[i];
  }
  const ExchangeTable* table = nullptr;
  PyObject* capsule = PyObject_GetAttrString(reinterpret_cast<PyObject*>(type), "__dlpack_c_exchange_api__");
  if (capsule != nullptr) {
    table = static_cast<const ExchangeTable*>(PyCapsule_GetPointer(capsule, "dlpack_exchange_api"));
    Py_DECREF(capsule);
    while (table != nullptr && table->major > kKnownMajor) table = table->previous;
    if (table != nullptr && table->describe == nullptr) table = nullptr;
  }
  PyErr_Clear();
  const bool is_masked = PyObject_HasAttrString(reinterpret_cast<PyObject*>(type), "harden_mask") != 0;
  const Exchange found = {type,
                          table,
                          attribute_or_null(type, "is_neg"),
                          attribute_or_null(type, "resolve_neg"),
                          attribute_or_null(type, "_is_zerotensor"),
                          attribute_or_null(type, "clone"),
                          is_masked};
  if (count < kKept) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));
    known[count++] = found;
  }
  return found;
}

/// function(argument). PyObject_CallOneArg is no part of the stable ABI, which wheels for Python 3.12 and later have.
nb::object called(PyObject* function, nb::handle argument) {
  PyObject* arguments[] = {argument.ptr()};
  return nb::steal(PyObject_Vectorcall(function, arguments, 1, nullptr));
}

/// The object, or what torch computes of one whose elements are negated lazily: its memory has the other sign. Empty if
/// such an object is to be written.
nb::object with_signs(nb::handle object, const Exchange& exchange, bool read_only) {
  if (exchange.is_neg == nullptr || exchange.resolve_neg == nullptr) return nb::borrow(object);
  const nb::object negated = called(exchange.is_neg, object);
  if (!negated.is_valid()) PyErr_Clear();
  if (!negated.is(Py_True)) return nb::borrow(object);
  if (!read_only) return {};
  const nb::object resolved = called(exchange.resolve_neg, object);
  if (!resolved.is_valid()) PyErr_Clear();
  return resolved;
}

/// A copy of what torch keeps as zeros without memory, which its derivatives make. Empty for others: torch's clone()
/// reads a tensor whose storage was freed (resize_(0)) at address 0.
nb::object with_memory(nb::handle object, const Exchange& exchange) {
  if (exchange.clone == nullptr || exchange.is_zero == nullptr) return {};
  const nb::object is_zero = called(exchange.is_zero, object);
  if (!is_zero.is_valid()) PyErr_Clear();
  if (!is_zero.is(Py_True)) return {};
  const nb::object copied = called(exchange.clone, object);
  if (!copied.is_valid()) PyErr_Clear();
  return copied;
}

}  // namespace

bool ForeignArray::lacks_memory() const {
  return data_ == nullptr && std::find(shape_.begin(), shape_.begin() + rank_, 0) == shape_.begin() + rank_;
}

bool ForeignArray::take_exchanged(nb::handle object, const void* table) {
  ExchangedTensor tensor{};
  if (static_cast<const ExchangeTable*>(table)->describe(object.ptr(), &tensor) != 0) {
    PyErr_Clear();
    return false;
  }
  rank_ = static_cast<std::size_t>(tensor.ndim);
  if (rank_ > kMaxRank) return false;
  std::copy_n(tensor.shape, rank_, shape_.begin());
  std::copy_n(tensor.strides, rank_, strides_.begin());
  data_ = static_cast<std::byte*>(tensor.data) + tensor.byte_offset;
  dtype_ = {tensor.code, tensor.bits, tensor.lanes};
  device_type_ = tensor.device_type, device_id_ = tensor.device_id;
  owner_ = nb::borrow(object);
  return true;
}

template <class Array>
bool ForeignArray::take_imported(nb::handle object) {
  Array array;
  if (!nb::try_cast(object, array, false) || array.ndim() > kMaxRank) return false;
  rank_ = array.ndim();
  for (std::size_t axis = 0; axis < rank_; ++axis) {
    shape_[axis] = static_cast<std::int64_t>(array.shape(axis));
    strides_[axis] = array.stride(axis);
  }
  data_ = const_cast<void*>(static_cast<const void*>(array.data()));
  dtype_ = array.dtype();
  device_type_ = array.device_type(), device_id_ = array.device_id();
  imported_ = nb::ndarray<nb::ro>(array);
  owner_ = nb::borrow(object);
  return true;
}

bool ForeignArray::take(nb::handle object, bool read_only) {
  const Exchange exchange = exchange_of(Py_TYPE(object.ptr()));
  if (exchange.table != nullptr) {
    const nb::object signed_object = with_signs(object, exchange, read_only);
    if (!signed_object.is_valid() || !take_exchanged(signed_object, exchange.table)) return false;
    if (!read_only || !lacks_memory()) return true;
    const nb::object copied = with_memory(object, exchange);
    return !copied.is_valid() || take_exchanged(copied, exchange.table);  // else the library names it
  }
  if (exchange.is_masked) return false;
  return read_only ? take_imported<nb::ndarray<nb::ro>>(object) : take_imported<nb::ndarray<>>(object);
}

bool ForeignArray::take_new(nb::handle object) {
  const Exchange exchange = exchange_of(Py_TYPE(object.ptr()));
  return exchange.table != nullptr ? take_exchanged(object, exchange.table) : take_imported<nb::ndarray<>>(object);
}

}  // namespace heddle::python
