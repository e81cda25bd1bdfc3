// SPDX-License-Identifier: MIT
// Vulkan devices: how they are listed and chosen, what they refuse, and that bytes arrive wherever
// they lie: in blocks, across the pages of a range, and in a fork's own pages.
#include <algorithm>
#include <cmath>
#include <limits>

#include "device/memory.h"
#include "support/golden.h"
#include "vulkan/vulkan_tier.h"

namespace sharpi::testing {
namespace {

using device::DeviceBuffer;
using device::DeviceRange;
using device::PinnedBuffer;
using device::Way;

class VulkanDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    SHARPI_NEEDS_VULKAN();
    std::string why;
    device_ = vulkan_device(&why);
    ASSERT_TRUE(device_->open().is_ok());
    auto queue = device_->create_queue();
    ASSERT_TRUE(queue.is_ok()) << queue.status().text();
    queue_ = queue.take();
  }
  /// Bytes that tell where they were.
  static std::vector<std::byte> pattern(uint64_t n, uint32_t seed) {
    std::vector<std::byte> out(n);
    for (uint64_t i = 0; i < n; ++i)
      out[i] = static_cast<std::byte>((i * 31 + i / 4096 + seed) & 255);
    return out;
  }
  void write(std::byte* to, const std::vector<std::byte>& from) const {
    const Status done = queue_->copy(to, from.data(), from.size(), Way::kToDevice, "a test");
    ASSERT_TRUE(done.is_ok()) << done.text();
    ASSERT_TRUE(queue_->wait().is_ok());
  }
  std::vector<std::byte> read(const std::byte* from, uint64_t n) const {
    std::vector<std::byte> out(n);
    const Status done = queue_->copy(out.data(), from, n, Way::kToHost, "a test");
    EXPECT_TRUE(done.is_ok()) << done.text();
    EXPECT_TRUE(queue_->wait().is_ok());
    return out;
  }
  std::shared_ptr<vulkan::Device> device_;
  std::unique_ptr<device::Queue> queue_;
};

TEST_F(VulkanDevices, AreListedInOrder) {
  std::string why;
  const auto all = vulkan::find_devices(3, &why);
  ASSERT_FALSE(all.empty());
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i]->index(), 3 + i);
    EXPECT_EQ(all[i]->tier(), TierId::kVulkan);
    EXPECT_FALSE(all[i]->physical().name.empty());
    EXPECT_EQ(all[i]->physical().id.rfind("vulkan-", 0), 0u);
    EXPECT_GT(all[i]->free_now(), 0u);
    if (i == 0) continue;
    EXPECT_LE(all[i - 1]->physical().kind, all[i]->physical().kind);
  }
}

/// Mesa's would leave out rows beyond these without a word.
TEST_F(VulkanDevices, OfSoftwareTakeSoManyRows) {
  if (device_->physical().kind != vulkan::DeviceKind::kSoftware)
    GTEST_SKIP() << "this one is a GPU";
  test::ModelRecipe recipe = test::tiny_qwen3();
  recipe.n_ctx = 65536;
  const MadeModel file(recipe);
  auto engine = InnerEngine::open(file.path(), &host_and_vulkan);
  ASSERT_TRUE(engine.is_ok()) << engine.status().text();
  const auto planned = [&](uint32_t n_ctx, uint32_t kv_budget, int32_t layers) {
    return engine.value()
        .plan([&](sharpi_plan_params* p, sharpi_session_params* s) {
          p->device = 1;
          p->n_gpu_layers = layers;
          s->n_ctx = n_ctx;
          s->kv_budget = kv_budget;
        })
        .status();
  };
  EXPECT_TRUE(planned(49152, 0, -1).is_ok());
  EXPECT_TRUE(planned(60000, 4096, -1).is_ok());
  EXPECT_TRUE(planned(60000, 0, 0).is_ok());
  const Status refused = planned(60000, 0, -1);
  EXPECT_EQ(refused.code(), Code::kUnsupported);
  EXPECT_EQ(refused.text(),
            "layer 0 would attend to up to 60000 rows; on a Vulkan device of software the Vulkan "
            "tier takes at most 49152 (n_ctx or kv_budget)");
}

