#include "files/npy.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "files/view_bytes.h"
#include "heddle/error.h"
#include "heddle/files.h"

static_assert(std::endian::native == std::endian::little, "the byte orders below");

namespace heddle {
namespace files {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr std::size_t kVersionBytes = 2;
/// Far more than any header of a plain array; a damaged length must not become an allocation.
constexpr std::uint32_t kMaxHeaderLength = 1 << 20;

/// A list of types like that of safetensors_dtypes.h: each format has its own names.
struct NpyType {
  DType dtype;
  std::string_view code;  // without the byte order
};

/// Rows like those of kSafetensorsTypes, of another format: other names, and fewer types.
constexpr std::array<NpyType, 12> kNpyTypes{{
    {DType::f64, "f8"},
    {DType::f32, "f4"},
    {DType::f16, "f2"},
    {DType::i64, "i8"},
    {DType::i32, "i4"},
    {DType::i16, "i2"},
    {DType::i8, "i1"},
    {DType::u64, "u8"},
    {DType::u32, "u4"},
    {DType::u16, "u2"},
    {DType::u8, "u1"},
    {DType::boolean, "b1"},
}};

struct Element {
  DType dtype;
  bool swapped;
};

Element element_of(const std::string& descr, const ByteSource& source) {
  const char order = descr.empty() ? '\0' : descr[0];
  const auto row = std::find_if(kNpyTypes.begin(), kNpyTypes.end(),
                                [&](const NpyType& type) { return descr.substr(order == '\0' ? 0 : 1) == type.code; });
  const bool known_order = std::string_view("<>=|").find(order) != std::string_view::npos && order != '\0';
  if (!known_order || (row != kNpyTypes.end() && order == '|' && size_of(row->dtype) > 1)) {
    throw source.error(
        fmt::format("its descr is '{}'; accepted is a byte order (<, >, =, or | for single bytes) and a "
                    "type",
                    descr));
  }
  if (row == kNpyTypes.end()) {
    throw source.error(
        fmt::format("its element type is '{}'; accepted are b1, i1 to i8, u1 to u8, f2, f4 and f8", descr),
        ErrorCode::unsupported);
  }
  return {row->dtype, order == '>' && size_of(row->dtype) > 1};
}

struct Layout {
  NpyHeader header;
  std::uint64_t data_begin;
};

Layout read_layout(const ByteSource& source) {
  std::array<char, kMagic.size() + kVersionBytes + sizeof(std::uint32_t)> start{};
  const std::size_t available = std::min<std::uint64_t>(source.size(), start.size());
  source.read(0, std::as_writable_bytes(std::span(start).first(available)));
  if (!std::string_view(start.data(), available).starts_with(kMagic)) {
    throw source.error("it does not begin with the bytes of a .npy file");
  }
  const int major = static_cast<unsigned char>(start[kMagic.size()]);
  const int minor = static_cast<unsigned char>(start[kMagic.size() + 1]);
  const std::size_t length_bytes = major == 1 ? sizeof(std::uint16_t) : sizeof(std::uint32_t);
  const std::size_t prefix = kMagic.size() + kVersionBytes + length_bytes;
  if (available < prefix) throw source.error("it is truncated: it ends before the header's length");
  if (major < 1 || major > 3 || minor != 0) {
    throw source.error(fmt::format("its version is {}.{}; accepted are 1.0, 2.0 and 3.0", major, minor));
  }
  std::uint32_t length = 0;
  for (std::size_t i = 0; i < length_bytes; ++i) {
    length |= static_cast<std::uint32_t>(static_cast<unsigned char>(start[prefix - length_bytes + i])) << (8 * i);
  }
  if (length > kMaxHeaderLength) {
    throw source.error(fmt::format("its header length is {}; accepted are at most {} bytes", length, kMaxHeaderLength));
  }
  if (length > source.size() - prefix) {
    throw source.error(fmt::format("it is truncated: its header length is {}, but only {} bytes follow", length,
                                   source.size() - prefix));
  }
  std::string text(length, '\0');
  source.read(prefix, std::as_writable_bytes(std::span(text)));
  return {parse_npy_header(text, source), prefix + length};
}

/// The bytes of the elements, after the check that the file has exactly that number.
std::uint64_t checked_bytes(const Dims& shape, DType dtype, std::uint64_t available, const ByteSource& source) {
  const std::uint64_t bytes = stated_bytes(shape, dtype, source, "its array");
  if (bytes > available) {
    throw source.error(fmt::format("it is truncated: {} {} elements take {} bytes, but {} follow the header",
                                   to_string(shape), name(dtype), bytes, available));
  }
  if (bytes < available) {
    throw source.error(fmt::format("{} bytes are left over after the last element", available - bytes));
  }
  return bytes;
}

void swap_bytes(const Tensor& tensor, std::uint64_t bytes) {
  auto* data = static_cast<std::byte*>(tensor.data());
  const std::int64_t size = size_of(tensor.dtype());
  for (std::byte* element = data; element != data + bytes; element += size) std::reverse(element, element + size);
}

Dims reversed(const Dims& dims) {
  Dims result = dims;
  for (int axis = 0; axis < dims.size(); ++axis) result[axis] = dims[dims.size() - 1 - axis];
  return result;
}

Tensor transposed(const Tensor& tensor) {
  Dims order = tensor.shape();
  for (int axis = 0; axis < order.size(); ++axis) order[axis] = order.size() - 1 - axis;
  return copy(permute(tensor.view(), order), tensor.dtype());
}

std::string header_text(std::string_view descr, const Dims& shape) {
  std::string extents;
  for (const std::int64_t extent : shape) extents += fmt::format("{}{}", extents.empty() ? "" : ", ", extent);
  if (shape.size() == 1) extents += ',';
  std::string text = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, extents);
  const std::size_t before = kMagic.size() + kVersionBytes + sizeof(std::uint16_t);
  text.append(63 - (before + text.size()) % 64, ' ');
  return text + '\n';
}

}  // namespace

