#include "files/npy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "expect_error.h"
#include "files/golden.h"
#include "files/memory_files.h"

namespace heddle {
namespace {

std::string assemble(const std::string& header, const std::string& data = "", int major = 1, int minor = 0) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += static_cast<char>(minor);
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i) file += static_cast<char>(header.size() >> (8 * i));
  return file + header + data;
}

std::string header_of(const std::string& descr, const std::string& shape, const std::string& order = "False") {
  return "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
}

Tensor read(const std::string& bytes) { return files::read_npy(source_of(bytes)); }

std::string write(const ConstTensorView& view) {
  files::MemorySink sink;
  files::write_npy(view, sink);
  return text_of(sink);
}

void refused(const std::string& bytes, const std::string& what, ErrorCode code = ErrorCode::io) {
  SCOPED_TRACE(bytes);
  expect_error([&] { read(bytes); }, code, "cannot read memory: " + what);
}

TEST(Npy, ReadsWhatNumPyWrote) {
  const Tensor floats = read(kGoldenNpyFloat);
  EXPECT_EQ(floats.dtype(), DType::f32);
  EXPECT_EQ(floats.shape(), (Dims{2, 3}));
  EXPECT_EQ(elements(floats), (std::vector<double>{1.5, -2, 0, 3.25, std::numeric_limits<double>::infinity(), 0}));
  EXPECT_TRUE(std::signbit(get_element(floats, {1, 2})));

  const Tensor fortran = read(kGoldenNpyFortran);
  EXPECT_EQ(fortran.dtype(), DType::i16);
  EXPECT_EQ(fortran.shape(), (Dims{2, 3}));
  EXPECT_TRUE(is_contiguous(fortran));
  EXPECT_EQ(elements(fortran), (std::vector<double>{0, 1, 2, 3, 4, 5}));

  const Tensor flags = read(kGoldenNpyBool);
  EXPECT_EQ(flags.dtype(), DType::boolean);
  EXPECT_EQ(elements(flags), (std::vector<double>{1, 0}));

  const Tensor scalar = read(kGoldenNpyScalar);
  EXPECT_EQ(scalar.dtype(), DType::f64);
  EXPECT_EQ(scalar.shape(), Dims{});
  EXPECT_EQ(elements(scalar), std::vector<double>{2.5});
}

TEST(Npy, WritesTheSameBytesAsNumPy) {
  EXPECT_EQ(write(read(kGoldenNpyFloat)), kGoldenNpyFloat);
  EXPECT_EQ(write(read(kGoldenNpyScalar)), kGoldenNpyScalar);
}

TEST(Npy, RoundTripOfEveryTypeAndLayout) {
  std::mt19937_64 random(2);
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype == DType::bf16 || dtype == DType::e4m3 || dtype == DType::e5m2) continue;
    const Tensor tensor = random_bits(dtype, {3, 5, 7}, random);
    const std::vector<ConstTensorView> views{tensor,
                                             permute(slice(ConstTensorView(tensor), 2, 1, 6), {2, 0, 1}),
                                             ConstTensorView(tensor.data(), dtype, Dims{}),
                                             ConstTensorView(tensor.data(), dtype, {105}),
                                             ConstTensorView(tensor.data(), dtype, {4, 0, 2}),
                                             ConstTensorView(tensor.data(), dtype, {1, 2, 1, 2, 1, 2, 1, 2})};
    for (const ConstTensorView& view : views) {
      const std::string bytes = write(view);
      const auto data = static_cast<std::size_t>(view.count() * size_of(dtype));
      EXPECT_EQ((bytes.size() - data) % 64, 0u);
      const Tensor back = read(bytes);
      EXPECT_EQ(back.dtype(), dtype);
      EXPECT_EQ(back.shape(), view.shape);
      EXPECT_EQ(element_bytes(back), element_bytes(view)) << name(dtype) << " " << to_string(view.shape);
    }
  }
}

TEST(Npy, BothByteOrders) {
  const std::string big("\x3f\xf8\0\0\0\0\0\0", 8);
  const std::string little("\0\0\0\0\0\0\xf8\x3f", 8);
  EXPECT_EQ(elements(read(assemble(header_of(">f8", "(1,)"), big))), std::vector<double>{1.5});
  EXPECT_EQ(elements(read(assemble(header_of("<f8", "(1,)"), little))), std::vector<double>{1.5});
  EXPECT_EQ(elements(read(assemble(header_of("=f8", "(1,)"), little))), std::vector<double>{1.5});
  EXPECT_EQ(elements(read(assemble(header_of(">i4", "()"), std::string("\xff\xff\xff\xfe", 4)))),
            std::vector<double>{-2});
  EXPECT_EQ(elements(read(assemble(header_of(">u1", "(2,)"), "\1\2"))), (std::vector<double>{1, 2}));
}

