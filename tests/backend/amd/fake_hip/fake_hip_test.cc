// The fake HIP library as a caller sees it: loaded at run time, every call by its name.
#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "scoped_environment.h"

namespace heddle::amd {
namespace {

using ::testing::HasSubstr;

class Library {
 public:
  explicit Library(const char* path) : handle_(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) throw std::runtime_error(dlerror());
  }
  template <class... Arguments>
  int call(const char* name, Arguments... arguments) const {
    return function<int(Arguments...)>(name)(arguments...);
  }
  template <class Signature>
  Signature* function(const char* name) const {
    void* symbol = dlsym(handle_, name);
    if (!symbol) throw std::runtime_error(dlerror());
    return reinterpret_cast<Signature*>(symbol);
  }

 private:
  void* handle_;
};

std::vector<char> code_object(const std::string& kernels, const std::string& chip) {
  std::ifstream file(AMD_CODE_OBJECTS "/" + kernels + "." + chip + ".hsaco", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

constexpr int kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100, kInvalidDevice = 101, kInvalidImage = 200,
              kNoBinaryForGpu = 209, kInvalidHandle = 400, kNotFound = 500, kIllegalAddress = 700;

// A death test a case would load the library anew; one process has one library, whose devices are told apart by their
// number.
class FakeHip : public ::testing::Test {
 protected:
  void* allocate(std::size_t bytes) {
    void* pointer = nullptr;
    EXPECT_EQ(hip_.call("hipMalloc", &pointer, bytes), 0);
    return pointer;
  }
  void* load(const std::string& kernels, const std::string& chip = "gfx1100") {
    const std::vector<char> image = code_object(kernels, chip);
    void* module = nullptr;
    EXPECT_EQ(hip_.call("hipModuleLoadData", &module, static_cast<const void*>(image.data())), 0);
    return module;
  }
  void* get(void* module, const char* name) {
    void* function = nullptr;
    EXPECT_EQ(hip_.call("hipModuleGetFunction", &function, module, name), 0);
    return function;
  }
  int launch(void* function, unsigned groups, unsigned block, void** parameters, void** extra = nullptr) {
    return hip_.call("hipModuleLaunchKernel", function, groups, 1u, 1u, block, 1u, 1u, 0u, static_cast<void*>(nullptr),
                     parameters, extra);
  }
  std::string findings() {
    std::string text(10000, '\0');
    hip_.function<std::size_t(char*, std::size_t)>("fake_hip_take_findings")(text.data(), text.size());
    return text.c_str();
  }

  Library hip_{FAKE_HIP};
};

TEST_F(FakeHip, runs_a_kernel) {
  int count = 0;
  ASSERT_EQ(hip_.call("hipInit", 0u), 0);
  ASSERT_EQ(hip_.call("hipGetDeviceCount", &count), 0);
  EXPECT_EQ(count, 2);
  void* module = load("memory");
  void* copy = get(module, "copy");
  std::vector<float> in(1000), out(1000);
  std::iota(in.begin(), in.end(), 0.5f);
  void *from = allocate(4000), *to = allocate(4000);
  void* stream = nullptr;
  ASSERT_EQ(hip_.call("hipStreamCreateWithFlags", &stream, 1u), 0);
  ASSERT_EQ(hip_.call("hipMemcpyAsync", from, static_cast<const void*>(in.data()), std::size_t{4000}, 1, stream), 0);
  unsigned n = 1000;
  void* parameters[] = {&to, &from, &n};
  EXPECT_EQ(launch(copy, 4, 256, parameters), 0);
  ASSERT_EQ(hip_.call("hipStreamSynchronize", stream), 0);
  ASSERT_EQ(hip_.call("hipMemcpyAsync", static_cast<void*>(out.data()), static_cast<const void*>(to), std::size_t{4000},
                      2, stream),
            0);
  EXPECT_EQ(out, in);
  EXPECT_EQ(findings(), "");

  // Now from one buffer of arguments.
  struct {
    void *to, *from;
    unsigned n;
  } packed = {to, from, 10};
  std::size_t size = 20;
  void* extra[] = {reinterpret_cast<void*>(1), &packed, reinterpret_cast<void*>(2), &size, reinterpret_cast<void*>(3)};
  EXPECT_EQ(hip_.call("hipMemset", to, 0, std::size_t{4000}), 0);
  EXPECT_EQ(launch(copy, 1, 256, nullptr, extra), 0);
  ASSERT_EQ(hip_.call("hipMemcpyDtoH", static_cast<void*>(out.data()), to, std::size_t{4000}), 0);
  EXPECT_EQ(out[9], in[9]);
  EXPECT_EQ(out[10], 0);
  extra[4] = reinterpret_cast<void*>(0);
  EXPECT_EQ(launch(copy, 1, 256, nullptr, extra), kInvalidValue);

  EXPECT_EQ(hip_.call("hipFree", from), 0);
  EXPECT_EQ(hip_.call("hipFree", to), 0);
  EXPECT_EQ(hip_.call("hipFree", to), kInvalidValue);
  EXPECT_EQ(hip_.call("hipStreamDestroy", stream), 0);
  EXPECT_EQ(hip_.call("hipModuleUnload", module), 0);
  EXPECT_EQ(hip_.call("hipModuleUnload", module), kInvalidHandle);
  EXPECT_EQ(hip_.function<std::size_t()>("fake_hip_allocated")(), 0u);
}

TEST_F(FakeHip, times_with_events) {
  void *first = nullptr, *last = nullptr;
  float milliseconds = -1;
  ASSERT_EQ(hip_.call("hipEventCreate", &first), 0);
  ASSERT_EQ(hip_.call("hipEventCreate", &last), 0);
  EXPECT_EQ(hip_.call("hipEventElapsedTime", &milliseconds, first, last), kInvalidHandle);
  ASSERT_EQ(hip_.call("hipEventRecord", first, static_cast<void*>(nullptr)), 0);
  ASSERT_EQ(hip_.call("hipEventRecord", last, static_cast<void*>(nullptr)), 0);
  EXPECT_EQ(hip_.call("hipEventElapsedTime", &milliseconds, first, last), 0);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(hip_.call("hipEventDestroy", first), 0);
  EXPECT_EQ(hip_.call("hipEventDestroy", last), 0);
}

TEST_F(FakeHip, refuses) {
  void *module = nullptr, *function = nullptr, *pointer = nullptr;
  const std::vector<char> junk(1000, 'x'), other = code_object("memory", "gfx942");
  EXPECT_EQ(hip_.call("hipModuleLoadData", &module, static_cast<const void*>(junk.data())), kInvalidImage);
  EXPECT_EQ(hip_.call("hipModuleLoadData", &module, static_cast<const void*>(other.data())), kNoBinaryForGpu);
  EXPECT_STREQ(hip_.function<const char*(int)>("hipGetErrorString")(kNoBinaryForGpu), "hipErrorNoBinaryForGpu");
  EXPECT_EQ(hip_.call("hipGetLastError"), kNoBinaryForGpu);
  EXPECT_EQ(hip_.call("hipGetLastError"), 0);
  module = load("memory");
  EXPECT_EQ(hip_.call("hipModuleGetFunction", &function, module, "nothing"), kNotFound);
  EXPECT_EQ(hip_.call("hipMalloc", &pointer, std::size_t{1} << 40), kOutOfMemory);
  EXPECT_EQ(hip_.call("hipSetDevice", 2), kInvalidDevice);
  function = get(module, "copy");
  void* parameters[] = {&pointer, &pointer, &pointer};
  EXPECT_EQ(launch(function, 0, 256, parameters), kInvalidValue);
  EXPECT_EQ(launch(function, 1, 2000, parameters), kInvalidValue);
  EXPECT_EQ(launch(nullptr, 1, 256, parameters), kInvalidHandle);
  EXPECT_EQ(hip_.call("hipModuleUnload", module), 0);
  findings();
}

TEST_F(FakeHip, fails_as_planned) {
  const ScopedVariable plan("FAKE_HIP_FAILS", "hipMalloc=2");
  void* pointer = nullptr;
  EXPECT_EQ(hip_.call("hipMalloc", &pointer, std::size_t{16}), kOutOfMemory);
  int number = -1;
  EXPECT_EQ(hip_.call("hipGetDevice", &number), 0);
}

TEST_F(FakeHip, without_a_device) {
  const ScopedVariable none("FAKE_HIP_DEVICES", "0");
  int count = -1;
  EXPECT_EQ(hip_.call("hipInit", 0u), kInvalidDevice);
  EXPECT_EQ(hip_.call("hipGetDeviceCount", &count), kNoDevice);
  EXPECT_EQ(count, 0);
}

TEST_F(FakeHip, tells_the_device_of_a_pointer) {
  ASSERT_EQ(hip_.call("hipSetDevice", 1), 0);
  void* pointer = allocate(100);
  ASSERT_EQ(hip_.call("hipSetDevice", 0), 0);
  int number = -1, on_stack = 0;
  EXPECT_EQ(hip_.call("hipPointerGetAttribute", static_cast<void*>(&number), 9,
                      static_cast<void*>(static_cast<char*>(pointer) + 99)),
            0);
  EXPECT_EQ(number, 1);
  EXPECT_EQ(hip_.call("hipPointerGetAttribute", static_cast<void*>(&number), 9, static_cast<void*>(&on_stack)),
            kInvalidValue);
  EXPECT_EQ(hip_.call("hipFree", pointer), 0);
}

// Last, on the second device: it does not recover.
TEST_F(FakeHip, z_breaks_after_an_access_out_of_bounds) {
  ASSERT_EQ(hip_.call("hipSetDevice", 1), 0);
  void* function = get(load("faults"), "out_of_bounds_write");
  void* to = allocate(32);
  unsigned n = 8;
  void* parameters[] = {&to, &n};
  EXPECT_EQ(launch(function, 1, 64, parameters), 0);
  EXPECT_EQ(hip_.call("hipDeviceSynchronize"), kIllegalAddress);
  EXPECT_EQ(launch(function, 1, 64, parameters), kIllegalAddress);
  EXPECT_THAT(findings(), HasSubstr("out_of_bounds_write: out of bounds"));
  ASSERT_EQ(hip_.call("hipSetDevice", 0), 0);
  EXPECT_EQ(hip_.call("hipDeviceSynchronize"), 0);
}

TEST(FakeHsa, lists_the_agents) {
  struct Agent {
    std::uint64_t handle;
  };
  const ScopedVariable chip("FAKE_HIP_CHIP", "gfx942"), units("FAKE_HIP_CUS", "304");
  const Library hsa(FAKE_HSA);
  ASSERT_EQ(hsa.call("hsa_init"), 0);
  std::vector<Agent> agents;
  int (*collect)(Agent, void*) = [](Agent agent, void* list) {
    static_cast<std::vector<Agent>*>(list)->push_back(agent);
    return 0;
  };
  ASSERT_EQ(hsa.call("hsa_iterate_agents", collect, static_cast<void*>(&agents)), 0);
  ASSERT_EQ(agents.size(), 3u);
  char name[64] = {};
  std::uint32_t type = 9, count = 0;
  EXPECT_EQ(hsa.call("hsa_agent_get_info", agents[1], 0, static_cast<void*>(name)), 0);
  EXPECT_STREQ(name, "gfx942");
  EXPECT_EQ(hsa.call("hsa_agent_get_info", agents[1], 17, static_cast<void*>(&type)), 0);
  EXPECT_EQ(type, 1u);
  EXPECT_EQ(hsa.call("hsa_agent_get_info", agents[1], 0xA002, static_cast<void*>(&count)), 0);
  EXPECT_EQ(count, 304u);
}

}  // namespace
}  // namespace heddle::amd
