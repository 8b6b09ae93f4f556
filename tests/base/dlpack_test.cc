#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "base/dlpack_abi.h"
#include "expect_error.h"
#include "heddle/tensor.h"

namespace heddle {
namespace {

/// A producer's tensor of either ABI over its own memory, which counts the calls of its deleter.
template <class Managed>
struct Producer {
  std::array<float, 24> values{};
  std::array<std::int64_t, 9> shape{2, 3, 4};
  std::array<std::int64_t, 9> strides{12, 4, 1};
  int deleted = 0;
  Managed managed{};

  Producer() {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    managed.dl_tensor = {values.data(), {base::kDLCpu, 0}, 3, {base::kDLFloat, 32, 1}, shape.data(), strides.data(), 0};
    managed.manager_ctx = this;
    managed.deleter = [](Managed* self) { ++static_cast<Producer*>(self->manager_ctx)->deleted; };
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) managed.version = {1, 0};
  }
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;
  DLTensor& tensor() { return managed.dl_tensor; }
  Tensor import() { return Tensor::from_dlpack(&managed); }
};

Tensor import_exported(const Tensor& tensor, DLManagedTensor*) { return Tensor::from_dlpack(tensor.to_dlpack()); }
Tensor import_exported(const Tensor& tensor, DLManagedTensorVersioned*) {
  return Tensor::from_dlpack(tensor.to_dlpack_versioned());
}

template <class Managed>
class DLPack : public testing::Test {
 protected:
  Producer<Managed> producer_;

