#include "files/safetensors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "expect_error.h"
#include "files/golden.h"
#include "files/memory_files.h"

namespace heddle {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string assemble(const std::string& header, std::size_t data_bytes = 0) {
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  return file + header + std::string(data_bytes, '\1');
}

TensorFile read(const std::string& bytes) { return files::read_safetensors(source_of(bytes)); }

std::string write(const TensorFile& file) {
  files::MemorySink sink;
  files::write_safetensors(file, sink);
  return text_of(sink);
}

void refused(const std::string& bytes, const std::string& what, ErrorCode code = ErrorCode::io) {
  SCOPED_TRACE(bytes.size() < 300 ? bytes : "");
  expect_error([&] { read(bytes); }, code, "cannot read memory: " + what);
}

TEST(Safetensors, ReadsWhatTheReferenceImplementationWrote) {
  const TensorFile file = read(kGoldenSafetensors);
  EXPECT_EQ(file.metadata, (std::map<std::string, std::string>{{"origin", "numpy"}}));
  ASSERT_EQ(file.tensors.size(), 9u);
  const auto expect = [&](const char* name, DType dtype, const Dims& shape, const std::vector<double>& values) {
    const Tensor& tensor = file.tensors.at(name);
    EXPECT_EQ(tensor.dtype(), dtype) << name;
    EXPECT_EQ(tensor.shape(), shape) << name;
    EXPECT_EQ(elements(tensor), values) << name;
  };
  expect("w", DType::f32, {2, 3}, {1.5, -2, 0, 3.25, kInfinity, 0});
  EXPECT_TRUE(std::signbit(get_element(file.tensors.at("w"), {1, 2})));
  expect("ids", DType::i64, {2}, {5, -7});
  expect("flag", DType::boolean, {3}, {1, 0, 1});
  expect("half", DType::f16, {2}, {1, 65504});
  expect("bf", DType::bf16, {2}, {1, -3});
  expect("one", DType::f64, {}, {2.5});
  expect("none", DType::u8, {0, 4}, {});
  expect("e4", DType::e4m3, {2}, {1, 448});
  expect("e5", DType::e5m2, {2}, {1, -57344});
}

TEST(Safetensors, WritesTheSameBytesAsTheReferenceImplementation) {
  EXPECT_EQ(write(read(kGoldenSafetensors)), kGoldenSafetensors);
}

TEST(Safetensors, RoundTripOfEveryTypeAndLayout) {
  std::mt19937_64 random(1);
  TensorFile file;
  file.metadata = {{"", "empty key"}, {"quote \" and \\", "line\nand \xc3\xa9 and \x01"}};
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const std::string base(name(dtype));
    const Tensor tensor = random_bits(dtype, {3, 5, 7}, random);
    file.tensors[base] = tensor;
    file.tensors[base + " turned \xe2\x86\xbb"] =
        Tensor::adopt(permute(slice(tensor.view(), 2, 1, 6), {2, 0, 1}), std::make_shared<Tensor>(tensor));
    file.tensors[base + "/backwards"] =
        Tensor::adopt(TensorView(static_cast<std::byte*>(tensor.data()) + 104 * size_of(dtype), dtype, {105}, {-1}),
                      std::make_shared<Tensor>(tensor));
    file.tensors[base + "\"scalar\""] = random_bits(dtype, {}, random);
    file.tensors[base + " empty"] = random_bits(dtype, {2, 0, 3}, random);
    file.tensors[base + " eight"] = random_bits(dtype, {1, 2, 1, 2, 1, 2, 1, 2}, random);
  }
  file.tensors[""] = Tensor();
  const std::string bytes = write(file);
  const TensorFile back = read(bytes);
  EXPECT_EQ(back.metadata, file.metadata);
  ASSERT_EQ(back.tensors.size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    const Tensor& loaded = back.tensors.at(name);
    EXPECT_EQ(loaded.dtype(), tensor.dtype()) << name;
    EXPECT_EQ(loaded.shape(), tensor.shape()) << name;
    EXPECT_TRUE(is_contiguous(loaded)) << name;
    EXPECT_EQ(element_bytes(loaded), element_bytes(tensor)) << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(loaded.data()) % 64, 0u) << name;
  }
  EXPECT_EQ(write(back), bytes);
}

TEST(Safetensors, HeaderIsPaddedToEight) {
  for (int length = 1; length < 10; ++length) {
    TensorFile file;
    file.tensors[std::string(static_cast<std::size_t>(length), 'x')] = Tensor::zeros(DType::f64, {1});
    const std::string bytes = write(file);
    EXPECT_EQ((bytes.size() - 8) % 8, 0u);
    EXPECT_EQ(static_cast<unsigned char>(bytes[0]) % 8, 0);
    EXPECT_EQ(read(bytes).tensors.size(), 1u);
  }
}

