// SPDX-License-Identifier: MIT
// A host that uses CUDA itself finds its threads as they were after every call, and goes on
// capturing; a device that the library was not told to use keeps its memory.
#include <cuda.h>
#include <dlfcn.h>

#include <functional>
#include <optional>
#include <thread>

#include "cuda/one_device.h"
#include "engine/engine_case.h"

namespace sharpi::testing {
namespace {

/// A function of the driver, which no program here is linked with.
template <class F>
F* driver_call(const char* name) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  void* call = library == nullptr ? nullptr : dlsym(library, name);
  EXPECT_NE(call, nullptr) << name;
  return reinterpret_cast<F*>(call);
}

CUcontext current_context() {
  static auto* const get = driver_call<CUresult(CUcontext*)>("cuCtxGetCurrent");
  CUcontext out = nullptr;
  EXPECT_EQ(get(&out), CUDA_SUCCESS);
  return out;
}

bool is_active(CUdevice device) {
  static auto* const state =
      driver_call<CUresult(CUdevice, unsigned*, int*)>("cuDevicePrimaryCtxGetState");
  unsigned flags = 0;
  int active = -1;
  EXPECT_EQ(state(device, &flags, &active), CUDA_SUCCESS);
  return active == 1;
}

class HostContexts : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = take_device(); !why.empty()) GTEST_SKIP() << why;
    g_device.reset();
  }
  /// What an embedding does from its first call to its last, on the GPU of this index; `look` is
  /// called behind every one.
  void use(uint32_t device, const std::function<void(const char*)>& look) const {
    std::optional<Loaded> l =
        load(file_.path(), setup_with([&](sharpi_plan_params* p, sharpi_session_params* s) {
               p->n_gpu_layers = -1;
               p->device = device;
               s->n_ctx = 256;
             }));
    look("load");
    {
      Chat chat(l->model.get());
      look("a session's begin");
      chat.prefill(file_.tokens(40));
      look("prefill");
      chat.decode(3);
      chat.decode(4);
      look("decode");
      EXPECT_FALSE(saved(chat).empty());
      look("save");
    }
    look("a session's end");
    l.reset();
    look("the model's end");
  }
  const MadeModel file_{[] {
    test::ModelRecipe r = test::tiny_qwen3();
    r.head_dim = 64;
    return r;
  }()};
};

/// Comes first: the others use the first device, whose context then stays.
TEST_F(HostContexts, AnotherDeviceIsLeftAlone) {
  std::string why;
  if (cuda::find_devices(1, &why).size() < 2) GTEST_SKIP() << "this machine has one GPU";
  ASSERT_FALSE(is_active(0)) << "looking for devices makes no context";
  use(2, [](const char* call) { EXPECT_FALSE(is_active(0)) << call; });
  EXPECT_TRUE(is_active(1));
}

TEST_F(HostContexts, AThreadThatHasNoneHasNoneAfterwards) {
  std::thread([&] {
    ASSERT_EQ(current_context(), nullptr);
    use(1, [](const char* call) { EXPECT_EQ(current_context(), nullptr) << call; });
  }).join();
}

TEST_F(HostContexts, AContextThatTheHostMadeStaysCurrent) {
  auto* const create = driver_call<CUresult(CUcontext*, unsigned, CUdevice)>("cuCtxCreate_v2");
  auto* const destroy = driver_call<CUresult(CUcontext)>("cuCtxDestroy_v2");
  std::thread([&] {
    CUcontext own = nullptr;
    ASSERT_EQ(create(&own, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(current_context(), own);
    use(1, [&](const char* call) { EXPECT_EQ(current_context(), own) << call; });
    EXPECT_EQ(destroy(own), CUDA_SUCCESS);
  }).join();
}

/// A capture of the strictest mode forbids other threads to take memory, and fails if one does.
TEST_F(HostContexts, CapturesGoOn) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4096), cudaSuccess);
  for (const bool same_thread : {false, true}) {
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(memory, 0, 4096, stream), cudaSuccess);
    if (same_thread) {
      use(1, [](const char*) {});
    } else {
      std::thread([&] { use(1, [](const char*) {}); }).join();
    }
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess) << same_thread;
    size_t n_nodes = 0;
    EXPECT_EQ(cudaGraphGetNodes(graph, nullptr, &n_nodes), cudaSuccess);
    EXPECT_EQ(n_nodes, 1u) << "nothing of the library's is in it";
    EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  }
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace sharpi::testing