Tensor read_npy(const ByteSource& source) {
  const Layout layout = read_layout(source);
  const Element element = element_of(layout.header.descr, source);
  const Dims& shape = layout.header.shape;
  const std::uint64_t bytes = checked_bytes(shape, element.dtype, source.size() - layout.data_begin, source);
  // Column-major elements of a shape are the row-major ones of the reversed shape.
  const Tensor tensor = Tensor::empty(element.dtype, layout.header.fortran_order ? reversed(shape) : shape);
  source.read(layout.data_begin, {static_cast<std::byte*>(tensor.data()), bytes});
  if (element.swapped) swap_bytes(tensor, bytes);
  return layout.header.fortran_order ? transposed(tensor) : tensor;
}

void write_npy(const ConstTensorView& tensor, ByteSink& sink) {
  const auto row =
      std::find_if(kNpyTypes.begin(), kNpyTypes.end(), [&](const NpyType& type) { return type.dtype == tensor.dtype; });
  if (row == kNpyTypes.end()) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("tensor has dtype {}, which .npy files cannot hold; accepted are f64, f32, f16, the integers "
                    "and bool",
                    name(tensor.dtype)));
  }
  require_cpu(tensor, "tensor");
  const std::string header =
      header_text(fmt::format("{}{}", size_of(row->dtype) > 1 ? '<' : '|', row->code), tensor.shape);
  const std::array<std::uint8_t, 4> version_and_length{1, 0, static_cast<std::uint8_t>(header.size() % 256),
                                                       static_cast<std::uint8_t>(header.size() / 256)};
  sink.write(std::as_bytes(std::span(kMagic)));
  sink.write(std::as_bytes(std::span(version_and_length)));
  sink.write(std::as_bytes(std::span(header)));
  write_row_major(tensor, sink);
}

}  // namespace files

Tensor load_npy(const std::filesystem::path& path) { return files::read_npy(files::FileSource(path)); }

void save_npy(const std::filesystem::path& path, const ConstTensorView& tensor) {
  files::ReplacingFile target(path);
  files::write_npy(tensor, target);
  target.commit();
}

}  // namespace heddle
