// SPDX-License-Identifier: MIT
// What requests say of devices: lists with pins and limits, names, the environment, and what of it
// is refused.
#include <tuple>

#include "plan/over_devices.h"

namespace sharpi {
namespace {

using test::kOne, test::kTwo;

class DevicesAsked : public test::OverDevices {};

TEST_F(DevicesAsked, ListsPinLayersAndLimits) {
  const auto spec = of(test::tiny_qwen3(), 8);
  const Machine machine({kPlenty, kPlenty, kPlenty});
  const auto spread_as = [&](const std::vector<sharpi_device_request>& list,
                             const Edit& edit = {}) {
    const auto p = made(spec, machine, listed(list, edit));
    return p == nullptr ? "" : layers(*p);
  };
  EXPECT_EQ(spread_as({request(2, 3), request(1, 5)}), "ggghhhhh");
  EXPECT_EQ(made(spec, machine, listed({request(2, 3), request(1, 5)}))->placement.route(),
            (std::vector{kTwo, kOne}));
  EXPECT_EQ(spread_as({request(1, 3), request(2, 2)}), "ggghhccc") << "the rest is the host's";
  EXPECT_EQ(spread_as({request(3, 2), request(2)}), "gghhhhhh");
  EXPECT_EQ(spread_as({request(3), request(2)}), "gggggggg") << "the first holds all";
  EXPECT_EQ(spread_as({request(0)}), "cccccccc") << "none but the host";
  EXPECT_EQ(spread_as({request(1, 0), request(2, 8)}), "gggggggg");
  EXPECT_EQ(spread_as({request(1, 4), request(2, 2)}, [](auto* p, auto*) { p->n_gpu_layers = 6; }),
            "gggghhcc");
  // Limits of each, to the byte.
  const Edit wide = [](auto* p, auto* s) {
    p->n_gpu_ffn = 8;
    p->gpu_ends = 1;
    s->k_dtype = s->v_dtype = SHARPI_KV_F32;
  };
  const std::vector<sharpi_device_request> halves{request(1, 4), request(2, 4)};
  const auto half = made(spec, machine, listed(halves, wide));
  auto list = std::vector{request(1, 4), request(2, 4), request(0)};
  list[0].budget = half->device_rows()[1].held_bytes;
  list[1].budget = half->device_rows()[2].held_bytes;
  list[2].budget = half->summary().host_peak_bytes;
  const auto exact = made(spec, machine, listed(list, wide));
  EXPECT_EQ(exact->device_rows()[2].budget, list[1].budget);
  EXPECT_EQ(exact->device_rows()[0].budget, list[2].budget);
  for (size_t d = 0; d < list.size(); ++d) {
    --list[d].budget;
    const std::string text = refusal(spec, machine, Code::kDoesNotFit, listed(list, wide));
    const std::string index = std::to_string(list[d].device);
    EXPECT_NE(text.find("1 more than the budget of device " + index), std::string::npos) << text;
    EXPECT_NE(text.find("what would fit: "), std::string::npos) << text;
    ++list[d].budget;
  }
  // A reserve is of what is free.
  auto reserved = std::vector{request(1), request(2)};
  reserved[0].reserve = machine.devices[0].free_bytes();
  EXPECT_EQ(made(spec, machine, listed(reserved))->placement.route(), std::vector{kTwo});
}

/// A card that two tiers have is in the list twice, its memory once.
TEST_F(DevicesAsked, ACardOfTwoTiersIsTakenOnceUnlessItIsNamed) {
  const auto spec = of(test::tiny_qwen3(), 8);
  const auto whole = made(spec, Machine({kPlenty}));
  ASSERT_EQ(layers(*whole), "gggggggg");
  const uint64_t half = whole->device_rows()[1].held_bytes / 2;
  const std::string card = "01234567-89ab-cdef-0123-456789abcdef";
  Machine machine({half, half}, kPlenty, {TierId::kCuda, TierId::kVulkan});
  EXPECT_NE(layers(*made(spec, machine)).find('h'), std::string::npos) << "two cards";
  machine.devices[0].be("GPU-" + card);
  machine.devices[1].be("vulkan-" + card);
  EXPECT_EQ(made(spec, machine)->placement.route().front(), kOne);
  EXPECT_EQ(layers(*made(spec, machine)).find('h'), std::string::npos) << "one card";
  const Edit named = [](auto* p, auto*) { p->device = 2; };
  EXPECT_EQ(made(spec, machine, named)->placement.route().front(), kTwo);
}

TEST_F(DevicesAsked, ListsThatMakeNoSenseAreRefused) {
  const auto spec = of(test::tiny_qwen3(), 8);
  const Machine machine({kPlenty, kPlenty});
  const auto refused_as = [&](const std::vector<sharpi_device_request>& list, Code code,
                              const Edit& edit = {}) {
    return refusal(spec, machine, code, listed(list, edit));
  };
  const auto contains = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  contains(refused_as({request(1), request(1)}, Code::kInvalidArgument), "device 1 is twice");
  contains(refused_as({request(0), request(0)}, Code::kInvalidArgument), "device 0 is twice");
  contains(refused_as({request(4)}, Code::kNotFound), "device 4 does not exist");
  contains(refused_as({request(1, 5), request(2, 4)}, Code::kInvalidArgument), "9 layers");
  contains(refused_as({request(0, 1), request(1)}, Code::kInvalidArgument), "n_layers of device 0");
  auto both = std::vector{request(1)};
  both[0].reserve = both[0].budget = 1;
  contains(refused_as(both, Code::kInvalidArgument), "a reserve");
  both[0] = request(2);
  both[0].budget = machine.devices[1].total_bytes() + 1;
  contains(refused_as(both, Code::kInvalidArgument), "budget of device 2 is");
  const std::vector<std::pair<const char*, Edit>> beside = {
      {"device is given", [](auto* p, auto*) { p->device = 1; }},
      {"device_budget is given", [](auto* p, auto*) { p->device_budget = 1; }},
      {"device_rate is given", [](auto* p, auto*) { p->device_rate = 1; }},
      {"pcie_rate is given", [](auto* p, auto*) { p->pcie_rate = 1; }},
      {"host_budget is given", [](auto* p, auto*) { p->host_budget = 1; }},
      {"host_rate is given", [](auto* p, auto*) { p->host_rate = 1; }},
  };
  for (const auto& [text, edit] : beside)
    contains(refused_as({request(0), request(1)}, Code::kInvalidArgument, edit), text);
  made(spec, machine, listed({request(1)}, [](auto* p, auto*) { p->host_budget = kPlenty; }));
  contains(refused_as({request(1, 3), request(2, 4)}, Code::kInvalidArgument,
                      [](auto* p, auto*) { p->n_gpu_layers = 8; }),
           "asks for 7 layers");
}

TEST_F(DevicesAsked, DevicesThatStayAlone) {
  const auto spec = of(test::tiny_qwen3(), 8);
  Machine machine({kPlenty, kPlenty});
  for (test::PaperTier& d : machine.devices) d.stay_alone();
  const std::vector<sharpi_device_request> pins{request(1, 4), request(2, 4)};
  EXPECT_EQ(refusal(spec, machine, Code::kUnsupported, listed(pins)),
            "Card One stays alone, without Card Two");
  EXPECT_EQ(refusal(spec, machine, Code::kUnsupported,
                    [](auto* p, auto*) { p->split = SHARPI_SPLIT_ALL; }),
            "Card One stays alone, without Card Two");
  EXPECT_EQ(made(spec, machine)->placement.route(), std::vector{kOne}) << "one is enough";
  const uint64_t whole = made(spec, machine)->summary().device_held_bytes;
  Machine small({whole / 2, whole / 2});
  for (test::PaperTier& d : small.devices) d.stay_alone();
  const auto one = made(spec, small), alone = made(spec, Machine({whole / 2}));
  EXPECT_EQ(one->placement, alone->placement);
  ASSERT_FALSE(one->fallbacks.empty());
  EXPECT_EQ(one->fallbacks[0], "one device is used of 2: Card One stays alone, without Card Two");
  const std::vector<sharpi_device_request> named{request(1), request(2)};
  EXPECT_EQ(refusal(spec, small, Code::kUnsupported, listed(named)),
            "Card One stays alone, without Card Two");
}

TEST_F(DevicesAsked, DevicesAreNamedByIndexIdOrName) {
  const Machine machine({1, 1, 1});
  const auto found = [&](const char* text) {
    const auto index = find_device(machine.sizers, text);
    EXPECT_TRUE(index.is_ok()) << text << ": " << index.status().text();
    return index.is_ok() ? index_of(index.value()) : SHARPI_UNSET;
  };
  EXPECT_EQ(found("0"), 0u);
  EXPECT_EQ(found("3"), 3u);
  EXPECT_EQ(found("paper-2"), 2u);
  EXPECT_EQ(found("PAPER-0"), 0u);
  EXPECT_EQ(found("card two"), 2u);
  EXPECT_EQ(found("Three"), 3u);
  const auto refused_as = [&](const char* text, Code code, const char* part) {
    const auto index = find_device(machine.sizers, text);
    EXPECT_FALSE(index.is_ok()) << text;
    EXPECT_EQ(index.status().code(), code) << text;
    EXPECT_NE(index.status().text().find(part), std::string::npos) << index.status().text();
  };
  refused_as("4", Code::kNotFound, "device 4 does not exist");
  refused_as("card", Code::kInvalidArgument, "1 (paper-1), 2 (paper-2), 3 (paper-3)");
  refused_as("", Code::kNotFound, "no device has the id \"\"");
  refused_as("h200", Code::kNotFound, "\"h200\"");
  refused_as("-1", Code::kNotFound, "\"-1\"");
}

TEST_F(DevicesAsked, TheEnvironmentNamesADevice) {
  const auto spec = of(test::tiny_qwen3(), 4);
  const Machine machine({kPlenty, kPlenty});
  PlanEnvironment environment;
  const auto route = [&](const char* text, const Edit& edit = {}) {
    environment.device = text;
    return made(spec, machine, edit, environment)->placement.route();
  };
  EXPECT_EQ(route(""), std::vector{kOne});
  EXPECT_EQ(route("Card Two"), std::vector{kTwo});
  EXPECT_TRUE(route("0").empty());
  EXPECT_EQ(route("2", [](auto* p, auto*) { p->device = 1; }), std::vector{kOne})
      << "what the request says counts";
  const std::vector<sharpi_device_request> list{request(1)};
  EXPECT_EQ(route("2", listed(list)), std::vector{kOne});
  environment.device = "no such";
  const auto none = ask(spec, machine, {}, environment);
  ASSERT_FALSE(none.is_ok());
  EXPECT_EQ(none.status().code(), Code::kNotFound);
  EXPECT_EQ(none.status().text().rfind("SHARPI_DEVICE: ", 0), 0u) << none.status().text();
}
}  // namespace
}  // namespace sharpi