TEST(Npy, FortranOrderOfThreeAxes) {
  std::string data;
  for (char i = 0; i < 24; ++i) data += i;
  const Tensor tensor = read(assemble(header_of("|u1", "(2, 3, 4)", "True"), data));
  EXPECT_EQ(tensor.shape(), (Dims{2, 3, 4}));
  EXPECT_TRUE(is_contiguous(tensor));
  for (std::int64_t i = 0; i < 2; ++i) {
    for (std::int64_t j = 0; j < 3; ++j) {
      for (std::int64_t k = 0; k < 4; ++k) {
        EXPECT_EQ(get_element(tensor, {i, j, k}), static_cast<double>(i + 2 * j + 6 * k));
      }
    }
  }
}

TEST(Npy, HeadersInOtherSpellings) {
  for (const char* header : {"{'shape':(2,),'fortran_order':False,'descr':'|u1'}\n",
                             "{\"descr\": \"|u1\", 'fortran_order': True, 'shape': (2,)}  \n",
                             " { 'descr' : '|u1' , 'fortran_order' : False , 'shape' : ( 2 , ) , } \n"}) {
    EXPECT_EQ(elements(read(assemble(header, "\1\2"))), (std::vector<double>{1, 2})) << header;
  }
  EXPECT_EQ(read(assemble(header_of("|u1", "(2, 1)"), "\1\2", 2)).shape(), (Dims{2, 1}));
  EXPECT_EQ(read(assemble(header_of("|u1", "(2, 1,)"), "\1\2", 3)).shape(), (Dims{2, 1}));
}

TEST(Npy, WhatIsNoNpyFileIsRefused) {
  refused("", "it does not begin with the bytes of a .npy file");
  refused("\x93NUMP", "it does not begin with the bytes of a .npy file");
  refused("PK\3\4 an .npz archive", "it does not begin with the bytes of a .npy file");
  refused("\x93NUMPY", "it is truncated: it ends before the header's length");
  refused(std::string("\x93NUMPY\1\0\1", 9), "it is truncated: it ends before the header's length");
  refused(std::string("\x93NUMPY\2\0\1\0\0", 11), "it is truncated: it ends before the header's length");
  const std::string header = header_of("|u1", "()");
  refused(assemble(header, "1", 0), "its version is 0.0; accepted are 1.0, 2.0 and 3.0");
  refused(assemble(header, "1", 4), "its version is 4.0; accepted are 1.0, 2.0 and 3.0");
  refused(assemble(header, "1", 1, 1), "its version is 1.1; accepted are 1.0, 2.0 and 3.0");
}

TEST(Npy, DamagedLengthsAreRefused) {
  std::string file = assemble(header_of("|u1", "()"), "1");
  file[8] = '\xff';
  refused(file,
          "it is truncated: its header length is 255, but only " + std::to_string(file.size() - 10) + " bytes follow");
  refused(std::string("\x93NUMPY\2\0\xff\xff\xff\xff", 12),
          "its header length is 4294967295; accepted are at most 1048576 bytes");
  refused(std::string("\x93NUMPY\3\0\0\0\x10\0", 12),
          "it is truncated: its header length is 1048576, but only 0 bytes follow");
  refused(assemble(header_of("<f4", "(2,)"), "1234567"),
          "it is truncated: [2] f32 elements take 8 bytes, but 7 follow the header");
  refused(assemble(header_of("<f4", "(2,)"), "123456789"), "1 bytes are left over after the last element");
  refused(assemble(header_of("<f4", "(0,)"), "1234"), "4 bytes are left over after the last element");
  refused(
      assemble(header_of("<f8", "(1152921504606846975,)"), "1"),
      "it is truncated: [1152921504606846975] f64 elements take 9223372036854775800 bytes, but 1 follow the header");
  refused(assemble(header_of("<f8", "(1152921504606846976,)"), "1"),
          "its array of shape [1152921504606846976] has more than 2^63 - 1 bytes");
  refused(assemble(header_of("<f8", "(4294967296, 4294967296)"), "1"),
          "its array of shape [4294967296, 4294967296] has more than 2^63 - 1 bytes");
  refused(assemble(header_of("<f8", "(0, 4294967296, 4294967296)")),
          "its array of shape [0, 4294967296, 4294967296] has more than 2^63 - 1 bytes");
}