  void refused(ErrorCode code, const std::string& sentence) {
    expect_error([&] { producer_.import(); }, code, "DLPack tensor: " + sentence);
    EXPECT_EQ(producer_.deleted, 0);
  }
};
using Abis = testing::Types<DLManagedTensor, DLManagedTensorVersioned>;
TYPED_TEST_SUITE(DLPack, Abis);

TYPED_TEST(DLPack, ImportTakesOverAndDeletesOnce) {
  {
    const Tensor tensor = this->producer_.import();
    const Tensor other = tensor;
    EXPECT_EQ(tensor.dtype(), DType::f32);
    EXPECT_EQ(tensor.shape(), (Dims{2, 3, 4}));
    EXPECT_EQ(tensor.view().strides, (Dims{12, 4, 1}));
    EXPECT_EQ(tensor.data(), this->producer_.values.data());
    EXPECT_EQ(get_element(other, {1, 2, 3}), 23.0);
    EXPECT_EQ(this->producer_.deleted, 0);
  }
  EXPECT_EQ(this->producer_.deleted, 1);
}

TYPED_TEST(DLPack, NullStridesAreRowMajor) {
  this->producer_.tensor().strides = nullptr;
  EXPECT_EQ(this->producer_.import().view().strides, (Dims{12, 4, 1}));
}

TYPED_TEST(DLPack, StridesOfAnySignAndByteOffset) {
  this->producer_.strides = {12, -4, 1};
  this->producer_.tensor().byte_offset = 8 * sizeof(float);
  const Tensor tensor = this->producer_.import();
  EXPECT_EQ(get_element(tensor, {0, 0, 0}), 8.0);
  EXPECT_EQ(get_element(tensor, {1, 2, 3}), 15.0);
}

TYPED_TEST(DLPack, RankZeroAndEmpty) {
  this->producer_.tensor().ndim = 0;
  this->producer_.tensor().shape = nullptr;
  this->producer_.tensor().strides = nullptr;
  this->producer_.tensor().byte_offset = 4;
  EXPECT_EQ(get_element(this->producer_.import(), {}), 1.0);

  Producer<TypeParam> empty;
  empty.shape[1] = 0;
  empty.tensor().data = nullptr;
  EXPECT_EQ(empty.import().count(), 0);
  EXPECT_EQ(empty.deleted, 1);
}

TYPED_TEST(DLPack, ANullDeleterIsAllowed) {
  this->producer_.managed.deleter = nullptr;
  EXPECT_EQ(this->producer_.import().count(), 24);
}

TYPED_TEST(DLPack, Devices) {
  const std::vector<std::pair<std::int32_t, Device>> accepted{
      {base::kDLCuda, {DeviceKind::cuda, 3}},    {base::kDLCudaManaged, {DeviceKind::cuda, 3}},
      {base::kDLRocm, {DeviceKind::rocm, 3}},    {base::kDLCudaHost, {DeviceKind::cpu, 0}},
      {base::kDLRocmHost, {DeviceKind::cpu, 0}},
  };
  for (const auto& [type, device] : accepted) {
    Producer<TypeParam> producer;
    producer.tensor().device = {type, 3};
    EXPECT_EQ(producer.import().view().device, device) << type;
  }
  for (const std::int32_t type : {0, 4, 7, 8, 12, 14, -1}) {
    this->producer_.tensor().device.device_type = type;
    this->refused(ErrorCode::unsupported, "device type is " + std::to_string(type) +
                                              "; accepted are CPU (1), CUDA (2, 3, 13) and ROCm (10, 11)");
  }
}

TYPED_TEST(DLPack, UnknownElementTypesAreRefused) {
  // Opaque, complex, e4m3 without "fn", fp4, an odd width, a wide bool, vectors.
  const std::vector<DLDataType> types{{3, 64, 1}, {5, 64, 1}, {8, 8, 1},  {17, 4, 1}, {2, 8, 1}, {2, 128, 1},
                                      {0, 4, 1},  {6, 1, 1},  {4, 32, 1}, {2, 32, 2}, {2, 32, 0}};
  for (const DLDataType type : types) {
    this->producer_.tensor().dtype = type;
    this->refused(ErrorCode::unsupported,
                  "element type is code " + std::to_string(type.code) + ", " + std::to_string(type.bits) + " bits, " +
                      std::to_string(type.lanes) +
                      " lanes; accepted are one lane of float 64, 32 or 16, bfloat 16, float8_e4m3fn, float8_e5m2, int "
                      "and uint 64, 32, 16 or 8, and bool 8");
  }
}

TYPED_TEST(DLPack, RanksAreChecked) {
  this->producer_.shape.fill(1);
  this->producer_.tensor().ndim = 9;
  this->refused(ErrorCode::unsupported, "rank is 9; accepted are 0 to 8");
  this->producer_.tensor().ndim = -1;
  this->refused(ErrorCode::unsupported, "rank is -1; accepted are 0 to 8");
  this->producer_.tensor().ndim = 8;
  this->producer_.strides.fill(1);
  EXPECT_EQ(this->producer_.import().shape().size(), 8);
}

TYPED_TEST(DLPack, BadShapesAndPointersAreRefused) {
  const auto shape_refused = [&](ErrorCode code, const std::string& sentence) {
    expect_error([&] { this->producer_.import(); }, code, sentence);
    EXPECT_EQ(this->producer_.deleted, 0);
  };
  this->producer_.shape[1] = -3;
  shape_refused(ErrorCode::invalid_argument, "shape [2, -3, 4] has a negative extent");
  this->producer_.shape = {std::int64_t{1} << 40, std::int64_t{1} << 40, 1};
  shape_refused(ErrorCode::out_of_memory, "shape [1099511627776, 1099511627776, 1] has more than 2^63 - 1 elements");
  this->producer_.shape = {2, 3, 4};
  this->producer_.tensor().byte_offset = 2;
  this->refused(ErrorCode::unsupported, "data is not aligned to its elements of 4 bytes");
  this->producer_.tensor().data = nullptr;
  this->refused(ErrorCode::invalid_argument, "data is null, but the shape is [2, 3, 4]");
  this->producer_.tensor().shape = nullptr;
  this->refused(ErrorCode::invalid_argument, "shape is null");
  expect_error([] { Tensor::from_dlpack(static_cast<TypeParam*>(nullptr)); }, ErrorCode::invalid_argument,
               "DLPack tensor: the pointer is null");
}

TYPED_TEST(DLPack, ExportImportsAsTheSameTensor) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    Tensor tensor = Tensor::zeros(dtype, {2, 3});
    const Tensor turned = Tensor::adopt(permute(tensor.view(), {1, 0}), std::make_shared<Tensor>(tensor));
    const Tensor back = import_exported(turned, static_cast<TypeParam*>(nullptr));
    EXPECT_EQ(back.dtype(), dtype);
    EXPECT_EQ(back.data(), tensor.data());
    EXPECT_EQ(back.shape(), (Dims{3, 2}));
    EXPECT_EQ(back.view().strides, (Dims{1, 3}));
    EXPECT_EQ(back.view().device, Device{});
  }
  const Tensor scalar = import_exported(Tensor::zeros(DType::f32, {}), static_cast<TypeParam*>(nullptr));
  EXPECT_EQ(scalar.shape(), Dims{});
}