TEST(Safetensors, EmptyAndManyTensors) {
  EXPECT_EQ(read(assemble("{}")).tensors.size(), 0u);
  EXPECT_EQ(read(assemble("{}   ")).tensors.size(), 0u);
  EXPECT_EQ(read(assemble("{\"__metadata__\":{}}")).metadata.size(), 0u);
  EXPECT_EQ(write({}), assemble("{}      "));
  TensorFile file;
  const Tensor one = Tensor::zeros(DType::u8, {1});
  for (int i = 0; i < 20000; ++i) file.tensors[std::to_string(i)] = one;
  EXPECT_EQ(read(write(file)).tensors.size(), 20000u);
}

TEST(Safetensors, TensorsMayStandInAnyOrderAndPlace) {
  const std::string header =
      R"({"b":{"shape":[2],"data_offsets":[3,5],"dtype":"U8"},"none":{"dtype":"F64","shape":[0],"data_offsets":[3,3]},)"
      R"( "a" : { "dtype":"U8", "shape":[3], "data_offsets":[0,3] } })";
  const TensorFile file = read(assemble(header, 5));
  EXPECT_EQ(file.tensors.at("a").count(), 3);
  EXPECT_EQ(file.tensors.at("b").count(), 2);
  EXPECT_EQ(file.tensors.at("none").count(), 0);
}

TEST(Safetensors, DamagedLengthsAreRefused) {
  refused("", "it has 0 bytes, fewer than the 8 of the header's length");
  refused("1234567", "it has 7 bytes, fewer than the 8 of the header's length");
  refused(std::string(8, '\0'), "its header does not begin with '{'");
  std::string file = assemble("{}");
  file[0] = 3;
  refused(file, "its header length is 3, but only 2 bytes follow");
  file[0] = 1;
  refused(file, "its header does not end with '}' and spaces");
  file.replace(0, 8, "\xff\xe0\xf5\x05\0\0\0\0", 8);
  refused(file, "its header length is 99999999, but only 2 bytes follow");
  file.replace(0, 8, "\x01\xe1\xf5\x05\0\0\0\0", 8);
  refused(file, "its header length is 100000001; accepted are at most 100000000 bytes");
  file.replace(0, 8, 8, '\xff');
  refused(file, "its header length is 18446744073709551615; accepted are at most 100000000 bytes");
}

TEST(Safetensors, HeadersThatAreNotJsonAreRefused) {
  refused(assemble(""), "its header does not begin with '{'");
  refused(assemble(" {}"), "its header does not begin with '{'");
  refused(assemble("[]"), "its header does not begin with '{'");
  refused(assemble("\xef\xbb\xbf{}"), "its header does not begin with '{'");
  refused(assemble("{}\n"), "its header does not end with '}' and spaces");
  refused(assemble("{} x"), "its header does not end with '}' and spaces");
  refused(assemble("{}{}"), "its header is not JSON at byte 3 of it");
  refused(assemble("{,}"), "its header is not JSON at byte 2 of it");
  refused(assemble("{\"a\"}"), "its header is not JSON at byte 5 of it");
  refused(assemble("{\"__metadata__\":{\"a\":\"b\",}}"), "its header is not JSON at byte 26 of it");
  refused(assemble("{'a':1}"), "its header is not JSON at byte 2 of it");
  refused(assemble("{\"\xff\":1}"), "its header is not JSON at byte 3 of it");
  refused(assemble("{\"a\nb\":1}"), "its header is not JSON at byte 4 of it");
  refused(assemble(std::string("{}\0}", 4)), "its header has a zero byte");
  refused(assemble("{/**/}"), "its header is not JSON at byte 2 of it");
}

/// A header with one tensor of these fields.
std::string one(const std::string& fields) { return "{\"x\":{" + fields + "}}"; }