TEST_F(VulkanDevices, OfSoftwareAreTakenOnlyIfNamed) {
  if (device_->physical().kind != vulkan::DeviceKind::kSoftware)
    GTEST_SKIP() << "this one is a GPU";
  const MadeModel file(test::tiny_qwen3());
  auto engine = InnerEngine::open(file.path(), &host_and_vulkan);
  ASSERT_TRUE(engine.is_ok()) << engine.status().text();
  const auto uses = [&](uint32_t named) {
    auto plan = engine.value().plan(
        [&](sharpi_plan_params* p, sharpi_session_params*) { p->device = named; });
    EXPECT_TRUE(plan.is_ok()) << plan.status().text();
    return plan.is_ok() &&
           !plan.value()->model_rows(*engine.value().context->sizers()[1]).empty() &&
           plan.value()->devices.size() == 2;
  };
  EXPECT_FALSE(uses(SHARPI_UNSET));
  EXPECT_TRUE(uses(1));
}

/// Rates that no memory has would come of a kernel that reads nothing.
TEST_F(VulkanDevices, MeasureTheirMemoryAndGiveItBack) {
  const uint64_t held = device_->live_bytes();
  auto memory = vulkan::measure_device_bandwidth(*device_);
  auto link = vulkan::measure_link_bandwidth(*device_);
  ASSERT_TRUE(memory.is_ok()) << memory.status().text();
  ASSERT_TRUE(link.is_ok()) << link.status().text();
  for (const double rate : {memory.value(), link.value()}) {
    EXPECT_GT(rate, 1e6);
    EXPECT_LT(rate, 1e14);
  }
  EXPECT_EQ(device_->live_bytes(), held);
}

TEST_F(VulkanDevices, RefuseABlockThatIsTooLargeWithItsNumbers) {
  const uint64_t most = device_->physical().max_allocation, before = device_->live_bytes();
  const auto got = DeviceBuffer::allocate(*device_, most + 1, "a test");
  ASSERT_FALSE(got.is_ok());
  EXPECT_EQ(got.status().code(), Code::kOutOfMemory);
  EXPECT_NE(got.status().text().find(std::to_string(most)), std::string::npos)
      << got.status().text();
  EXPECT_EQ(device_->live_bytes(), before);
}

TEST_F(VulkanDevices, BlocksAreZeroAndKeepWhatIsWritten) {
  auto block = DeviceBuffer::allocate(*device_, 300001, "a test");
  ASSERT_TRUE(block.is_ok()) << block.status().text();
  const std::byte* data = block.value().data();
  EXPECT_EQ(read(data, 300001), std::vector<std::byte>(300001));
  for (const uint64_t n : {1ull, 4ull, 65536ull, 65540ull, 200003ull}) {
    const auto bytes = pattern(n, static_cast<uint32_t>(n));
    write(block.value().data() + 7, bytes);
    EXPECT_EQ(read(data + 7, n), bytes) << n << " bytes";
  }
}

TEST_F(VulkanDevices, PinnedMemoryIsCopiedInTheQueuesOrder) {
  auto block = DeviceBuffer::allocate(*device_, 8192, "a test");
  auto pinned = PinnedBuffer::allocate(*device_, 16384, "a test");
  ASSERT_TRUE(block.is_ok() && pinned.is_ok());
  std::byte* host = pinned.value().data();
  std::fill_n(host, 8192, std::byte{1});
  std::byte* data = block.value().data();
  ASSERT_TRUE(queue_->copy(data, host, 8192, Way::kToDevice, "a test").is_ok());
  ASSERT_TRUE(queue_->clear(data + 4096, 64, "a test").is_ok());
  ASSERT_TRUE(queue_->copy(data, data + 4096, 64, Way::kWithin, "a test").is_ok());
  ASSERT_TRUE(queue_->copy(host + 8192, data, 8192, Way::kToHost, "a test").is_ok());
  ASSERT_TRUE(queue_->wait().is_ok());
  for (uint32_t i = 0; i < 8192; ++i) {
    const bool cleared = i < 64 || (i >= 4096 && i < 4160);
    ASSERT_EQ(host[8192 + i], cleared ? std::byte{0} : std::byte{1}) << i;
  }
}

