// SPDX-License-Identifier: MIT
// Machines of several posed devices over the room of GPU tiers, and what these hold.
// Thread rule: one test at a time.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "api/api_handles.h"
#include "device/host_tier.h"
#include "support/device_ladders.h"

namespace sharpi::testing {

/// A device that a machine has.
struct PosedCard {
  std::string name;
  uint64_t bytes = uint64_t{4} << 30;
  TierId tier = TierId::kVulkan;
  std::vector<uint32_t> reaches{};  // devices that its copies may go to
};

/// A CPU tier and a device for each card.
class RoomMachine {
 public:
  explicit RoomMachine(std::vector<PosedCard> cards) {
    static std::vector<std::shared_ptr<HostDevice>> made;  // by the factory, which is a function
    static std::vector<PosedCard> wanted;
    made.clear();
    wanted = std::move(cards);
    sharpi_context_params c;
    sharpi_context_params_init(&c, sizeof c);
    auto context = Context::create(c, [](const BackendOptions&) -> Backends {
      SHARPI_TRY_ASSIGN(std::unique_ptr<Backend> host, small_cpu());
      std::vector<std::unique_ptr<Backend>> out;
      out.push_back(std::move(host));
      for (const PosedCard& card : wanted) {
        const auto index = static_cast<uint32_t>(made.size() + 1);
        made.push_back(std::make_shared<HostDevice>(index, card.tier));
        for (const uint32_t other : card.reaches) made.back()->reach(other);
        out.push_back(std::make_unique<HostTierBackend>(made.back(), card.name, card.bytes));
      }
      return out;
    });
    EXPECT_TRUE(context.is_ok()) << context.status().text();
    auto handle = std::make_unique<sharpi_context>();
    if (context.is_ok()) handle->p = context.take();
    context_.reset(handle.release());
    devices_ = made;
  }
  LadderMachine ladders() const { return {context_.get()}; }
  /// By its index in the context's list.
  const HostDevice& device(uint32_t index) const { return *devices_.at(index - 1); }
  /// Copies of hidden rows from device to device without the host's memory in between.
  uint64_t direct_copies() const {
    uint64_t n = 0;
    for (const auto& d : devices_) n += d->counts().n_direct;
    return n;
  }
  /// Recordings that each device has replayed.
  std::vector<uint64_t> replays() const {
    std::vector<uint64_t> out;
    for (const auto& d : devices_) out.push_back(d->counts().n_replays);
    return out;
  }

 private:
  using Backends = Result<std::vector<std::unique_ptr<Backend>>>;
  ContextPtr context_;
  std::vector<std::shared_ptr<HostDevice>> devices_;
};

/// Of these the first two reach each other.
inline std::vector<PosedCard> three_cards() {
  std::vector<PosedCard> cards{{"Posed One"}, {"Posed Two"}, {"Posed Three"}};
  cards[0].reaches = {2};
  cards[1].reaches = {1};
  return cards;
}

inline test::ModelRecipe with_layers(test::ModelRecipe recipe, uint32_t n) {
  recipe.n_layers = n;
  return recipe;
}

/// All of the devices' layers: none is left to the host.
inline std::vector<Ladder> whole_ladders(int32_t n) {
  std::vector<Ladder> out;
  for (const Ladder& ladder : testing::ladders(n)) {
    int32_t sum = 0;
    for (const auto& [device, layers] : ladder) sum += layers;
    if (sum == n) out.push_back(ladder);
  }
  return out;
}

/// Models of which layers make per-layer embeddings stay on one device, and layers that share KV
/// rows together; anything else that is refused fails the test.
inline bool may_be_refused(const sharpi_error& why) {
  const std::string text = why.text;
  EXPECT_EQ(why.status, SHARPI_E_UNSUPPORTED) << text;
  return text.find("KV rows") != std::string::npos ||
         text.find("per-layer embeddings") != std::string::npos;
}

/// Bytes that rows say a device holds now: of its own memory, and pinned for it.
struct HeldOn {
  uint64_t device = 0, pinned = 0;
  bool operator==(const HeldOn&) const = default;
};
inline void add_rows(const MemoryRows& rows, std::map<uint32_t, HeldOn>* to) {
  for (const sharpi_memory_row& r : rows) {
    if (r.device == 0 || r.transient != 0) continue;
    if (r.kind == SHARPI_ROW_DEVICE) (*to)[r.device].device += r.held_bytes;
    if (r.kind == SHARPI_ROW_PINNED) (*to)[r.device].pinned += r.held_bytes;
  }
}

}  // namespace sharpi::testing