TEST(Safetensors, EntriesOfTheWrongFormAreRefused) {
  refused(assemble("{\"x\":1}"), "tensor 'x' is not an object");
  refused(assemble("{\"x\":[{}]}"), "tensor 'x' is not an object");
  refused(assemble("{\"x\":null}"), "tensor 'x' is not an object");
  refused(assemble("{\"x\":{}}"), "tensor 'x' has no dtype");
  refused(assemble(one(R"("dtype":"U8","data_offsets":[0,0])")), "tensor 'x' has no shape");
  refused(assemble(one(R"("dtype":"U8","shape":[0])")), "tensor 'x' has no data_offsets");
  refused(assemble(one(R"("dtype":8,"shape":[0],"data_offsets":[0,0])")), "dtype of tensor 'x' is not a string");
  refused(assemble(one(R"("dtype":{"a":1})")), "dtype of tensor 'x' is not a string");
  refused(assemble(one(R"("extra":1)")), "tensor 'x' has an unknown entry 'extra'");
  const std::string shape = "shape of tensor 'x' is not an array of whole numbers from 0 to 2^63 - 1";
  for (const char* bad : {"3", "\"3\"", "[-1]", "[1.0]", "[1e2]", "[\"1\"]", "[[1]]", "[null]", "[true]", "{}",
                          "[9223372036854775808]", "[99999999999999999999]"}) {
    refused(assemble(one(std::string("\"shape\":") + bad)), shape);
  }
  const std::string offsets = "data_offsets of tensor 'x' is not an array of two byte positions";
  for (const char* bad :
       {"0", "[]", "[0]", "[0,1,2]", "[-1,0]", "[0.0,1]", "{}", "[[0,1]]", "[0,18446744073709551616]"}) {
    refused(assemble(one(std::string("\"data_offsets\":") + bad)), offsets);
  }
  refused(assemble("{\"__metadata__\":1}"), "'__metadata__' is not an object");
  refused(assemble("{\"__metadata__\":null}"), "'__metadata__' is not an object");
  refused(assemble("{\"__metadata__\":[]}"), "'__metadata__' is not an object");
  refused(assemble("{\"__metadata__\":{\"k\":1}}"), "entry 'k' of '__metadata__' is not a string");
  refused(assemble("{\"__metadata__\":{\"k\":{}}}"), "entry 'k' of '__metadata__' is not a string");
  refused(assemble("{\"__metadata__\":{\"k\":[]}}"), "entry 'k' of '__metadata__' is not a string");
}

TEST(Safetensors, DuplicatesAreRefused) {
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  refused(assemble("{\"x\":" + entry + ",\"y\":" + entry + ",\"x\":" + entry + "}"), "its header has tensor 'x' twice");
  // One name in two spellings counts as twice, too.
  refused(assemble("{\"x\":" + entry + ",\"\\u0078\":" + entry + "}"), "its header has tensor 'x' twice");
  refused(assemble(R"({"__metadata__":{},"__metadata__":{}})"), "its header has '__metadata__' twice");
  refused(assemble(R"({"__metadata__":{"k":"a","k":"a"}})"), "__metadata__ has 'k' twice");
  refused(assemble(one(R"("dtype":"U8","dtype":"U8")")), "tensor 'x' has 'dtype' twice");
  refused(assemble(one(R"("shape":[],"shape":[])")), "tensor 'x' has 'shape' twice");
  refused(assemble(one(R"("data_offsets":[0,0],"data_offsets":[0,0])")), "tensor 'x' has 'data_offsets' twice");
}

// A reader of other tensors does not care; a reader of this tensor learns why it is not there.
TEST(Safetensors, TensorsThatHeddleCannotHoldAreSkipped) {
  const auto beside = [](const std::string& entry) {
    return assemble(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"x":{)" + entry +
                        R"(},"z":{"dtype":"U8","shape":[2],"data_offsets":[4,6]}})",
                    6);
  };
  const auto expect_skipped = [&](const std::string& entry, const std::string& why) {
    const TensorFile file = read(beside(entry + R"(,"data_offsets":[1,4])"));
    EXPECT_EQ(file.skipped, (std::map<std::string, std::string>{{"x", "cannot read memory: tensor 'x' " + why}}));
    ASSERT_EQ(file.tensors.size(), 2u);
    EXPECT_EQ(elements(file.tensors.at("z")), (std::vector<double>{1, 1}));
    EXPECT_TRUE(read(write(file)).skipped.empty());
  };
  for (const std::string dtype : {"F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "C64", "F8_E4M3FNUZ", "f32", "", "F32 "}) {
    expect_skipped(R"("dtype":")" + dtype + R"(","shape":[4])",
                   "has dtype '" + dtype + "', which heddle does not have");
  }
  expect_skipped(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,3])", "has 9 axes, more than 8");
  expect_skipped(R"("dtype":"C64","shape":[0,9223372036854775807,9,1,1,1,1,1,1,1])",
                 "has dtype 'C64', which heddle does not have");
  EXPECT_TRUE(read(kGoldenSafetensors).skipped.empty());
  // Their place counts.
  const std::string c64 = R"("dtype":"C64","shape":[1],"data_offsets":)";
  refused(beside(c64 + "[1,3]"), "no tensor covers the bytes [3, 4) of the data");
  refused(beside(c64 + "[1,5]"), "tensors 'x' and 'z' overlap at byte 4 of the data");
  refused(beside(c64 + "[4,1]"), "tensor 'x' ends before it begins: its data_offsets are [4, 1]");
  refused(assemble(one(c64 + "[0,18446744073709551615]"), 4),
          "it is truncated: the tensors take 18446744073709551615 bytes, but 4 follow the header");
}

