// A forward on a GPU from C, with nothing but heddle/c.h and the driver. With the argument "fake", HEDDLE_CUDA_DRIVER
// is the fake driver and nothing is computed. Ends with 77 where it cannot run, and says why.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"

enum { kSkipped = 77 };

// The driver, as its own header declares it.
static struct {
  int (*init)(unsigned flags);
  int (*get_device)(int* device, int index);
  int (*retain)(void** context, int device);
  int (*push)(void* context);
  int (*allocate)(unsigned long long* memory, size_t bytes);
  int (*release)(unsigned long long memory);
  int (*upload)(unsigned long long to, const void* from, size_t bytes);
  int (*create_stream)(void** stream, unsigned flags);
  int (*wait)(void* stream);
  int (*fake_launches)(void);  // the fake's alone
} cuda;

static bool find(void* library, void* function, const char* name) {
  *(void**)function = dlsym(library, name);
  return *(void**)function != NULL;
}

static bool open_driver(bool fake) {
  const char* path = getenv("HEDDLE_CUDA_DRIVER");
  void* library = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  void* context = NULL;
  int device = 0;
  return library != NULL && find(library, &cuda.init, "cuInit") && find(library, &cuda.get_device, "cuDeviceGet") &&
         find(library, &cuda.retain, "cuDevicePrimaryCtxRetain") && find(library, &cuda.push, "cuCtxPushCurrent_v2") &&
         find(library, &cuda.allocate, "cuMemAlloc_v2") && find(library, &cuda.release, "cuMemFree_v2") &&
         find(library, &cuda.upload, "cuMemcpyHtoD_v2") && find(library, &cuda.create_stream, "cuStreamCreate") &&
         find(library, &cuda.wait, "cuStreamSynchronize") &&
         (!fake || find(library, &cuda.fake_launches, "fake_cuda_launches")) && cuda.init(0) == 0 &&
         cuda.get_device(&device, 0) == 0 && cuda.retain(&context, device) == 0 && cuda.push(context) == 0;
}

// Why this machine cannot run the test; NULL where it can.
static const char* missing(void) {
  const char* json = NULL;
  EXPECT_OK(heddle_devices_json(&json));
  if (json == NULL || strstr(json, "compute capability 9.0") == NULL) return json;
  const bool required = getenv("HEDDLE_REQUIRE_NVRTC") != NULL;
  return strstr(json, "no kernel compiler") != NULL && !required ? json : NULL;
}

static void* device_memory(const void* content, size_t bytes) {
  unsigned long long memory = 0;
  EXPECT(cuda.allocate(&memory, bytes) == 0);
  if (content != NULL) EXPECT(cuda.upload(memory, content, bytes) == 0);
  return (void*)(uintptr_t)memory;
}

// A tensor on the first device: bf16 for rank 4, f32 for rank 3.
static heddle_tensor device_tensor(int32_t rank, const int64_t* shape, uint32_t seed) {
  const size_t element = rank == 4 ? 2 : 4;
  heddle_tensor tensor = tensor_of(NULL, rank == 4 ? HEDDLE_BF16 : HEDDLE_F32, rank, shape);
  const int64_t count = tensor.strides[0] * shape[0];
  float* values = random_floats(count, seed);
  unsigned char* bytes = malloc((size_t)count * element);
  if (bytes == NULL) abort();
  // The upper half of a float is a bf16; this machine is little-endian.
  for (int64_t i = 0; i < count; ++i) {
    memcpy(bytes + (size_t)i * element, (unsigned char*)&values[i] + 4 - element, element);
  }
  tensor.device_kind = HEDDLE_DEVICE_CUDA;
  tensor.data = device_memory(bytes, (size_t)count * element);
  free(bytes);
  free(values);
  return tensor;
}

// More tiles than a GPU has multiprocessors, so that a run needs its workspace.
enum { kBatch = 2, kHeads = 96, kKvHeads = 32, kRows = 40, kKeys = 40, kDim = 64 };

typedef struct {
  heddle_tensor q, k, v, o, lse;
} device_case;

