// SPDX-License-Identifier: MIT
#include "engine/session_core.h"

#include <algorithm>

#include "engine/rank_link.h"
#include "plan/token_checks.h"
#include "tier/remote_rows.h"

namespace sharpi {
namespace {

/// The narrowest sliding window of a model and its ring; {0, 0} without one.
struct RingSize {
  uint32_t window = 0, slots = 0;
};

RingSize narrowest_ring(const ModelSpec& spec, const SessionShape& shape) {
  RingSize r;
  for (const LayerSpec& l : spec.layers) {
    const uint32_t w = l.window();
    if (w != 0 && (r.window == 0 || w < r.window)) r.window = w;
  }
  if (r.window != 0) {
    r.slots =
        static_cast<uint32_t>(std::min<uint64_t>(shape.n_ctx, uint64_t{r.window} + shape.rewind));
  }
  return r;
}

}  // namespace

SessionCore::SessionCore(std::shared_ptr<const Model> of, SessionShape resolved)
    : model(std::move(of)), shape(std::move(resolved)), share(model->allowance()) {}

SessionCore::~SessionCore() = default;

Status SessionCore::create() {
  for (const auto& tier : model->tiers()) {
    SHARPI_TRY_ASSIGN(std::unique_ptr<TierSession> t, tier->create_session(shape));
    tier_list.push_back(t.get());
    tiers.push_back(std::move(t));
  }
  const RingSize ring = narrowest_ring(spec(), shape);
  KvLedger empty(spec(), ring.window, ring.slots);
  empty.set_capture_window(shape.capture_window);
  transcript.begin(std::move(empty), shape.n_ctx);
  if (shape.archive_rows == 0) return Status::ok();
  archive.reserve(spec(), shape.dtypes, shape.archive_rows, priced_slots(), [&](uint32_t layer) {
    const RemoteRows* remote = tier_of(layer).remote_rows();
    return remote == nullptr ? nullptr : remote->lent(layer);
  });
  return Status::ok();
}

size_t SessionCore::tier_index(uint32_t layer) const {
  return model->tier_index(model->plan().placement.mixer[layer]);
}

TierSession& SessionCore::head() const {
  return *tiers[model->tier_index(model->plan().placement.head)];
}

uint32_t SessionCore::full_capacity() const {
  uint32_t most = 0;
  for (const auto& tier : tiers) {
    const KvLayout& layout = tier->store().layout();
    for (uint32_t g = 0; g < layout.groups.size(); ++g) {
      if (!layout.groups[g].ring) most = std::max(most, tier->store().capacity(g));
    }
  }
  return most != 0 ? most : shape.n_ctx;
}

uint32_t SessionCore::free_slots() const {
  uint32_t least = shape.n_ctx;
  for (const auto& tier : tiers) {
    const KvStore& kv = tier->store();
    for (uint32_t g = 0; g < kv.layout().groups.size(); ++g) {
      const KvGroup& group = kv.layout().groups[g];
      if (group.ring) continue;
      const uint32_t used = ledger().fullest(group), room = kv.capacity(g);
      least = std::min(least, used < room ? room - used : 0);
    }
  }
  return least;
}

uint64_t SessionCore::room_of_pass() const {
  const uint64_t context = shape.n_ctx - ledger().n_tokens();
  return std::min<uint64_t>({context, free_slots(), limits().n_chunk});
}

std::vector<uint32_t> SessionCore::compactable_layers() const {
  std::vector<uint32_t> out;
  for (uint32_t l = 0; l < spec().n_layers(); ++l) {
    if (ledger().is_full_owner(l)) out.push_back(l);
  }
  return out;
}

uint64_t SessionCore::full_cache_bytes() const {
  uint64_t bytes = 0;
  for (const auto& tier : tiers) {
    for (const KvGroup& g : tier->store().layout().groups) {
      if (!g.ring) bytes += g.payload_bytes(shape.n_ctx);
    }
  }
  return bytes;
}

Status SessionCore::begin_call() {
  SHARPI_TRY(Model::check_may_compute());  // before anything changes
  SHARPI_TRY(transcript.check());
  changed = false;
  if (!is_cancelled()) return check_whole();
  return Status::error(Code::kCancelled, "the call was cancelled before it began; nothing changed");
}

Status SessionCore::check_whole() const {
  if (!transcript.has_state()) {
    return Status::error(Code::kState,
                         "a call that failed has overwritten the recurrent state; truncate the "
                         "session to 0 or to a checkpoint, or restore a saved one");
  }
  if (ledger().rings_are_whole()) return Status::ok();
  return Status::error(
      Code::kState,
      "a call that failed has written over rows that the sliding window still needs; "
      "truncate the session to 0, or restore a saved one");
}

/// A ring of captured queries that was written over cannot be brought back, so with one the chunk
/// is finished; tiers do the same for rings of rows.
const std::atomic<bool>* SessionCore::stop_flag() const {
  const RankLink* ranks = model->ranks();
  if (ranks != nullptr && !ranks->is_first()) return nullptr;  // others wait for this one
  return changed || shape.capture_window != 0 ? nullptr : &cancelled;
}

Status SessionCore::check_tokens(std::span<const int32_t> tokens, size_t first) const {
  return check_token_ids(tokens, spec().n_vocab, first);
}

Status SessionCore::no_room(uint64_t n) const {
  return Status::native_error(Code::kKvFull, SHARPI_KV_FULL_SLOTS,
                              "%llu rows do not fit: %u slots are free of a capacity of %u slots; "
                              "compact to fewer rows, or "
                              "sharpi_session_reserve() commits more, up to %u",
                              static_cast<unsigned long long>(n), free_slots(), full_capacity(),
                              priced_slots());
}

Status SessionCore::take_positions() {
  if (ledger().position_bytes() != 0) return Status::ok();
  Lease lease(share);
  SHARPI_TRY(lease.take(HeldBytes::of_host(ledger().bytes_of_positions(priced_slots()))));
  transcript.reserve_positions(priced_slots());
  lease.keep();
  return Status::ok();
}

void SessionCore::drop_positions() noexcept {
  if (score_queries(shape) != 0 || ledger().is_compacted()) return;
  const uint64_t bytes = ledger().position_bytes();
  transcript.release_positions();
  share.give(HeldBytes::of_host(bytes));
}

}  // namespace sharpi