TEST(Safetensors, SizesMustFitTheOffsets) {
  const auto with = [](const std::string& shape, const std::string& offsets) {
    return assemble(one(R"("dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets), 8);
  };
  EXPECT_EQ(read(with("[2]", "[0,8]")).tensors.size(), 1u);
  refused(with("[3]", "[0,8]"),
          "tensor 'x' of dtype F32 and shape [3] takes 12 bytes, but its data_offsets are [0, 8]");
  refused(with("[]", "[0,8]"), "tensor 'x' of dtype F32 and shape [] takes 4 bytes, but its data_offsets are [0, 8]");
  refused(with("[2]", "[8,0]"), "tensor 'x' of dtype F32 and shape [2] takes 8 bytes, but its data_offsets are [8, 0]");
  // 8 - 0 = 0 - (2^64 - 8).
  refused(with("[2]", "[18446744073709551608,0]"),
          "tensor 'x' of dtype F32 and shape [2] takes 8 bytes, but its data_offsets are [18446744073709551608, 0]");
  refused(with("[0]", "[0,8]"), "tensor 'x' of dtype F32 and shape [0] takes 0 bytes, but its data_offsets are [0, 8]");
  refused(with("[4611686018427387904]", "[0,0]"),
          "tensor 'x' of shape [4611686018427387904] has more than 2^63 - 1 bytes");
  refused(with("[4294967296,4294967296]", "[0,0]"),
          "tensor 'x' of shape [4294967296, 4294967296] has more than 2^63 - 1 bytes");
  refused(with("[0,9223372036854775807,9]", "[0,0]"),
          "tensor 'x' of shape [0, 9223372036854775807, 9] has more than 2^63 - 1 bytes");
  // The largest size that a file can state. Nothing of that size is allocated.
  refused(with("[1152921504606846976]", "[0,4611686018427387904]"),
          "it is truncated: the tensors take 4611686018427387904 bytes, but 8 follow the header");
}

TEST(Safetensors, TensorsMustCoverTheDataExactlyOnce) {
  const auto with = [](const std::string& a, const std::string& b, std::size_t data_bytes) {
    const auto entry = [](const std::string& offsets) {
      return R"({"dtype":"U8","shape":[4],"data_offsets":)" + offsets + "}";
    };
    return assemble("{\"a\":" + entry(a) + ",\"b\":" + entry(b) + "}", data_bytes);
  };
  EXPECT_EQ(read(with("[4,8]", "[0,4]", 8)).tensors.size(), 2u);
  refused(with("[0,4]", "[5,9]", 9), "no tensor covers the bytes [4, 5) of the data");
  refused(with("[1,5]", "[5,9]", 9), "no tensor covers the bytes [0, 1) of the data");
  refused(with("[0,4]", "[3,7]", 7), "tensors 'a' and 'b' overlap at byte 3 of the data");
  refused(with("[0,4]", "[0,4]", 4), "tensors 'a' and 'b' overlap at byte 0 of the data");
  refused(with("[0,4]", "[4,8]", 7), "it is truncated: the tensors take 8 bytes, but 7 follow the header");
  refused(with("[0,4]", "[4,8]", 9), "1 bytes are left over after the last tensor");
  refused(assemble("{}", 3), "3 bytes are left over after the last tensor");
  refused(with("[18446744073709551612,18446744073709551615]", "[0,4]", 4),
          "tensor 'a' of dtype U8 and shape [4] takes 4 bytes, but its data_offsets are [18446744073709551612, "
          "18446744073709551615]");
}

TEST(Safetensors, WhatCannotBeWrittenIsRefused) {
  TensorFile file;
  file.tensors["__metadata__"] = Tensor::zeros(DType::f32, {1});
  expect_error([&] { write(file); }, ErrorCode::invalid_argument,
               "a tensor is named '__metadata__', which safetensors keeps for itself");
  file.tensors.clear();
  file.tensors["\xff"] = Tensor::zeros(DType::f32, {1});
  expect_error([&] { write(file); }, ErrorCode::invalid_argument, "a tensor's name or a metadata entry is not UTF-8");
  file.tensors.clear();
  file.metadata["k"] = "\xc3";
  expect_error([&] { write(file); }, ErrorCode::invalid_argument, "a tensor's name or a metadata entry is not UTF-8");
  file.metadata.clear();
  float value = 0;
  file.tensors["k"] = Tensor::adopt(TensorView(&value, DType::f32, {1}, Device{DeviceKind::cuda, 0}), nullptr);
  expect_error([&] { write(file); }, ErrorCode::unsupported, "tensor 'k' is on a GPU; only CPU memory can be written");
}

}  // namespace
}  // namespace heddle