static device_case make_case(void) {
  const int64_t q[] = {kBatch, kHeads, kRows, kDim}, k[] = {kBatch, kKvHeads, kKeys, kDim};
  return (device_case){device_tensor(4, q, 1), device_tensor(4, k, 2), device_tensor(4, k, 3), device_tensor(4, q, 4),
                       device_tensor(3, q, 5)};
}

static void free_device_case(const device_case* c) {
  const heddle_tensor* all[] = {&c->q, &c->k, &c->v, &c->o, &c->lse};
  for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
    EXPECT(cuda.release((unsigned long long)(uintptr_t)all[i]->data) == 0);
  }
}

static void expect_launches(int count) { EXPECT(cuda.fake_launches == NULL || cuda.fake_launches() == count); }

static void test_forward(device_case* c) {
  const heddle_attention_tensors tensors = {sizeof tensors, &c->q, &c->k, &c->v, &c->o, &c->lse, NULL, NULL};
  const heddle_attention_options options = {.struct_size = sizeof options, .mask_mod = "q_idx + 9 >= kv_idx"};
  heddle_plan* plan = NULL;
  EXPECT_OK(heddle_plan_create(&tensors, &options, &plan));
  if (plan == NULL) return;
  int32_t backend = -1;
  EXPECT_OK(heddle_plan_backend(plan, &backend));
  EXPECT(backend == HEDDLE_BACKEND_CUDA);
  int64_t bytes = -1;
  EXPECT_OK(heddle_plan_workspace_bytes(plan, &bytes));
  EXPECT(bytes == 64);

  heddle_run_options run = {.struct_size = sizeof run};
  EXPECT_ERROR(heddle_plan_run(plan, &tensors, &run), HEDDLE_ERROR_INVALID_ARGUMENT, "workspace is null");
  expect_launches(0);
  run.workspace = device_memory(NULL, (size_t)bytes);
  EXPECT(cuda.create_stream(&run.stream, 1) == 0);
  EXPECT_OK(heddle_plan_run(plan, &tensors, &run));
  expect_launches(1);
  EXPECT(cuda.wait(run.stream) == 0);
  if (cuda.fake_launches == NULL) {
    int32_t passed = 0;
    const char* report = NULL;
    EXPECT_OK(heddle_check_attention(&tensors, &options, &passed, &report));
    EXPECT(passed == 1);
    if (passed != 1 && report != NULL) puts(report);
  }
  EXPECT(cuda.release((unsigned long long)(uintptr_t)run.workspace) == 0);
  heddle_plan_destroy(plan);
}

static void test_refusals(device_case* c) {
  const heddle_attention_tensors tensors = {sizeof tensors, &c->q, &c->k, &c->v, &c->o, &c->lse, NULL, NULL};
  const double too_large = 3e38;  // by log2(e), which the kernel's exponents need, too
  const heddle_attention_options options = {.struct_size = sizeof options, .scale = &too_large};
  heddle_plan* plan = NULL;
  EXPECT_ERROR(heddle_plan_create(&tensors, &options, &plan), HEDDLE_ERROR_UNSUPPORTED, "scale is 3e+38");
  EXPECT(plan == NULL);
  const int64_t k[] = {kBatch, kKvHeads, kKeys, kDim};
  float* host = random_floats(kBatch * kKvHeads * kKeys * kDim, 6);
  heddle_tensor elsewhere = tensor_of(host, HEDDLE_BF16, 4, k);
  elsewhere.device_kind = HEDDLE_DEVICE_CUDA;
  const heddle_attention_tensors wrong = {sizeof wrong, &c->q, &c->k, &elsewhere, &c->o, NULL, NULL, NULL};
  EXPECT_ERROR(heddle_attention_into(&wrong, NULL), HEDDLE_ERROR_INVALID_ARGUMENT, "v is on cuda:0, but its data");
  free(host);
}

int main(int argc, char** argv) {
  const bool fake = argc > 1 && strcmp(argv[1], "fake") == 0;
  const char* reason = missing();
  if (reason != NULL) {
    printf("skipped: no GPU of compute capability 9.0 with a compiler: %s\n", reason);
    return kSkipped;
  }
  const bool open = open_driver(fake);
  EXPECT(open);
  if (!open) return failures();
  device_case c = make_case();
  test_forward(&c);
  test_refusals(&c);
  free_device_case(&c);
  return failures();
}
