// SPDX-License-Identifier: MIT
#include "engine/session_state.h"

#include "tier/remote_rows.h"

namespace sharpi {

Status SessionState::create(const HeldBytes& share) {
  SHARPI_TRY(core.share.take(share));
  SHARPI_TRY(core.create());
  SHARPI_TRY(selector.create());
  SHARPI_TRY(drawer.create());
  bounded.create();
  SHARPI_TRY(drafters.create());
  checkpoints.create();
  return Status::ok();
}

bool SessionState::is_empty() const {
  return core.tokens().empty() && checkpoints.n_used() == 0;
}

void SessionState::forget_all() noexcept {
  forget_contents();
  memory.begin_again();
}

void SessionState::forget_contents() noexcept {
  if (core.spec().is_hybrid()) {
    for (const auto& tier : core.tiers) tier->store().clear_state();
  }
  core.transcript.take_back(0);
  core.archive.clear();
  drafters.restart(0);
  checkpoints.clear();
  observer.forget_probe();
}

Status SessionState::copy_from(const SessionState& from) {
  SHARPI_TRY(memory.take_shared(from.memory));
  for (size_t t = 0; t < core.tiers.size(); ++t)
    SHARPI_TRY(core.tiers[t]->copy_from(*from.core.tiers[t], from.core.ledger().max_slots()));
  SHARPI_TRY(drafters.copy_from(from.drafters));
  core.transcript.copy_from(from.core.transcript);
  core.archive.copy_from(from.core.archive);
  for (size_t t = 0; t < core.tiers.size() && core.archive.is_reserved(); ++t) {
    if (RemoteRows* remote = core.tiers[t]->remote_rows(); remote != nullptr)
      SHARPI_TRY(remote->copy_from(*from.core.tiers[t]->remote_rows()));
  }
  core.adapters = from.core.adapters;
  checkpoints.copy_from(from.checkpoints);
  drawer.sampler().copy_from(from.drawer.sampler());
  observer.copy_from(from.observer);
  return Status::ok();
}

void SessionState::cancel() noexcept {
  core.cancelled.store(true, std::memory_order_relaxed);
  drafters.cancel();
}

void SessionState::resume() noexcept {
  core.cancelled.store(false, std::memory_order_relaxed);
  drafters.resume();
}

Status SessionState::end_call(Status done) {
  if (done.code() == Code::kCancelled) resume();
  return done;
}

}  // namespace sharpi
