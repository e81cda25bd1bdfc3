// SPDX-License-Identifier: MIT
// How much memory the sessions of a model may take: the plan's budgets less what the model itself
// holds. Every session has a share. It grows before the session takes memory and shrinks after
// memory was given back, so the budgets also hold for sessions beyond those that the plan priced.
// Thread rule: an allowance serialises itself; a share has one owner (the session).
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "plan/plan.h"

namespace sharpi {

/// Bytes of a GPU, and of the host (anonymous and pinned).
struct HeldBytes {
  uint64_t device = 0, host = 0;
  /// The memory that a tier's rows are in.
  uint64_t& of_tier(TierId tier) { return is_host(tier) ? host : device; }
  /// The bytes that the rows of one session hold.
  static HeldBytes of(const std::vector<MemoryRow>& rows);
};

class Allowance {
 public:
  explicit Allowance(const Plan& plan);
  /// What the model and its sessions hold.
  HeldBytes held() const;
  /// kDoesNotFit with the bytes that are short when `more` is over a budget.
  Status check(const HeldBytes& more) const;
  /// Bytes that a share had lent (Share::lend()) came back.
  void give(const HeldBytes& less) noexcept;

 private:
  friend class Share;
  Status take(const HeldBytes& more);
  Status check_locked(const HeldBytes& more) const;
  HeldBytes limits_;  // SHARPI_ALL_FREE = the driver and the system say what is there
  HeldBytes held_;    // the model's and its sessions'
  mutable std::mutex mutex_;
};

class Share {
 public:
  explicit Share(std::shared_ptr<Allowance> of) : of_(std::move(of)) {}
  ~Share() { settle({}); }
  Share(const Share&) = delete;
  Share& operator=(const Share&) = delete;
  /// Asks for `more` bytes.
  Status take(const HeldBytes& more);
  /// Ends a take(): the session holds `now` bytes, which is no more than it asked for, and the rest
  /// goes back.
  void settle(const HeldBytes& now) noexcept;
  /// So many bytes go back.
  void give(const HeldBytes& less) noexcept {
    settle({held_.device - less.device, held_.host - less.host});
  }
  /// Bytes that are no longer this session's alone: whoever holds them last gives them back.
  void lend(const HeldBytes& bytes) noexcept {
    held_.device -= bytes.device;
    held_.host -= bytes.host;
  }
  const HeldBytes& held() const { return held_; }

 private:
  std::shared_ptr<Allowance> of_;
  HeldBytes held_;
};

/// A part of a share for the time of a call. The memory that it counts goes first.
class Lease {
 public:
  explicit Lease(Share& of) : of_(of) {}
  ~Lease() { end(); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Status take(const HeldBytes& more) {
    SHARPI_TRY(of_.take(more));
    held_.device += more.device;
    held_.host += more.host;
    return Status::ok();
  }
  /// What was taken stays the session's.
  void keep() noexcept { held_ = {}; }
  void end() noexcept {
    of_.give(held_);
    held_ = {};
  }

 private:
  Share& of_;
  HeldBytes held_;
};

}  // namespace sharpi
