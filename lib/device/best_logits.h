// SPDX-License-Identifier: MIT
// The best logits of a session's rows: found on the device, so that a few values and ids cross the
// bus instead of rows of a vocabulary. They are read when somebody asks (read()), or sent along
// with the pass that computes the rows, which spares a draw its own way to the device and back
// (send(), arrive()).
// Thread rule: read() may be called by several threads at once; the others are of the call that
// computes the rows.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>

#include "device/device.h"
#include "device/memory.h"
#include "device/session_copies.h"

namespace sharpi::device {

/// Where the rows of logits are: [n_rows][n_vocab] on the device.
struct LogitsOnDevice {
  const float* first = nullptr;
  uint32_t n_vocab = 0;
};

/// Sizes for passes that leave up to n_rows rows of logits.
struct BestBytes {
  uint64_t device = 0, pinned = 0;
};
BestBytes best_bytes(const DeviceKernels& kernels, uint32_t n_vocab, uint32_t n_rows);

class BestLogits {
 public:
  /// `device` and `stream` outlive it. What is read runs on the stream.
  BestLogits(const Device& device, const Queue& stream)
      : device_(&device), stream_(&stream), copies_(device, stream) {}
  Status allocate(uint32_t n_vocab, uint32_t n_rows);
  uint64_t device_bytes() const { return memory_.bytes(); }
  uint64_t pinned_bytes() const { return host_.bytes(); }
  /// The most that read() finds of a row; 0 without memory.
  uint32_t most() const;

  /// As TierSession::read_best() of row `row`. Pre: 1 <= k <= most().
  Status read(const LogitsOnDevice& logits, uint32_t row, uint32_t k,
              const std::span<const uint32_t>* allowed, float* values, int32_t* ids) const;
  /// The k best of the first n rows go to the host behind what the pass does on its own stream.
  /// Nothing happens where so many are not sent along.
  Status send(const LogitsOnDevice& logits, uint32_t n, uint32_t k, const Queue& pass);
  /// That stream has done what send() asked for, so read() finds it.
  void arrive() { here_ = sent_, sent_ = {}; }
  /// The rows are about to change.
  void forget() { here_ = sent_ = {}; }

 private:
  struct Rows {
    uint32_t n = 0, k = 0;
  };
  Status find(const LogitsOnDevice& logits, uint32_t row, Rows rows,
              const std::span<const uint32_t>* allowed, const Queue& stream) const;

  const Device* device_;
  const Queue* stream_;
  SessionCopies copies_;
  mutable std::mutex reading_;  // the device's memory and what lies in front of the sent rows
  DeviceBuffer memory_;         // results, scratch, mask
  PinnedBuffer host_;           // results of a read, mask, sent results
  uint32_t n_vocab_ = 0, n_rows_ = 0;
  Rows sent_, here_;
};

}  // namespace sharpi::device
