// SPDX-License-Identifier: MIT
// What the opaque handles of sharpi.h are: references to engine objects. Destroying one gives up a
// reference, so any order of destruction is legal.
// Thread rule: a CallGate decides who may be inside; the references themselves never change.
#pragma once

#include <atomic>
#include <memory>
#include <thread>

#include "api/api_guard.h"
#include "engine/context.h"
#include "engine/model.h"
#include "engine/session.h"
#include "group/group.h"
#include "plan/plan.h"
#include "text/text_model.h"

namespace sharpi::api {

/// Admits one changing call or any number of reading calls; never waits.
class CallGate {
 public:
  bool try_enter_exclusive() noexcept {
    int32_t idle = 0;
    if (!users_.compare_exchange_strong(idle, kExclusive, std::memory_order_acquire)) return false;
    owner_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    return true;
  }
  void leave_exclusive() noexcept {
    owner_.store({}, std::memory_order_relaxed);
    users_.store(0, std::memory_order_release);
  }
  /// The changing call that is inside is this thread's own: we are in one of its callbacks.
  bool is_own() const noexcept {
    return owner_.load(std::memory_order_relaxed) == std::this_thread::get_id();
  }
  bool try_enter_shared() noexcept {
    int32_t n = users_.load(std::memory_order_relaxed);
    while (n != kExclusive) {
      if (users_.compare_exchange_weak(n, n + 1, std::memory_order_acquire)) return true;
    }
    return false;
  }
  void leave_shared() noexcept { users_.fetch_sub(1, std::memory_order_release); }

 private:
  static constexpr int32_t kExclusive = -1;
  std::atomic<int32_t> users_{0};
  std::atomic<std::thread::id> owner_{};
};

/// One changing call, for a scope; false when the object is in use.
class ExclusiveCall {
 public:
  explicit ExclusiveCall(CallGate& gate) noexcept
      : gate_(gate.try_enter_exclusive() ? &gate : nullptr) {}
  ~ExclusiveCall() {
    if (gate_ != nullptr) gate_->leave_exclusive();
  }
  ExclusiveCall(const ExclusiveCall&) = delete;
  ExclusiveCall& operator=(const ExclusiveCall&) = delete;
  explicit operator bool() const noexcept { return gate_ != nullptr; }

 private:
  CallGate* gate_;
};

/// One of many reading calls, for a scope; false when a changing call is inside.
class SharedCall {
 public:
  explicit SharedCall(CallGate& gate) noexcept : gate_(gate.try_enter_shared() ? &gate : nullptr) {}
  ~SharedCall() {
    if (gate_ != nullptr) gate_->leave_shared();
  }
  SharedCall(const SharedCall&) = delete;
  SharedCall& operator=(const SharedCall&) = delete;
  explicit operator bool() const noexcept { return gate_ != nullptr; }

 private:
  CallGate* gate_;
};

}  // namespace sharpi::api

struct sharpi_context {
  std::shared_ptr<sharpi::Context> p;
  sharpi::api::CallGate gate;
};

struct sharpi_group {
  std::shared_ptr<sharpi::Group> p;
};

struct sharpi_plan {
  std::shared_ptr<sharpi::Context> context;
  std::shared_ptr<sharpi::Group> group;  // null: the plan is of a whole model
  std::shared_ptr<const sharpi::Plan> p;
};

struct sharpi_model {
  std::shared_ptr<const sharpi::Model> p;  // null: opened for its text alone
  std::shared_ptr<const sharpi::TextModel> text;
};

struct sharpi_session {
  std::unique_ptr<sharpi::Session> p;
  mutable sharpi::api::CallGate gate;
};

namespace sharpi::api {

/// kState for a handle that was opened for its text alone.
inline Status require_weights(const sharpi_model* model) {
  SHARPI_TRY(require(model, "model"));
  if (model->p != nullptr) return Status::ok();
  return Status::error(Code::kState, "the model was opened for its text alone; it has no weights");
}

/// The model's tokenizer, or why there is none.
inline Status find_tokenizer(const sharpi_model* model, const Tokenizer** out) {
  SHARPI_TRY(require(model, "model"));
  *out = model->text->tokenizer();
  return *out != nullptr ? Status::ok() : model->text->tokenizer_status();
}

}  // namespace sharpi::api
