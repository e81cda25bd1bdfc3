// SPDX-License-Identifier: MIT
// Connections of TCP over the loopback device between the ranks of a group, and messages over them
// as sharpi.h wants its functions: what is sent is acknowledged when it was taken.
// Thread rule: one call at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "group/transport.h"

namespace sharpi::testing {

/// [rank][other rank]: sockets, -1 for oneself. Every pair is connected.
std::vector<std::vector<int>> connect_ranks(uint32_t n);
void close_sockets(const std::vector<int>& sockets);

class Loopback {
 public:
  explicit Loopback(std::vector<int> sockets) : sockets_(std::move(sockets)) {}
  /// 0, or an errno: ETIMEDOUT after timeout_ms, EPIPE where the other one is gone.
  int send(uint32_t to, const void* data, uint64_t bytes, uint32_t timeout_ms);
  int receive(uint32_t from, void* out, uint64_t bytes, uint32_t timeout_ms);
  void abandon();
  /// A signal that the process gives itself in place of its n-th message from now on.
  void fall_at(uint64_t n, int signal) {
    falls_in_ = n;
    signal_ = signal;
  }
  const std::vector<int>& sockets() const { return sockets_; }
  uint64_t n_messages() const { return n_messages_; }  // sent and taken

  // sharpi_send_fn, sharpi_receive_fn and sharpi_abandon_fn, of a Loopback.
  static int32_t send_fn(void* self, uint32_t to, const void* data, uint64_t bytes,
                         uint32_t timeout_ms);
  static int32_t receive_fn(void* self, uint32_t from, void* out, uint64_t bytes,
                            uint32_t timeout_ms);
  static void abandon_fn(void* self);

 private:
  std::vector<int> sockets_;
  uint64_t n_messages_ = 0, falls_in_ = 0;
  int signal_ = 0;
  void count();
};

/// The same for the inner parts of the library.
class LoopbackTransport final : public Transport {
 public:
  explicit LoopbackTransport(std::vector<int> sockets) : link_(std::move(sockets)) {}
  Status send(uint32_t to, const void* data, uint64_t bytes, Deadline deadline) override;
  Status receive(uint32_t from, void* out, uint64_t bytes, Deadline deadline) override;
  void abandon() noexcept override { link_.abandon(); }
  std::string name() const override { return "loopback"; }

 private:
  Loopback link_;
};

}  // namespace sharpi::testing