void damaged(const std::string& header, std::size_t byte, const std::string& accepted) {
  refused(assemble(header, "1"),
          "its header is damaged at byte " + std::to_string(byte) + " of it; accepted is " + accepted);
}

TEST(Npy, DamagedHeadersAreRefused) {
  const std::string fields = "'descr', 'fortran_order' and 'shape', each once";
  damaged("", 0, "'{'");
  damaged("[]", 0, "'{'");
  damaged("{}\n", 2, fields);
  damaged("{'descr': '|u1', 'shape': ()}\n", 29, fields);
  damaged("{'descr': '|u1', 'descr': '|u1'}\n", 17, fields);
  damaged("{'descr': '|u1', 'color': 1}\n", 17, fields);
  damaged("{descr: '|u1'}\n", 1, "'''");
  damaged("{'descr' '|u1'}\n", 9, "':'");
  damaged("{'descr': |u1}\n", 10, "'''");
  damaged("{'descr': '|u1}\n", 11, "a plain string");
  damaged("{'descr': '\\x7cu1'}\n", 11, "a plain string");
  damaged("{'descr': '|u1' 'shape': ()}\n", 16, "'}'");
  damaged("{'fortran_order': 0}\n", 18, "True or False");
  damaged("{'fortran_order': Tru", 18, "True or False");
  damaged("{'fortran_order': Falsehood}\n", 23, "'}'");
  const std::string whole = "a whole number from 0 to 2^63 - 1";
  damaged("{'shape': 3}\n", 10, "'('");
  damaged("{'shape': (3)}\n", 12, "','");
  damaged("{'shape': (-3,)}\n", 11, whole);
  damaged("{'shape': (+3,)}\n", 11, whole);
  damaged("{'shape': (03,)}\n", 11, whole);
  damaged("{'shape': (3.0,)}\n", 12, "','");
  damaged("{'shape': (3, 4.0)}\n", 15, "')'");
  damaged("{'shape': (,)}\n", 11, whole);
  damaged("{'shape': (9223372036854775808,)}\n", 11, whole);
  damaged("{'shape': (3,", 13, whole);
  const std::string end = "spaces and one newline at the end";
  const std::string complete = "{'descr': '|u1', 'fortran_order': False, 'shape': (), }";
  damaged(complete, 55, end);
  damaged(complete + "   ", 58, end);
  damaged(complete + "\n\n", 55, end);
  damaged(complete + " x\n", 56, end);
  damaged(complete + std::string("\0\n", 2), 55, end);
  EXPECT_EQ(read(assemble(complete + "\n", "1")).count(), 1);
}

TEST(Npy, ElementTypes) {
  for (const char* descr : {"<c8", "|S5", "<U3", "|O", "<M8[ns]", "|V2", "<f16", "<i16", "<b1x", "|b2"}) {
    refused(assemble(header_of(descr, "()")),
            std::string("its element type is '") + descr + "'; accepted are b1, i1 to i8, u1 to u8, f2, f4 and f8",
            ErrorCode::unsupported);
  }
  for (const char* descr : {"", "f4", "|f4", "|i2", "!f4"}) {
    refused(assemble(header_of(descr, "()")),
            std::string("its descr is '") + descr +
                "'; accepted is a byte order (<, >, =, or | for single bytes) and a type");
  }
  refused(assemble("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': ()}\n"),
          "its elements are structures, which heddle does not have", ErrorCode::unsupported);
  refused(assemble(header_of("|u1", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), "1"), "it has more than 8 axes",
          ErrorCode::unsupported);
}

TEST(Npy, WhatCannotBeWrittenIsRefused) {
  for (const DType dtype : {DType::bf16, DType::e4m3, DType::e5m2}) {
    expect_error([&] { write(Tensor::zeros(dtype, {2})); }, ErrorCode::unsupported,
                 "tensor has dtype " + std::string(name(dtype)) +
                     ", which .npy files cannot hold; accepted are f64, f32, f16, the integers and bool");
  }
  float value = 0;
  expect_error(
      [&] {
        write(ConstTensorView(&value, DType::f32, {1}, Device{DeviceKind::rocm, 0}));
      },
      ErrorCode::unsupported, "tensor is on a GPU; only CPU memory can be written");
}

}  // namespace
}  // namespace heddle
