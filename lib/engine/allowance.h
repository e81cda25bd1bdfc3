// SPDX-License-Identifier: MIT
// How much memory the sessions of a model may take: the plan's budgets less what the model itself
// holds. Every session has a share. It grows before the session takes memory and shrinks after
// memory was given back, so the budgets also hold for sessions beyond those that the plan priced.
// Thread rule: an allowance serialises itself; a share has one owner (the session).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.h"
#include "plan/plan.h"

namespace sharpi {

/// Bytes of each device's memory; the host's are anonymous and pinned ones.
class HeldBytes {
 public:
  /// The bytes that rows hold.
  static HeldBytes of(const std::vector<MemoryRow>& rows);
  static HeldBytes of_host(uint64_t bytes) {
    HeldBytes b;
    b.at(DeviceIndex::kHost) = bytes;
    return b;
  }
  uint64_t& at(DeviceIndex device) { return bytes_[index_of(device)]; }
  uint64_t at(DeviceIndex device) const { return bytes_[index_of(device)]; }
  HeldBytes& operator+=(const HeldBytes& more) {
    for (size_t d = 0; d < bytes_.size(); ++d) bytes_[d] += more.bytes_[d];
    return *this;
  }
  HeldBytes& operator-=(const HeldBytes& less) {
    for (size_t d = 0; d < bytes_.size(); ++d) bytes_[d] -= less.bytes_[d];
    return *this;
  }
  friend HeldBytes operator+(HeldBytes a, const HeldBytes& b) { return a += b; }
  friend HeldBytes operator-(HeldBytes a, const HeldBytes& b) { return a -= b; }

 private:
  std::array<uint64_t, kMaxDevices> bytes_{};
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
  struct Limit {
    DeviceIndex device;
    uint64_t bytes;  // SHARPI_ALL_FREE = the driver and the system say what is there
    std::string name;
  };
  std::vector<Limit> limits_;
  HeldBytes held_;  // the model's and its sessions'
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
  void give(const HeldBytes& less) noexcept { settle(held_ - less); }
  /// Bytes that are no longer this session's alone: whoever holds them last gives them back.
  void lend(const HeldBytes& bytes) noexcept { held_ -= bytes; }
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
    held_ += more;
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