/// As many as a call may ask for, of a vocabulary as large as Gemma's: a software device ends loops
/// early that go round too often. Some are equal, some are no numbers, some are not allowed, and
/// all that count come to one thread.
TEST_F(VulkanDevices, FindTheBestOfALargeVocabulary) {
  const uint32_t n_vocab = 262144, k = device_->kernels().most_best(n_vocab), n_words = 8000;
  std::vector<float> logits(n_vocab);
  for (uint32_t i = 0; i < n_vocab; ++i)
    logits[i] = static_cast<float>(i * 2654435761u >> 20) - (i % 512 == 5 ? 0.0f : 5000.0f);
  logits[512 * 7 + 5] = std::numeric_limits<float>::quiet_NaN();
  std::vector<uint32_t> allowed(n_words, 0xFFFFFFFFu);
  for (uint32_t i = 0; i < n_words; i += 3) allowed[i] = 0xFFFF0000u;
  const auto is_allowed = [&](uint32_t id) {
    return id / 32 < n_words && (allowed[id / 32] >> id % 32 & 1) != 0;
  };
  std::vector<int32_t> want;
  for (uint32_t i = 0; i < n_vocab; ++i)
    if (is_allowed(i) && !std::isnan(logits[i])) want.push_back(static_cast<int32_t>(i));
  std::stable_sort(want.begin(), want.end(), [&](int32_t a, int32_t b) {
    return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
  });
  const uint64_t words_at = n_vocab * 4, values_at = words_at + n_words * 4,
                 ids_at = values_at + k * 4;
  auto made = DeviceBuffer::allocate(*device_, ids_at + k * 4 + 256, "a test");
  ASSERT_TRUE(made.is_ok()) << made.status().text();
  std::byte* at = made.value().data();
  ASSERT_TRUE(queue_->copy(at, logits.data(), n_vocab * 4, Way::kToDevice, "a test").is_ok());
  ASSERT_TRUE(
      queue_->copy(at + words_at, allowed.data(), n_words * 4, Way::kToDevice, "a test").is_ok());
  device::BestParams p;
  p.logits = reinterpret_cast<const float*>(at);
  p.n_rows = 1;
  p.n_vocab = n_vocab;
  p.k = k;
  p.allowed.words = reinterpret_cast<const uint32_t*>(at + words_at);
  p.allowed.n_words = n_words;
  p.values = reinterpret_cast<float*>(at + values_at);
  p.ids = reinterpret_cast<int32_t*>(at + ids_at);
  ASSERT_TRUE(device_->kernels().find_best(p, *queue_).is_ok());
  std::vector<int32_t> ids(k);
  std::vector<float> values(k);
  ASSERT_TRUE(queue_->copy(ids.data(), at + ids_at, k * 4, Way::kToHost, "a test").is_ok());
  ASSERT_TRUE(queue_->copy(values.data(), at + values_at, k * 4, Way::kToHost, "a test").is_ok());
  ASSERT_TRUE(queue_->wait().is_ok());
  for (uint32_t i = 0; i < k; ++i) {
    ASSERT_EQ(ids[i], want[i]) << "number " << i;
    ASSERT_EQ(values[i], logits[static_cast<size_t>(want[i])]) << "number " << i;
  }
}

TEST_F(VulkanDevices, RangesGrowAcrossPagesAndForksGetTheirOwn) {
  const uint64_t granule = device_->granule_bytes(16 << 20), before = device_->live_bytes();
  {
    auto made = DeviceRange::reserve(*device_, 16 << 20, "a test");
    auto forked = DeviceRange::reserve(*device_, 16 << 20, "a test");
    ASSERT_TRUE(made.is_ok() && forked.is_ok());
    DeviceRange a = made.take(), b = forked.take();
    ASSERT_TRUE(a.commit(3 * granule - 5).is_ok());
    EXPECT_EQ(device_->live_bytes() - before, 3 * granule);
    const auto bytes = pattern(granule + 1000, 5);
    write(a.data() + granule - 301, bytes);
    EXPECT_EQ(read(a.data() + granule - 301, bytes.size()), bytes);
    ASSERT_TRUE(a.make_shared(3 * granule, [](uint64_t) {}).is_ok());
    ASSERT_TRUE(b.share_from(a, 3 * granule).is_ok());
    EXPECT_EQ(device_->live_bytes() - before, 3 * granule);
    ASSERT_TRUE(b.own(granule, 3 * granule).is_ok());
    const auto other = pattern(500, 77);
    write(b.data() + granule, other);
    EXPECT_EQ(read(b.data() + granule, other.size()), other);
    EXPECT_EQ(read(a.data() + granule - 301, bytes.size()), bytes)
        << "the fork wrote into its source";
    EXPECT_EQ(read(b.data() + granule - 301, 301),
              std::vector<std::byte>(bytes.begin(), bytes.begin() + 301));
  }
  EXPECT_EQ(device_->live_bytes(), before);
}

}  // namespace
}  // namespace sharpi::testing