TYPED_TEST(DLPack, ExportKeepsTheMemoryUntilTheDeleterRuns) {
  auto owner = std::make_shared<std::vector<float>>(4, 2.5f);
  const std::weak_ptr<std::vector<float>> watch = owner;
  Tensor tensor = Tensor::adopt(TensorView(owner->data(), DType::f32, {4}), owner);
  owner.reset();
  TypeParam* managed = nullptr;
  if constexpr (std::is_same_v<TypeParam, DLManagedTensor>) {
    managed = tensor.to_dlpack();
  } else {
    managed = tensor.to_dlpack_versioned();
  }
  tensor = Tensor();
  ASSERT_FALSE(watch.expired());
  EXPECT_EQ(static_cast<float*>(managed->dl_tensor.data)[3], 2.5f);
  EXPECT_EQ(managed->dl_tensor.shape[0], 4);
  EXPECT_EQ(managed->dl_tensor.strides[0], 1);
  managed->deleter(managed);
  EXPECT_TRUE(watch.expired());
}

TYPED_TEST(DLPack, ExportNamesDeviceAndType) {
  float value = 0;
  for (const auto& [device, type] :
       {std::pair{Device{DeviceKind::cuda, 2}, 2}, std::pair{Device{DeviceKind::rocm, 2}, 10}}) {
    const Tensor tensor = Tensor::adopt(TensorView(&value, DType::bf16, {1}, device), nullptr);
    DLManagedTensor* managed = tensor.to_dlpack();
    EXPECT_EQ(managed->dl_tensor.device.device_type, type);
    EXPECT_EQ(managed->dl_tensor.device.device_id, 2);
    EXPECT_EQ(managed->dl_tensor.dtype.code, 4);
    EXPECT_EQ(managed->dl_tensor.dtype.bits, 16);
    EXPECT_EQ(managed->dl_tensor.dtype.lanes, 1);
    managed->deleter(managed);
  }
}

TEST(DLPackVersions, OnlyMajorOneIsAccepted) {
  Producer<DLManagedTensorVersioned> producer;
  for (const std::uint32_t major : {0u, 2u}) {
    producer.managed.version = {major, 3};
    expect_error([&] { producer.import(); }, ErrorCode::unsupported,
                 "DLPack tensor: its version is " + std::to_string(major) + ".3; accepted is 1.x");
    EXPECT_EQ(producer.deleted, 0);
  }
  producer.managed.version = {1, 99};
  EXPECT_EQ(producer.import().count(), 24);
}

TEST(DLPackVersions, ReadOnlyTensorsAreAccepted) {
  Producer<DLManagedTensorVersioned> producer;
  producer.managed.flags = base::kDLFlagReadOnly;
  EXPECT_EQ(producer.import().count(), 24);
  EXPECT_EQ(producer.deleted, 1);
}

TEST(DLPackVersions, ExportSaysItsVersion) {
  DLManagedTensorVersioned* managed = Tensor::zeros(DType::f32, {1}).to_dlpack_versioned();
  EXPECT_EQ(managed->version.major, 1u);
  EXPECT_EQ(managed->flags, 0u);
  managed->deleter(managed);
}

}  // namespace
}  // namespace heddle
