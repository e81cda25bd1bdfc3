// SPDX-License-Identifier: MIT
// What is wrong with a machine, a driver or a device is said by name, and harms nothing else: no
// loader, old drivers, features that are missing, cards that are listed twice, memory that runs out
// before the plan's end, and a device that is lost.
#include <algorithm>

#include "vulkan/vulkan_tier.h"

namespace sharpi::testing {
namespace {

using vulkan::DeviceFunctions;
using vulkan::find_physical_devices;
using vulkan::InstanceFunctions;
using vulkan::PhysicalDevice;

TEST(VulkanLoader, ThatIsNotThereOrIsNoneIsNamed) {
  InstanceFunctions f;
  std::string why;
  os::DynamicLibrary none, other;
  EXPECT_FALSE(vulkan::open_loader("libno-vulkan.so.1", &none, &f, &why));
  EXPECT_EQ(why, "no Vulkan device (no libno-vulkan.so.1)");
  EXPECT_FALSE(vulkan::open_loader("libm.so.6", &other, &f, &why));
  EXPECT_NE(why.find("vkGetInstanceProcAddr"), std::string::npos) << why;
  EXPECT_EQ(f.instance, VK_NULL_HANDLE);
}

/// The machine's functions, with answers that a test changes.
InstanceFunctions real;
void (*change_features)(VkPhysicalDeviceFeatures2*, VkPhysicalDeviceVulkan11Features*,
                        VkPhysicalDeviceVulkan12Features*) = nullptr;
void (*change_properties)(VkPhysicalDeviceProperties2*) = nullptr;
bool lists_twice = false;
uint32_t n_asked = 0;

template <class T>
T* in_chain(void* first, VkStructureType type) {
  for (auto* s = static_cast<VkBaseOutStructure*>(first); s != nullptr; s = s->pNext)
    if (s->sType == type) return reinterpret_cast<T*>(s);
  return nullptr;
}
VKAPI_ATTR void VKAPI_CALL features(VkPhysicalDevice device, VkPhysicalDeviceFeatures2* out) {
  real.vkGetPhysicalDeviceFeatures2(device, out);
  auto* v11 = in_chain<VkPhysicalDeviceVulkan11Features>(
      out->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES);
  auto* v12 = in_chain<VkPhysicalDeviceVulkan12Features>(
      out->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES);
  // What is asked of other features is not about what a device needs.
  if (change_features != nullptr && v11 != nullptr && v12 != nullptr)
    change_features(out, v11, v12);
}
VKAPI_ATTR void VKAPI_CALL properties(VkPhysicalDevice device, VkPhysicalDeviceProperties2* out) {
  real.vkGetPhysicalDeviceProperties2(device, out);
  ++n_asked;
  if (change_properties != nullptr) change_properties(out);
}
VKAPI_ATTR VkResult VKAPI_CALL enumerate(VkInstance instance, uint32_t* n, VkPhysicalDevice* out) {
  const VkResult got = real.vkEnumeratePhysicalDevices(instance, n, out);
  if (!lists_twice) return got;
  if (out != nullptr) out[1] = out[0];
  *n = 2;
  return VK_SUCCESS;
}

class VulkanDrivers : public ::testing::Test {
 protected:
  void SetUp() override {
    SHARPI_NEEDS_VULKAN();
    std::string why;
    real = *vulkan::instance_functions(&why);
    f_ = real;
    f_.vkGetPhysicalDeviceFeatures2 = &features;
    f_.vkGetPhysicalDeviceProperties2 = &properties;
    f_.vkEnumeratePhysicalDevices = &enumerate;
  }
  void TearDown() override {
    change_features = nullptr;
    change_properties = nullptr;
    lists_twice = false;
    n_asked = 0;
  }
  /// No device is usable, and the text says what each lacks.
  void expect_left_out(const char* lacks) const {
    std::string why;
    EXPECT_TRUE(find_physical_devices(f_, &why).empty()) << lacks;
    EXPECT_NE(why.find("is left out"), std::string::npos) << why;
    EXPECT_NE(why.find(lacks), std::string::npos) << why;
  }
  InstanceFunctions f_;
};

TEST_F(VulkanDrivers, ThatAreOldOrLackSomethingAreLeftOutByName) {
  std::string why;
  EXPECT_FALSE(find_physical_devices(f_, &why).empty()) << why;
  change_features = [](auto*, auto*, auto* v12) { v12->bufferDeviceAddress = VK_FALSE; };
  expect_left_out("bufferDeviceAddress");
  change_features = [](auto*, auto* v11, auto*) { v11->storageBuffer16BitAccess = VK_FALSE; };
  expect_left_out("storageBuffer16BitAccess");
  change_features = [](auto*, auto*, auto* v12) { v12->storageBuffer8BitAccess = VK_FALSE; };
  expect_left_out("storageBuffer8BitAccess");
  change_features = [](auto*, auto*, auto* v12) { v12->timelineSemaphore = VK_FALSE; };
  expect_left_out("timelineSemaphore");
  change_features = [](auto* all, auto*, auto*) { all->features.shaderInt64 = VK_FALSE; };
  expect_left_out("shaderInt64");
  change_features = nullptr;
  change_properties = [](auto* p) { p->properties.apiVersion = VK_API_VERSION_1_1; };
  expect_left_out("its driver is for Vulkan 1.1, 1.2 is the least");
  change_properties = [](auto* p) {
    auto* subgroup = in_chain<VkPhysicalDeviceSubgroupProperties>(
        p->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES);
    if (subgroup != nullptr) subgroup->supportedOperations = VK_SUBGROUP_FEATURE_BASIC_BIT;
  };
  expect_left_out("no arithmetic over subgroups");
  change_properties = [](auto* p) {
    auto* subgroup = in_chain<VkPhysicalDeviceSubgroupProperties>(
        p->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SUBGROUP_PROPERTIES);
    if (subgroup != nullptr) subgroup->supportedOperations &= ~VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
  };
  expect_left_out("no shuffles over subgroups");
  change_properties = [](auto* p) { p->properties.limits.maxComputeSharedMemorySize = 8192; };
  expect_left_out("limits");
}

TEST_F(VulkanDrivers, OfOneCardAreListedOnceAndOfTwoAlikeTwice) {
  lists_twice = true;
  std::string why;
  EXPECT_EQ(find_physical_devices(f_, &why).size(), 1u);
  EXPECT_NE(why.find("another driver"), std::string::npos) << why;
  n_asked = 0;
  change_properties = [](auto* p) {
    auto* id = in_chain<VkPhysicalDeviceIDProperties>(
        p->pNext, VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_ID_PROPERTIES);
    if (id != nullptr) id->deviceUUID[15] = static_cast<uint8_t>(n_asked);
  };
  why.clear();
  const auto two = find_physical_devices(f_, &why);
  ASSERT_EQ(two.size(), 2u) << why;
  EXPECT_EQ(two[0].name, two[1].name);
  EXPECT_NE(two[0].id, two[1].id);
}

/// The first device, opened anew for each test.
std::shared_ptr<vulkan::Device> faulty;
Result<std::vector<std::unique_ptr<Backend>>> host_and_faulty(const BackendOptions&) {
  SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, small_cpu());
  std::vector<std::unique_ptr<Backend>> out;
  out.push_back(std::move(host));
  out.push_back(vulkan::make_backend(faulty));
  return out;
}

PFN_vkAllocateMemory allocate_really = nullptr;
uint32_t fails_in = 0;
VKAPI_ATTR VkResult VKAPI_CALL allocate(VkDevice device, const VkMemoryAllocateInfo* info,
                                        const VkAllocationCallbacks* callbacks,
                                        VkDeviceMemory* out) {
  if (fails_in != 0 && --fails_in == 0) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
  return allocate_really(device, info, callbacks, out);
}
PFN_vkQueueSubmit submit_really = nullptr;
bool is_lost = false;
VKAPI_ATTR VkResult VKAPI_CALL submit(VkQueue queue, uint32_t n, const VkSubmitInfo* infos,
                                      VkFence fence) {
  return is_lost ? VK_ERROR_DEVICE_LOST : submit_really(queue, n, infos, fence);
}

class VulkanFaults : public ::testing::Test {
 protected:
  void SetUp() override {
    SHARPI_NEEDS_VULKAN();
    open();
    auto engine = InnerEngine::open(file_.path(), &host_and_faulty);
    ASSERT_TRUE(engine.is_ok()) << engine.status().text();
    engine_ = engine.take();
  }
  void TearDown() override {
    fails_in = 0;
    is_lost = false;
    faulty.reset();
  }
  /// Under a name of this test, so that nobody else has this open device.
  static void open() {
    std::string why;
    PhysicalDevice physical = vulkan_device(&why)->physical();
    physical.id = std::string("vulkan-faulty-") +
                  ::testing::UnitTest::GetInstance()->current_test_info()->name();
    faulty = std::make_shared<vulkan::Device>(physical, 1);
    ASSERT_TRUE(faulty->open().is_ok());
    auto& f = const_cast<DeviceFunctions&>(faulty->driver().f());
    allocate_really = f.vkAllocateMemory;
    f.vkAllocateMemory = &allocate;
    submit_really = f.vkQueueSubmit;
    f.vkQueueSubmit = &submit;
  }
  Result<std::shared_ptr<Model>> load(int32_t layers) const {
    SHARPI_TRY_ASSIGN(auto plan, engine_.plan([&](sharpi_plan_params* p, sharpi_session_params* s) {
      p->device = layers == 0 ? 0 : 1;
      p->n_gpu_layers = layers;
      s->k_dtype = s->v_dtype = SHARPI_KV_F32;
    }));
    return Model::load(engine_.context, plan, nullptr);
  }
  MadeModel file_{test::tiny_qwen3()};
  InnerEngine engine_;
};

/// Memory that runs out wherever it may, though the plan fits: an error that names what it was for,
/// and all that was taken goes back.
TEST_F(VulkanFaults, MemoryThatRunsOutIsGivenBack) {
  const uint64_t before = faulty->driver().allocated_bytes();
  uint32_t n = 1;
  for (;; ++n) {
    fails_in = n;
    auto model = load(-1);
    if (model.is_ok() && fails_in != 0) break;
    if (model.is_ok()) continue;  // where there was no memory to record a step
    EXPECT_EQ(model.status().code(), Code::kOutOfMemory) << model.status().text();
    EXPECT_NE(model.status().text().find("there is no memory for"), std::string::npos)
        << model.status().text();
    EXPECT_EQ(faulty->driver().allocated_bytes(), before) << "allocation " << n;
  }
  EXPECT_GT(n, 4u);
  fails_in = 0;
  EXPECT_EQ(faulty->driver().allocated_bytes(), before);
  auto model = load(-1);
  ASSERT_TRUE(model.is_ok()) << model.status().text();
  const auto s = make_session(model.value(), model.value()->plan().session);
  prefill(s.get(), file_.tokens(30));
}

TEST_F(VulkanFaults, ALostDeviceIsNamedAndTheOthersWork) {
  auto model = load(-1);
  ASSERT_TRUE(model.is_ok()) << model.status().text();
  auto host = load(0);
  ASSERT_TRUE(host.is_ok()) << host.status().text();
  auto s = make_session(model.value(), model.value()->plan().session);
  const auto of_host = make_session(host.value(), host.value()->plan().session);
  prefill(s.get(), file_.tokens(30));
  decode(s.get(), 3);
  is_lost = true;
  for (int i = 0; i < 2; ++i) {
    const Status lost = s->decode(4);
    EXPECT_EQ(lost.code(), Code::kDeviceLost) << lost.text();
    EXPECT_NE(lost.text().find(faulty->physical().name), std::string::npos) << lost.text();
  }
  prefill(of_host.get(), file_.tokens(30));
  EXPECT_TRUE(of_host->decode(4).is_ok());
  const auto again = load(-1);
  ASSERT_FALSE(again.is_ok());
  EXPECT_EQ(again.status().code(), Code::kDeviceLost) << again.status().text();
  s.reset();
  model.value().reset();
  // A context that comes later opens the device anew.
  is_lost = false;
  open();
  auto engine = InnerEngine::open(file_.path(), &host_and_faulty);
  ASSERT_TRUE(engine.is_ok()) << engine.status().text();
  engine_ = engine.take();
  auto fresh = load(-1);
  ASSERT_TRUE(fresh.is_ok()) << fresh.status().text();
  const auto t = make_session(fresh.value(), fresh.value()->plan().session);
  prefill(t.get(), file_.tokens(30));
}

}  // namespace
}  // namespace sharpi::testing
